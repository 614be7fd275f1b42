"""Chains for the API's tests: real ledgers, configs, identities and filters; no log, no node.

A verified fake of a node's `Channels`: each submitted envelope is at once in a block of its own.
"""

import asyncio
import itertools
import threading
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest

from bench.osn.transactions import FOLDER as FABRIC
from ordering_osn.api.channels import Refused
from ordering_osn.api.connection_errors import ConnectionLost
from ordering_osn.api.grpc_client import NodeClient
from ordering_osn.api.grpc_server import Server
from ordering_osn.api.metrics import Metrics
from ordering_osn.api.tls_files import TlsFiles
from ordering_osn.chain.blocks import header_hash, new_block, seal
from ordering_osn.chain.envelopes import ParsedEnvelope, signed_envelope
from ordering_osn.chain.transactions import transaction_id
from ordering_osn.config.channel_config import ChannelConfig
from ordering_osn.config.policies import PolicyNotMet
from ordering_osn.identity import SigningIdentity
from ordering_osn.ledger.ledger import Ledger
from ordering_osn.node.filters import admit_normal, route
from ordering_osn.protos import Block, HeaderType

CRYPTO = FABRIC / "crypto"
ORG1 = CRYPTO / "peerOrganizations/org1.example.com"
ORDERERS = CRYPTO / "ordererOrganizations/example.com"
USER_FOLDER = ORG1 / "users/User1@org1.example.com"
ORDERER_FOLDER = ORDERERS / "orderers/orderer.example.com"
USER = SigningIdentity.load(USER_FOLDER / "msp", "Org1MSP")
ORDERER = SigningIdentity.load(ORDERER_FOLDER / "msp", "OrdererMSP")
# User1's certificate and signature, under the name of an organisation that it is not of.
STRANGER = SigningIdentity.load(USER_FOLDER / "msp", "OrdererMSP")

SERVER_TLS = TlsFiles.read(ORDERER_FOLDER / "tls/server.crt", ORDERER_FOLDER / "tls/server.key")
MUTUAL_TLS = TlsFiles.read(
    ORDERER_FOLDER / "tls/server.crt",
    ORDERER_FOLDER / "tls/server.key",
    [ORG1 / "tlsca/tlsca.org1.example.com-cert.pem"],
)
ORDERER_CA = ORDERERS / "tlsca/tlsca.example.com-cert.pem"
CLIENT_TLS = TlsFiles.read(authorities=[ORDERER_CA])
USER_TLS = TlsFiles.read(
    USER_FOLDER / "tls/client.crt", USER_FOLDER / "tls/client.key", [ORDERER_CA]
)
# Of a client that takes little of what it does not read.
SMALL_WINDOW = [
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 65535),
]


def transaction(data=b"x", *, chain="chain-a", signer=USER, kind=HeaderType.ENDORSER_TRANSACTION):
    """A fresh envelope."""
    return signed_envelope(kind, chain, data, signer=signer, now=datetime.now(UTC))


class SmallChannel:
    """One chain, in a folder."""

    why_errored = "its loop has ended"

    def __init__(self, folder, name="chain-a"):
        self.name = name
        genesis = (FABRIC / f"{name}.block").read_bytes()
        # Readers see `ledger`: a test may replace it, while `store` stays the real one.
        self.ledger = self.store = Ledger.open(folder / name, fsync="never")
        self.store.append(0, genesis)
        self._newest = Block.FromString(genesis).header
        self._config = ChannelConfig.from_block(genesis)
        self._errored = False
        self.places = {}  # of transactions
        self._watchers = {}
        self._keys = itertools.count()
        self._lock = threading.Lock()

    @property
    def config(self):
        return self._config

    @config.setter
    def config(self, config):
        self._config = config
        self._tell()

    @property
    def errored(self):
        return self._errored

    @errored.setter
    def errored(self, errored):
        self._errored = errored
        self._tell()

    @property
    def watchers(self):
        return len(self._watchers)

    def watch(self, callback):
        key = next(self._keys)
        with self._lock:
            self._watchers[key] = callback
        return lambda: self._watchers.pop(key, None)

    async def receipt(self, transaction, timeout_s):
        if transaction not in self.places:
            await asyncio.sleep(timeout_s)
        return self.places.get(transaction)

    def add(self, *data):
        """Write the next block; gives its number."""
        number = self.store.height
        block = new_block(number, header_hash(self._newest), data or [b"transaction %d" % number])
        seal(block, last_config=0, consenter=b"", signer=ORDERER)
        self._newest = block.header
        self.store.append(number, block.SerializeToString())
        self._tell()
        return number

    def grow(self, height):
        """Write blocks until the next one is number `height`."""
        while self.store.height < height:
            self.add()

    def _tell(self):
        with self._lock:
            watchers = list(self._watchers.values())
        for callback in watchers:
            callback()


