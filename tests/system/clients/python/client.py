"""Fabric's Python SDK, unchanged, against one ordering node; run in an environment of its own.

In: NODE (host:port), TLS_CA (a PEM file), CRYPTO (the folder of keys), ENDORSER (host:port),
CHANNEL, WORK (a folder), and for mutual TLS CERTIFICATE and KEY (PEM files). Out: one line of JSON
a step; in WORK every block that was delivered and the channel configurations that the SDK fetched.
Exit code 0 when each step went as it should, else 1.
"""

import asyncio
import json
import sys
from hashlib import sha256
from pathlib import Path

from hfc.fabric import Client
from hfc.fabric.orderer import Orderer
from hfc.fabric.peer import Peer
from hfc.fabric.transaction.tx_context import TXContext
from hfc.fabric.user import create_user
from hfc.protos.common import common_pb2, configtx_pb2
from hfc.protos.orderer import configuration_pb2
from hfc.protos.utils import create_envelope, create_seek_info, create_seek_payload
from hfc.util.keyvaluestore import FileKeyValueStore
from hfc.util.utils import build_channel_header, build_header, current_timestamp, pem_to_der

CHAINCODE = "basic"
TIMEOUT_S = 120.0
ENDLESS = 2**64 - 1


def say(**step):
    sys.stdout.write(json.dumps(step) + "\n")
    sys.stdout.flush()


def channel_headers(block):
    for raw in block.data.data:
        envelope, payload = common_pb2.Envelope(), common_pb2.Payload()
        envelope.ParseFromString(raw)
        payload.ParseFromString(envelope.payload)
        header = common_pb2.ChannelHeader()
        header.ParseFromString(payload.header.channel_header)
        yield header


class Scenario:
    """One channel, seen by two members: a user of Org1 and the orderer organisation's admin."""

    def __init__(self, given):
        node, ca, crypto, endorser, channel, work, *mutual = given
        certificate, key = mutual or (None, None)
        self.work, self.channel = Path(work), channel
        self.waiting = set()  # transactions that were broadcast
        self.client = Client()
        self.client.new_channel(channel)
        self.orderer = Orderer(
            endpoint=node, tls_ca_cert_file=ca, client_cert_file=certificate, client_key_file=key
        )
        self.tls_hash = (
            sha256(pem_to_der(Path(certificate).read_bytes())).digest() if certificate else None
        )
        self.client.orderers["orderer"] = self.orderer
        self.peer = Peer(name="endorser", endpoint=endorser)
        store = FileKeyValueStore(str(self.work / "users"))

        def member(name, msp, organisation):
            files = Path(crypto, organisation, "users", name, "msp")
            certificate = files / "signcerts" / f"{name}-cert.pem"
            return create_user(name, msp, store, msp, files / "keystore" / "priv_sk", certificate)

        self.user = member(
            "User1@org1.example.com", "Org1MSP", "peerOrganizations/org1.example.com"
        )
        self.admin = member("Admin@example.com", "OrdererMSP", "ordererOrganizations/example.com")

    async def config(self, when):
        """Deliver, twice: the newest block, and the configuration block that it names."""
        raw = await self.client.get_channel_config_with_orderer(
            self.user, self.channel, self.orderer, decode=False
        )
        block, envelope, payload = common_pb2.Block(), common_pb2.Envelope(), common_pb2.Payload()
        block.ParseFromString(raw)
        envelope.ParseFromString(block.data.data[0])
        payload.ParseFromString(envelope.payload)
        fetched = configtx_pb2.ConfigEnvelope()
        fetched.ParseFromString(payload.data)
        (self.work / f"config.{when}").write_bytes(fetched.config.SerializeToString())
        say(step="config", when=when, sequence=fetched.config.sequence)
        return fetched.config

    async def deliver(self, enough):
        """Give the blocks from 1, up to the one for which `enough` is true, as they come."""
        context = TXContext(self.user, self.user.cryptoSuite, {})
        kind = common_pb2.HeaderType.Value("DELIVER_SEEK_INFO")
        header = build_header(
            context.identity,
            build_channel_header(
                kind, context.tx_id, self.channel, current_timestamp(), tls_cert_hash=self.tls_hash
            ),
            context.nonce,
        )
        payload = create_seek_payload(header, create_seek_info(1, ENDLESS))
        blocks = []
        async for response in self.orderer.delivery(
            create_envelope(context.sign(payload), payload)
        ):
            if response.WhichOneof("Type") == "status":
                raise RuntimeError(f"Deliver ended with {response.status}")
            blocks.append(response.block)
            if enough(response.block):
                break
        return blocks

    async def genesis_block(self):
        context = TXContext(self.user, self.user.cryptoSuite, {})
        stream = self.orderer.get_genesis_block(context, self.channel)
        return [answer.block async for answer in stream if answer.HasField("block")]

    def all_came(self, block):
        self.waiting -= {header.tx_id for header in channel_headers(block)}
        return not self.waiting

    async def broadcast(self, when, number):
        """Send a transaction as applications do: endorsed by the peer, broadcast to the node."""
        said = await self.client.chaincode_invoke(
            self.user, self.channel, [self.peer], [when, str(number)], CHAINCODE, fcn="put"
        )
        # What the endorser answered: the transaction's ID. Where the node refuses, the SDK raises.
        self.waiting.add(said)
        say(step="broadcast", when=when, transaction=said, status="SUCCESS")

    def one_a_message(self, config):
        """Write an update to one message a block, as Fabric's own tool computes it."""
        old = config.channel_group.groups["Orderer"].values["BatchSize"]
        size = configuration_pb2.BatchSize()
        size.ParseFromString(old.value)
        size.max_message_count = 1
        update = configtx_pb2.ConfigUpdate(channel_id=self.channel)
        for part in (update.read_set, update.write_set):
            part.version = config.channel_group.version
            part.groups["Orderer"].version = config.channel_group.groups["Orderer"].version
        changed = update.write_set.groups["Orderer"].values["BatchSize"]
        changed.CopyFrom(old)
        changed.version += 1
        changed.value = size.SerializeToString()
        inside = configtx_pb2.ConfigUpdateEnvelope(config_update=update.SerializeToString())
        payload = common_pb2.Payload(data=inside.SerializeToString())
        file = self.work / "update.tx"
        file.write_bytes(
            common_pb2.Envelope(payload=payload.SerializeToString()).SerializeToString()
        )
        return file

    async def update(self, requestor, file):
        # The SDK appends to the list of signatures that it is given.
        return await self.client.channel_update(
            self.orderer, self.channel, requestor, config_tx=str(file), signatures=[]
        )

    async def run(self):
        config = await self.config("before")
        for number in range(3):
            await self.broadcast("before", number)
        file = self.one_a_message(config)
        try:
            await self.update(self.user, file)
        except Exception as refusal:  # noqa: BLE001 - the SDK raises nothing narrower
            say(step="refused", status=str(refusal))
        else:
            raise RuntimeError("an update that no administrator signed was accepted")
        await self.update(self.admin, file)
        say(step="update", status="SUCCESS")
        await self.deliver(
            lambda block: common_pb2.CONFIG in [header.type for header in channel_headers(block)]
        )
        await self.config("after")
        for number in range(2):
            await self.broadcast("after", number)
        blocks = await self.genesis_block() + await self.deliver(self.all_came)
        for block in blocks:
            (self.work / f"block.{block.header.number}").write_bytes(block.SerializeToString())
        say(step="deliver", blocks=len(blocks))
        await self.client.close_grpc_channels()


async def main(given):
    await asyncio.wait_for(Scenario(given).run(), timeout=TIMEOUT_S)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
