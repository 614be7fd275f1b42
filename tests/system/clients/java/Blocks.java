import java.io.ByteArrayOutputStream;
import java.lang.reflect.Constructor;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.util.HexFormat;
import java.util.List;

import javax.json.Json;
import javax.json.JsonArrayBuilder;

import com.google.protobuf.ByteString;
import org.bouncycastle.asn1.ASN1Encodable;
import org.bouncycastle.asn1.ASN1Integer;
import org.bouncycastle.asn1.DEROctetString;
import org.bouncycastle.asn1.DERSequence;
import org.hyperledger.fabric.protos.common.Common.Block;
import org.hyperledger.fabric.protos.common.Common.BlockHeader;
import org.hyperledger.fabric.protos.common.Common.BlockMetadataIndex;
import org.hyperledger.fabric.protos.common.Common.LastConfig;
import org.hyperledger.fabric.protos.common.Common.Metadata;
import org.hyperledger.fabric.protos.common.Common.MetadataSignature;
import org.hyperledger.fabric.protos.common.Common.SignatureHeader;
import org.hyperledger.fabric.protos.msp.Identities.SerializedIdentity;
import org.hyperledger.fabric.protos.orderer.Kafka.KafkaMetadata;
import org.hyperledger.fabric.sdk.BlockInfo;
import org.hyperledger.fabric.sdk.HFClient;
import org.hyperledger.fabric.sdk.SDKUtils;
import org.hyperledger.fabric.sdk.security.CryptoSuite;

/**
 * Reads and verifies blocks with Fabric's Java SDK, unchanged; no node.
 *
 * <p>In: CA (a PEM file; the SDK verifies for certificates of authorities that it knows), then files,
 * each with a serialized block. Out: for each block, one line of JSON with what the SDK read
 * (BlockInfo, its messages) and computed (SDKUtils, CryptoSuite). Exit code 0.
 */
public final class Blocks {
    private static final HexFormat HEX = HexFormat.of();

    private Blocks() {
    }

    public static void main(String[] given) throws Exception {
        System.setProperty("log4j2.level", "OFF"); // the SDK logs to stdout, which is ours
        CryptoSuite suite = CryptoSuite.Factory.getCryptoSuite();
        HFClient client = HFClient.createNewInstance();
        client.setCryptoSuite(suite);
        // The SDK makes a BlockInfo of what a peer delivers, and a peer adds its validation codes.
        Constructor<BlockInfo> made = BlockInfo.class.getDeclaredConstructor(Block.class);
        made.setAccessible(true);
        suite.loadCACertificatesAsBytes(List.of(Files.readAllBytes(Path.of(given[0]))));
        for (String file : List.of(given).subList(1, given.length)) {
            Block block = Block.parseFrom(Files.readAllBytes(Path.of(file)));
            System.out.println(described(client, suite, block, made.newInstance(judged(block))));
        }
        System.exit(0);
    }

    /** The block after a peer found all of its transactions valid. */
    private static Block judged(Block block) {
        Block.Builder judged = block.toBuilder();
        judged.getMetadataBuilder().setMetadata(BlockMetadataIndex.TRANSACTIONS_FILTER_VALUE,
                ByteString.copyFrom(new byte[block.getData().getDataCount()]));
        return judged.build();
    }

    private static Object described(HFClient client, CryptoSuite suite, Block block, BlockInfo read)
            throws Exception {
        List<ByteString> slots = block.getMetadata().getMetadataList();
        KafkaMetadata kafka = KafkaMetadata.parseFrom(
                Metadata.parseFrom(slots.get(BlockMetadataIndex.ORDERER_VALUE)).getValue());
        LastConfig lastConfig = LastConfig.parseFrom(
                Metadata.parseFrom(slots.get(BlockMetadataIndex.LAST_CONFIG_VALUE)).getValue());
        JsonArrayBuilder envelopes = Json.createArrayBuilder();
        ByteArrayOutputStream data = new ByteArrayOutputStream();
        for (ByteString envelope : block.getData().getDataList()) {
            envelopes.add(sha256(envelope.toByteArray()));
            envelope.writeTo(data);
        }
        JsonArrayBuilder channels = Json.createArrayBuilder();
        JsonArrayBuilder transactions = Json.createArrayBuilder();
        for (BlockInfo.EnvelopeInfo envelope : read.getEnvelopeInfos()) {
            channels.add(envelope.getChannelId());
            transactions.add(envelope.getTransactionID());
        }
        return Json.createObjectBuilder()
                .add("number", read.getBlockNumber())
                .add("previous_hash", HEX.formatHex(read.getPreviousHash()))
                .add("header_hash", HEX.formatHex(SDKUtils.calculateBlockHash(
                        client, read.getBlockNumber(), read.getPreviousHash(), read.getDataHash())))
                .add("data_hash", sha256(data.toByteArray()))
                .add("signed_by", signedBy(suite, block.getHeader(),
                        Metadata.parseFrom(slots.get(BlockMetadataIndex.SIGNATURES_VALUE))))
                .add("last_config", lastConfig.getIndex())
                .add("kafka", Json.createArrayBuilder().add(kafka.getLastOffsetPersisted())
                        .add(kafka.getLastOriginalOffsetProcessed())
                        .add(kafka.getLastResubmittedConfigOffset()))
                .add("envelopes", envelopes)
                .add("channels", channels)
                .add("transactions", transactions)
                .build();
    }

    private static String signedBy(CryptoSuite suite, BlockHeader header, Metadata metadata) throws Exception {
        MetadataSignature entry = metadata.getSignatures(0);
        SerializedIdentity identity = SerializedIdentity.parseFrom(
                SignatureHeader.parseFrom(entry.getSignatureHeader()).getCreator());
        byte[] encoded = new DERSequence(new ASN1Encodable[] {
            new ASN1Integer(header.getNumber()),
            new DEROctetString(header.getPreviousHash().toByteArray()),
            new DEROctetString(header.getDataHash().toByteArray())
        }).getEncoded();
        byte[] message = metadata.getValue().concat(entry.getSignatureHeader())
                .concat(ByteString.copyFrom(encoded)).toByteArray();
        boolean verified = suite.verify(identity.getIdBytes().toByteArray(), "SHA256withECDSA",
                entry.getSignature().toByteArray(), message);
        return verified ? identity.getMspid() : "";
    }

    private static String sha256(byte[] raw) throws Exception {
        return HEX.formatHex(MessageDigest.getInstance("SHA-256").digest(raw));
    }
}
