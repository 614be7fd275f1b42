/*
 * Fabric's JavaScript SDK, unchanged, against one ordering node.
 *
 * In: NODE (host:port), TLS_CA (a PEM file), CRYPTO (the folder of keys), ENDORSER (host:port),
 * CHANNEL, WORK (a folder), and for mutual TLS CERTIFICATE and KEY (PEM files). Out: one line of JSON
 * a step; in WORK every block that was delivered and the channel configurations that were fetched.
 * Exit code 0 when each step went as it should, else 1.
 *
 * fabric-common broadcasts (`Commit`, `Committer.sendBroadcast`) and leaves Deliver and configuration
 * to its user, who has the stub of the `Committer` and the messages of `fabric-protos`: used here.
 */
'use strict';

const fs = require('fs');
const path = require('path');
const {Client, User} = require('fabric-common');
const {common, orderer: ordering} = require('fabric-protos');

const CHAINCODE = 'basic';
const TIMEOUT_MS = 30000;
const [node, ca, crypto, endorserAddress, channelName, work, tlsCertificate, tlsKey] = process.argv.slice(2);

const waiting = new Set(); // transactions that were broadcast

const say = (step) => process.stdout.write(`${JSON.stringify(step)}\n`);
const read = (...parts) => fs.readFileSync(path.join(...parts), 'utf8');

function member(name, msp, organisation) {
	const files = path.join(crypto, organisation, 'users', name, 'msp');
	const certificate = read(files, 'signcerts', `${name}-cert.pem`);
	return User.createUser(name, '', msp, certificate, read(files, 'keystore', 'priv_sk'));
}

/** An envelope of any type, signed with the SDK's keys. */
function envelope(context, type, data) {
	const signed = context.calculateTransactionId();
	const payload = common.Payload.encode({
		header: {
			channel_header: common.ChannelHeader.encode({
				type, version: 1, channel_id: channelName, tx_id: signed.transactionId,
				tls_cert_hash: context.client.getClientCertHash(),
				timestamp: {seconds: Math.floor(Date.now() / 1000), nanos: 0}
			}).finish(),
			signature_header: signatureHeader(signed)
		},
		data
	}).finish();
	return {payload, signature: signed.sign(payload)};
}

const signatureHeader = (signed) => common.SignatureHeader.encode({
	creator: signed.serializeIdentity(), nonce: signed.nonce
}).finish();

/**
 * The blocks from `start` to `stop` (numbers, or 'newest'; it waits for those that are not there yet),
 * or fewer: up to the one for which `enough` is true.
 */
function deliver(committer, context, start, stop, enough = () => false) {
	const position = (where) => where === 'newest' ? {newest: {}} : {specified: {number: where}};
	const seek = ordering.SeekInfo.encode({
		start: position(start), stop: position(stop),
		behavior: ordering.SeekInfo.SeekBehavior.BLOCK_UNTIL_READY
	}).finish();
	return new Promise((resolve, reject) => {
		const blocks = [];
		const stream = committer.service.deliver();
		const timer = setTimeout(() => end(new Error(`no end after ${blocks.length} blocks`)), TIMEOUT_MS);
		const end = (error) => {
			clearTimeout(timer);
			stream.cancel();
			return error ? reject(error) : resolve(blocks);
		};
		stream.on('error', end);
		stream.on('data', (response) => {
			if (response.Type === 'block') {
				blocks.push(response.block);
				if (enough(response.block)) {
					end();
				}
				return;
			}
			const status = common.Status[response.status];
			end(status === 'SUCCESS' ? undefined : new Error(`Deliver ended with ${status}`));
		});
		stream.write(envelope(context, common.HeaderType.DELIVER_SEEK_INFO, seek));
	});
}

function channelHeaders(block) {
	return block.data.data.map((raw) => {
		const payload = common.Payload.decode(common.Envelope.decode(raw).payload);
		return common.ChannelHeader.decode(payload.header.channel_header);
	});
}

async function fetchConfig(committer, context, when) {
	const [newest] = await deliver(committer, context, 'newest', 'newest');
	const last = common.Metadata.decode(newest.metadata.metadata[common.BlockMetadataIndex.LAST_CONFIG]);
	const {index} = common.LastConfig.decode(last.value);
	const [block] = await deliver(committer, context, Number(index), Number(index));
	const payload = common.Payload.decode(common.Envelope.decode(block.data.data[0]).payload);
	const {config} = common.ConfigEnvelope.decode(payload.data);
	fs.writeFileSync(path.join(work, `config.${when}`), common.Config.encode(config).finish());
	say({step: 'config', when, sequence: Number(config.sequence)});
	return config;
}

