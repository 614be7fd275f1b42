import java.io.StringReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.PrivateKey;
import java.util.Collection;
import java.util.EnumSet;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.TimeUnit;

import javax.json.Json;
import javax.json.JsonObjectBuilder;

import org.bouncycastle.asn1.pkcs.PrivateKeyInfo;
import org.bouncycastle.openssl.PEMParser;
import org.bouncycastle.openssl.jcajce.JcaPEMKeyConverter;
import org.hyperledger.fabric.protos.common.Configtx.Config;
import org.hyperledger.fabric.protos.common.Configtx.ConfigGroup;
import org.hyperledger.fabric.protos.common.Configtx.ConfigUpdate;
import org.hyperledger.fabric.protos.common.Configtx.ConfigValue;
import org.hyperledger.fabric.protos.orderer.Configuration.BatchSize;
import org.hyperledger.fabric.sdk.ChaincodeID;
import org.hyperledger.fabric.sdk.Channel;
import org.hyperledger.fabric.sdk.Channel.TransactionOptions;
import org.hyperledger.fabric.sdk.Enrollment;
import org.hyperledger.fabric.sdk.HFClient;
import org.hyperledger.fabric.sdk.Orderer;
import org.hyperledger.fabric.sdk.Peer;
import org.hyperledger.fabric.sdk.ProposalResponse;
import org.hyperledger.fabric.sdk.TransactionProposalRequest;
import org.hyperledger.fabric.sdk.UpdateChannelConfiguration;
import org.hyperledger.fabric.sdk.User;
import org.hyperledger.fabric.sdk.identity.X509Enrollment;
import org.hyperledger.fabric.sdk.security.CryptoSuite;

/**
 * Fabric's Java SDK, unchanged, against one ordering node.
 *
 * <p>In: NODE (host:port), TLS_CA (a PEM file), CRYPTO (the folder of keys), ENDORSER (host:port),
 * CHANNEL, WORK (a folder), and for mutual TLS CERTIFICATE and KEY (PEM files). Out: one line of JSON
 * a step; in WORK the channel configurations that the SDK fetched. Exit code 0 when each step went as
 * it should, else 1.
 *
 * <p>The SDK delivers from an orderer only to fetch the configuration: the newest block, then the
 * block that it names as the last configuration.
 */
public final class Client {
    private static final String CHAINCODE = "basic";
    private static final String PATIENCE_MS = "60000";
    private static final String ORDERER_ORG = "ordererOrganizations/example.com";
    private static final String PEER_ORG = "peerOrganizations/org1.example.com";

    private final Channel channel;
    private final HFClient client;
    private final Orderer orderer;
    private final User admin;
    private final User user;
    private final Path work;

    private Client(String[] given) throws Exception {
        Path crypto = Path.of(given[2]);
        this.work = Path.of(given[5]);
        this.admin = member("Admin", "OrdererMSP", crypto.resolve(ORDERER_ORG), "Admin@example.com");
        this.user = member("User1", "Org1MSP", crypto.resolve(PEER_ORG), "User1@org1.example.com");
        this.client = HFClient.createNewInstance();
        client.setCryptoSuite(CryptoSuite.Factory.getCryptoSuite());
        client.setUserContext(user);
        Properties tls = new Properties();
        tls.setProperty("pemFile", given[1]);
        if (given.length > 6) {
            tls.setProperty("clientCertFile", given[6]);
            tls.setProperty("clientKeyFile", given[7]);
        }
        this.orderer = client.newOrderer("orderer", "grpcs://" + given[0], tls);
        Peer peer = client.newPeer("endorser", "grpc://" + given[3]);
        this.channel = client.newChannel(given[4]);
        channel.addOrderer(orderer);
        channel.addPeer(peer, Channel.PeerOptions.createPeerOptions()
                .setPeerRoles(EnumSet.of(Peer.PeerRole.ENDORSING_PEER)));
        channel.initialize();
    }

    public static void main(String[] given) {
        try {
            System.setProperty("log4j2.level", "OFF"); // the SDK logs to stdout, which is ours
            for (String wait : new String[] {"channelconfig.wait_time", "orderer.ordererWaitTimeMilliSecs"}) {
                System.setProperty("org.hyperledger.fabric.sdk." + wait, PATIENCE_MS);
            }
            new Client(given).run();
        } catch (Throwable broken) {
            broken.printStackTrace();
            System.exit(1);
        }
        System.exit(0);
    }

