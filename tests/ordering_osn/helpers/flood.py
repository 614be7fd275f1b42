"""A node in a process of its own, and a crowd of strangers in another, who send it all at once.

    python -m tests.ordering_osn.helpers.flood node plain|mutual
    python -m tests.ordering_osn.helpers.flood strangers plain|mutual PORT ADDRESS

A node prints its port. The strangers come from ADDRESS, are somebody who has rights, and leave the
processors to others (`os.nice`): what an honest client waits for is the node's work then. They
print, as JSON, how many calls ended, and how; then they keep the others until their input ends.
"""

import asyncio
import collections
import gc
import json
import os
import sys
import tempfile
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import grpc
from grpc import aio

from ordering_osn.api.grpc_server import Server
from ordering_osn.api.seek import seek_envelope
from ordering_osn.api.tls_files import TlsFiles
from ordering_osn.chain.envelopes import canonical, signed_envelope
from ordering_osn.protos import (
    ConfigSignature,
    ConfigUpdate,
    ConfigUpdateEnvelope,
    HeaderType,
    SignatureHeader,
)
from tests.ordering_osn.helpers import configs
from tests.ordering_osn.helpers.chains import MUTUAL_TLS, ORDERER_CA, ORG1, SMALL_WINDOW
from tests.ordering_osn.helpers.small import LONE, Nodes, healthy, quick, transaction

IDLE, READERS, HALF_SENT, ROUNDS = 10_000, 600, 12, 5
MB = 1_000_000
BLOCK = {"absolute_max_bytes": 10 << 20, "preferred_max_bytes": 2 << 20, "max_message_count": 10}
DELIVER, BROADCAST = "/orderer.AtomicBroadcast/Deliver", "/orderer.AtomicBroadcast/Broadcast"
ADMIN = ORG1 / "users/Admin@org1.example.com/tls"


def say(what):
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


def run_node(tls):
    async def serve():
        server = Server(node, metrics=node.metrics, tls=tls)
        await server.start()
        gc.collect()
        gc.freeze()  # as `serving.serve`
        say(server.port)
        await asyncio.to_thread(sys.stdin.read)
        await server.stop(0.2)

    with tempfile.TemporaryDirectory() as folder, Nodes(LONE, Path(folder)) as osn:
        node = osn.start("n1", quick(timeout="100ms", **BLOCK))
        healthy(node)
        asyncio.run(serve())