/** A transaction as applications send it: endorsed by the peer, then broadcast to the node. */
async function broadcast(channel, context, endorser, committer, when, number) {
	const proposal = channel.newEndorsement(CHAINCODE);
	proposal.build(context, {fcn: 'put', args: [when, String(number)]});
	proposal.sign(context);
	const {errors} = await proposal.send({targets: [endorser], requestTimeout: TIMEOUT_MS});
	if (errors.length > 0) {
		throw errors[0];
	}
	const commit = proposal.newCommit();
	commit.build(context);
	commit.sign(context);
	const {status, info} = await commit.send({targets: [committer], requestTimeout: TIMEOUT_MS});
	waiting.add(proposal.getTransactionId());
	say({step: 'broadcast', when, transaction: proposal.getTransactionId(), status, info});
}

/** One message a block from now on: read set and write set as Fabric's own tool computes them. */
function oneAMessage(config) {
	const {version, groups} = config.channel_group;
	const orderers = groups.Orderer;
	const old = orderers.values.BatchSize;
	const size = Object.assign(ordering.BatchSize.decode(old.value), {max_message_count: 1});
	const changed = Object.assign({}, old, {
		version: Number(old.version) + 1, value: ordering.BatchSize.encode(size).finish()
	});
	return common.ConfigUpdate.encode({
		channel_id: channelName,
		read_set: {version, groups: {Orderer: {version: orderers.version}}},
		write_set: {version, groups: {Orderer: {version: orderers.version, values: {BatchSize: changed}}}}
	}).finish();
}

/** Sends an update that `context` signs and sends. */
function sendUpdate(committer, context, update) {
	const signed = context.calculateTransactionId();
	const header = signatureHeader(signed);
	const signatures = [{signature_header: header, signature: signed.sign(Buffer.concat([header, update]))}];
	const data = common.ConfigUpdateEnvelope.encode({config_update: update, signatures}).finish();
	return committer.sendBroadcast(
		envelope(context, common.HeaderType.CONFIG_UPDATE, data), TIMEOUT_MS);
}

async function main() {
	const client = Client.newClient('client');
	if (tlsCertificate) {
		client.setTlsClientCertAndKey(read(tlsCertificate), read(tlsKey));
	}
	const user = client.newIdentityContext(
		member('User1@org1.example.com', 'Org1MSP', 'peerOrganizations/org1.example.com'));
	const admin = client.newIdentityContext(
		member('Admin@example.com', 'OrdererMSP', 'ordererOrganizations/example.com'));
	const committer = client.newCommitter('orderer', 'OrdererMSP');
	const endorser = client.newEndorser('endorser', 'Org1MSP');
	const patience = {'grpc-wait-for-ready-timeout': TIMEOUT_MS};
	await committer.connect(client.newEndpoint({url: `grpcs://${node}`, pem: read(ca), ...patience}));
	await endorser.connect(client.newEndpoint({url: `grpc://${endorserAddress}`, ...patience}));
	const channel = client.newChannel(channelName);
	channel.addCommitter(committer);
	channel.addEndorser(endorser);

	const config = await fetchConfig(committer, user, 'before');
	for (let number = 0; number < 3; number++) {
		await broadcast(channel, user, endorser, committer, 'before', number);
	}
	const update = oneAMessage(config);
	const refusal = await sendUpdate(committer, user, update);
	say({step: 'refused', status: refusal.status, info: refusal.info});
	const {status, info} = await sendUpdate(committer, admin, update);
	say({step: 'update', status, info});
	await deliver(committer, user, 1, Number.MAX_SAFE_INTEGER,
		(block) => channelHeaders(block).some((header) => header.type === common.HeaderType.CONFIG));
	await fetchConfig(committer, user, 'after');
	for (let number = 0; number < 2; number++) {
		await broadcast(channel, user, endorser, committer, 'after', number);
	}
	const blocks = await deliver(committer, user, 0, Number.MAX_SAFE_INTEGER, (block) => {
		channelHeaders(block).forEach((header) => waiting.delete(header.tx_id));
		return waiting.size === 0;
	});
	for (const block of blocks) {
		const {header, data, metadata} = block;
		fs.writeFileSync(path.join(work, `block.${header.number}`), common.Block.encode({
			header: Object.assign({}, header, {number: Number(header.number)}), data, metadata
		}).finish());
	}
	say({step: 'deliver', blocks: blocks.length});
	committer.disconnect();
	endorser.disconnect();
}

main().catch((error) => {
	process.stderr.write(`${error.stack}\n`);
	process.exitCode = 1;
	process.exit();
});