    private void run() throws Exception {
        Config before = fetch("before");
        for (int number = 0; number < 3; number++) {
            broadcast("before", number);
        }
        UpdateChannelConfiguration update = new UpdateChannelConfiguration(oneAMessage(before).toByteArray());
        refused(update);
        channel.updateChannelConfiguration(
                admin, update, orderer, channel.getUpdateChannelConfigurationSignature(update, admin));
        say(Json.createObjectBuilder().add("step", "update").add("status", "SUCCESS"));
        fetch("after");
        for (int number = 0; number < 2; number++) {
            broadcast("after", number);
        }
    }

    /** Deliver, twice: the newest block, and the configuration block that it names. */
    private Config fetch(String when) throws Exception {
        byte[] raw = channel.getChannelConfigurationBytes(user, orderer);
        Files.write(work.resolve("config." + when), raw);
        Config config = Config.parseFrom(raw);
        say(Json.createObjectBuilder().add("step", "config").add("when", when)
                .add("sequence", config.getSequence()));
        return config;
    }

    /** A transaction as applications send it: endorsed by the peer, then broadcast to the node. */
    private void broadcast(String when, int number) throws Exception {
        TransactionProposalRequest request = client.newTransactionProposalRequest();
        request.setChaincodeID(ChaincodeID.newBuilder().setName(CHAINCODE).build());
        request.setFcn("put");
        request.setArgs(when, Integer.toString(number));
        Collection<ProposalResponse> endorsed =
                channel.sendTransactionProposal(request, channel.getPeers());
        String transaction = endorsed.iterator().next().getTransactionID();
        channel.sendTransaction(endorsed, TransactionOptions.createTransactionOptions()
                .userContext(user).orderers(orderer).nOfEvents(Channel.NOfEvents.createNoEvents()))
                .get(30, TimeUnit.SECONDS);
        say(Json.createObjectBuilder().add("step", "broadcast").add("when", when)
                .add("transaction", transaction).add("status", "SUCCESS"));
    }

    /** The update with the signature of a member who is no administrator: the SDK reports the status. */
    private void refused(UpdateChannelConfiguration update) throws Exception {
        try {
            channel.updateChannelConfiguration(
                    user, update, orderer, channel.getUpdateChannelConfigurationSignature(update, user));
        } catch (Exception refusal) {
            say(Json.createObjectBuilder().add("step", "refused").add("status", refusal.getMessage()));
            return;
        }
        throw new IllegalStateException("an update that no administrator signed was accepted");
    }

    /** One message a block from now on: read set and write set as Fabric's own tool computes them. */
    private ConfigUpdate oneAMessage(Config config) throws Exception {
        ConfigGroup all = config.getChannelGroup();
        ConfigGroup orderers = all.getGroupsOrThrow("Orderer");
        ConfigValue old = orderers.getValuesOrThrow("BatchSize");
        BatchSize size = BatchSize.parseFrom(old.getValue()).toBuilder().setMaxMessageCount(1).build();
        ConfigValue changed = old.toBuilder()
                .setVersion(old.getVersion() + 1).setValue(size.toByteString()).build();
        ConfigGroup.Builder read = ConfigGroup.newBuilder().setVersion(orderers.getVersion());
        ConfigGroup.Builder write = read.clone().putValues("BatchSize", changed);
        return ConfigUpdate.newBuilder().setChannelId(channel.getName())
                .setReadSet(ConfigGroup.newBuilder().setVersion(all.getVersion())
                        .putGroups("Orderer", read.build()))
                .setWriteSet(ConfigGroup.newBuilder().setVersion(all.getVersion())
                        .putGroups("Orderer", write.build()))
                .build();
    }

    private static User member(String name, String msp, Path organisation, String folder) throws Exception {
        Path files = organisation.resolve("users").resolve(folder).resolve("msp");
        String certificate = text(files.resolve("signcerts").resolve(folder + "-cert.pem"));
        PrivateKey key;
        try (PEMParser parser = new PEMParser(new StringReader(text(files.resolve("keystore/priv_sk"))))) {
            key = new JcaPEMKeyConverter().getPrivateKey((PrivateKeyInfo) parser.readObject());
        }
        return new Member(name, msp, new X509Enrollment(key, certificate));
    }

    private static String text(Path file) throws Exception {
        return Files.readString(file, StandardCharsets.UTF_8);
    }

    private static void say(JsonObjectBuilder step) {
        System.out.println(step.build());
    }

    private record Member(String getName, String getMspId, Enrollment getEnrollment) implements User {
        @Override
        public Set<String> getRoles() {
            return Set.of();
        }

        @Override
        public String getAccount() {
            return "";
        }

        @Override
        public String getAffiliation() {
            return "";
        }
    }
}