class Strangers:
    """All that they send. `ended`: how their calls ended, by kind."""

    def __init__(self, tls, port, address):
        self.tls, self.port, self.address = tls, int(port), address
        self.half_sent, self.opened, self.tasks = 0, [], set()
        self.ended = collections.defaultdict(collections.Counter)

    def begin(self, work):
        self.tasks.add(asyncio.ensure_future(work))

    async def relay(self, reader, writer):
        """Pass a connection on from `address`; of those for half a message only a beginning."""
        upper, below = await asyncio.open_connection(
            "127.0.0.1", self.port, local_addr=(self.address, 0)
        )
        most = 9 * MB if self.half_sent else 1 << 60
        self.half_sent = max(0, self.half_sent - 1)
        self.begin(self.pump(reader, below, most))
        self.begin(self.pump(upper, writer, 1 << 60))

    @staticmethod
    async def pump(reader, writer, most):
        with suppress(OSError):
            while most > 0 and (received := await reader.read(65536)):
                most -= len(received)
                writer.write(received)
                await writer.drain()
            if most <= 0:
                await asyncio.Event().wait()
        writer.close()

    def channel(self):
        options = [*SMALL_WINDOW, ("grpc.max_send_message_length", 100 << 20)]
        if self.tls is None:
            made = aio.insecure_channel(self.relayed, options)
        else:
            secrets = self.tls.authorities, self.tls.key, self.tls.certificate
            options.append(("grpc.ssl_target_name_override", "orderer.example.com"))
            made = aio.secure_channel(self.relayed, grpc.ssl_channel_credentials(*secrets), options)
        self.opened.append(made)
        return made

    def call(self, kind, channel, method):
        made = channel.stream_stream(method)()

        async def watched():
            code = await made.code()
            details = (await made.details() or "").partition(",")[0][:80]
            self.ended[kind][f"{code.name} {details}"] += 1

        self.begin(watched())
        return made

    async def idle(self):
        channels = [self.channel() for _ in range(10)]
        for number in range(IDLE):
            self.call("idle", channels[number % 10], (DELIVER, BROADCAST)[number // 10 % 2])
            if number % 500 == 0:
                await asyncio.sleep(0.05)

    async def stalled(self):
        tls_hash = self.tls.tls_hash if self.tls else b""
        request = seek_envelope(configs.org_admin(), "chain-a", 1, 1, tls_hash=tls_hash)
        for number in range(READERS):
            channel = self.channel() if number % 50 == 0 else self.opened[-1]
            self.begin(self.call("stalled", channel, DELIVER).write(request))
            await asyncio.sleep(0)

    async def half(self):
        self.half_sent = HALF_SENT
        for _ in range(HALF_SENT):
            self.begin(self.call("half", self.channel(), BROADCAST).write(bytes(10 * MB)))
        while self.half_sent:  # noqa: ASYNC110 - its own connections are made
            await asyncio.sleep(0.01)

    def large(self):
        """JSON, of which one is too large to be received; updates; envelopes with padding."""
        admin, now = configs.org_admin(), datetime.now(UTC)
        wide = ConfigUpdate(channel_id="chain-a")
        for number in range(450_000):
            wide.write_set.values[f"v{number:x}"].SetInParent()
        header = canonical(SignatureHeader(creator=admin.creator, nonce=b"n" * 24))
        signature = ConfigSignature(signature_header=header, signature=admin.sign(b"another"))
        many = [signature] * (6 * MB // len(canonical(signature)))
        for update, signatures in ((wide, []), (ConfigUpdate(channel_id="chain-a"), many)):
            made = ConfigUpdateEnvelope(config_update=canonical(update), signatures=signatures)
            kind = HeaderType.CONFIG_UPDATE
            raw = signed_envelope(kind, "chain-a", canonical(made), signer=admin, now=now)
            yield "update", BROADCAST, raw
        for size in (30 * MB, *[9 * MB] * 3):
            made = b"[" + b"[]," * (size // 3) + b"0]"
            kind = HeaderType.DELIVER_SEEK_INFO
            raw = signed_envelope(kind, "chain-a", made, signer=admin, now=now)
            yield "JSON", "/amcast.osn.Receipts/Wait", raw
        for _ in range(20):
            yield "padded", BROADCAST, transaction() + b"\xa2\x06\xa0\xf7\x36" + bytes(900_000)

    async def exchange(self, kind, channel, method, message):
        call = self.call(kind, channel, method)
        with suppress(aio.AioRpcError, asyncio.InvalidStateError):
            await call.write(message)
            await call.done_writing()
            await call.read()

    async def send(self, sent):
        channel = self.channel()
        for _ in range(ROUNDS):
            await asyncio.gather(*(self.exchange(kind, channel, *rest) for kind, *rest in sent))

    async def run(self, *left_out):
        server = await asyncio.start_server(self.relay, "127.0.0.1", 0)
        self.relayed = "{}:{}".format(*server.sockets[0].getsockname())
        sent = [each for each in self.large() if each[0] not in left_out]
        if "half" not in left_out:
            await self.half()
        say("ready")
        kinds = [each() for each in (self.idle, self.stalled) if each.__name__ not in left_out]
        await asyncio.gather(*kinds, self.send(sent))
        say(json.dumps(self.ended))
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    role, secrets, *rest = sys.argv[1:]
    if role == "node":
        run_node(MUTUAL_TLS if secrets == "mutual" else None)
    else:
        os.nice(19)
        admin_tls = TlsFiles.read(ADMIN / "client.crt", ADMIN / "client.key", [ORDERER_CA])
        crowd = Strangers(admin_tls if secrets == "mutual" else None, *rest[:2])
        asyncio.run(crowd.run(*rest[2:]))
