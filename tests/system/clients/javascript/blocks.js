/*
 * Reads and verifies blocks with Fabric's JavaScript SDK, unchanged; no node.
 *
 * In: files, each with a serialized block. Out: for each, one line of JSON with what the SDK read
 * (`fabric-common`'s BlockDecoder, the messages of `fabric-protos`) and computed. Exit code 0.
 */
'use strict';

const crypto = require('crypto');
const fs = require('fs');
const {Utils} = require('fabric-common');
const BlockDecoder = require('fabric-common/lib/BlockDecoder');
const {common, orderer, msp} = require('fabric-protos');
const {KJUR} = require('jsrsasign');

const {SIGNATURES, ORDERER} = common.BlockMetadataIndex;
const suite = Utils.newCryptoSuite();
const sha256 = (...parts) => crypto.createHash('sha256').update(Buffer.concat(parts)).digest('hex');
const octets = (raw) => new KJUR.asn1.DEROctetString({hex: raw.toString('hex')});

function headerBytes({number, previous_hash, data_hash}) {
	const sequence = new KJUR.asn1.DERSequence({array: [
		new KJUR.asn1.DERInteger({int: Number(number)}), octets(previous_hash), octets(data_hash)
	]});
	return Buffer.from(sequence.getEncodedHex(), 'hex');
}

function verified(header, metadata) {
	const [entry] = metadata.signatures;
	const {creator} = common.SignatureHeader.decode(entry.signature_header);
	const {mspid, id_bytes} = msp.SerializedIdentity.decode(creator);
	const key = suite.createKeyFromRaw(id_bytes.toString());
	const message = Buffer.concat([metadata.value, entry.signature_header, headerBytes(header)]);
	return suite.verify(key, entry.signature, message) ? mspid : '';
}

for (const file of process.argv.slice(2)) {
	const raw = fs.readFileSync(file);
	const block = common.Block.decode(raw);
	const read = BlockDecoder.decode(raw);
	const metadata = common.Metadata.decode(block.metadata.metadata[SIGNATURES]);
	const wrapped = common.Metadata.decode(block.metadata.metadata[ORDERER]);
	const kafka = orderer.KafkaMetadata.decode(wrapped.value);
	const headers = read.data.data.map((envelope) => envelope.payload.header.channel_header);
	process.stdout.write(`${JSON.stringify({
		number: Number(read.header.number),
		previous_hash: read.header.previous_hash.toString('hex'),
		header_hash: sha256(headerBytes(block.header)),
		data_hash: sha256(...block.data.data),
		signed_by: verified(block.header, metadata),
		last_config: Number(common.OrdererBlockMetadata.decode(metadata.value).last_config.index),
		kafka: [kafka.last_offset_persisted, kafka.last_original_offset_processed,
			kafka.last_resubmitted_config_offset].map(Number),
		envelopes: block.data.data.map((envelope) => sha256(envelope)),
		channels: headers.map((header) => header.channel_id),
		transactions: headers.map((header) => header.tx_id)
	})}\n`);
}