class SmallChannels:
    """Chains of one process. An accepted envelope is in a block before it is acknowledged."""

    def __init__(self, *channels):
        self._channels = {channel.name: channel for channel in channels}
        self.failed = []
        self.submitted = []
        self.stored = None  # an event to wait for before anything is acknowledged

    def get(self, name):
        return self._channels.get(name)

    def names(self):
        return sorted(self._channels)

    def health(self):
        return list(self.failed)

    def why_stalled(self, _name):
        return None

    async def submit(self, envelope):
        self.submitted.append(envelope)
        try:
            parsed = ParsedEnvelope(envelope)
            _, name = route(parsed)
            if name not in self._channels:
                return 404, f"no channel {name}"
            channel = self._channels[name]
            admit_normal(channel.config, parsed, now=datetime.now(UTC))
        except Refused as refusal:
            return refusal.status, refusal.info
        if channel.errored:
            return 503, "the chain is not ready"
        if self.stored is not None:
            await self.stored.wait()
        channel.places[transaction_id(envelope)] = (channel.add(envelope), 0)
        return 200, ""


@asynccontextmanager
async def serving(channels, *, tls=None, metrics=None, **options):
    """A server on loopback, and what to give a client of it."""
    server = Server(channels, tls=tls, metrics=metrics or Metrics(), **options)
    await server.start()
    try:
        yield server
    finally:
        await server.stop(0.2)


@asynccontextmanager
async def served(channels, *, client_tls=None, name="", **options):
    """A client of a server on loopback."""
    async with (
        serving(channels, **options) as server,
        NodeClient(f"127.0.0.1:{server.port}", tls=client_tls, name=name) as client,
    ):
        yield client


async def gathered(answers, *, within_s=60.0):
    """All that an asynchronous iterator gives."""
    async with asyncio.timeout(within_s):
        return [answer async for answer in answers]


async def refused(ask, says):
    """Ask until the server's refusal says this.

    Where a write fails as the call ends, gRPC's client loses it: grpc/grpc#36066.
    """
    error = lost = "gRPC's client lost the reason"
    async with asyncio.timeout(60):
        while error.endswith(lost):
            with pytest.raises(ConnectionLost) as raised:
                await gathered(ask())
            error = str(raised.value)
    assert says in error


def asking(data, *, channel="chain-a", now=None, signer=USER, tls_hash=b""):
    """A signed request that holds any data."""
    return signed_envelope(
        HeaderType.DELIVER_SEEK_INFO,
        channel,
        data,
        signer=signer,
        now=now or datetime.now(UTC),
        tls_hash=tls_hash,
    )


def numbers(answers):
    """Blocks by their numbers, statuses as they are."""
    return [
        f"block {Block.FromString(answer).header.number}" if isinstance(answer, bytes) else answer
        for answer in answers
    ]


def blocks(first, last):
    return [f"block {number}" for number in range(first, last + 1)]


def answers_of(runner, channels, *requests, **options):
    """Send requests on one Deliver stream, one after another; gives the answers."""

    async def ask():
        async with served(channels, **options) as client:
            return await gathered(client.deliver(*requests))

    return runner.run(ask())


def answers_to(runner, channels, *requests, **options):
    """The same; blocks by their numbers."""
    return numbers(answers_of(runner, channels, *requests, **options))


class NoReaders:
    """A config under which nobody may read."""

    maintenance = False

    def __init__(self, sequence):
        self.sequence = sequence
        self.policies = self

    def evaluate(self, path, _signed):
        raise PolicyNotMet(path)
