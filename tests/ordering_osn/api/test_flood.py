"""All that strangers can send, at once: a node's memory is bounded, and its clients are served.

The node and the strangers are processes of their own, of this file. The strangers yield the
processors (`os.nice`), by so little that they go on beside others: what an honest client waits for
is the node's own work.
"""

import asyncio
import collections
import gc
import json
import os
import sys
import tempfile
import time
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import grpc
import pytest
from grpc import aio

from ordering_osn.api.grpc_client import NodeClient
from ordering_osn.api.grpc_server import Server
from ordering_osn.api.seek import seek_envelope
from ordering_osn.api.tls_files import TlsFiles
from ordering_osn.chain.envelopes import canonical, signed_envelope
from ordering_osn.node.serving import share_freed_memory
from ordering_osn.protos import (
    ConfigSignature,
    ConfigUpdate,
    ConfigUpdateEnvelope,
    HeaderType,
    SignatureHeader,
)
from tests.ordering_osn.helpers import configs
from tests.ordering_osn.helpers.chains import (
    MUTUAL_TLS,
    ORDERER_CA,
    ORG1,
    SMALL_WINDOW,
    USER,
    USER_TLS,
    gathered,
    numbers,
)
from tests.ordering_osn.helpers.small import LONE, Nodes, healthy, quick, transaction

MEMORY_MB_MAX, DELAY_S_MAX = 500, 1.0
WITHIN_S = 300.0  # on any machine
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
IDLE, READERS, HALF_SENT, ROUNDS = 10_000, 600, 12, 5
MB = 1_000_000
BLOCK = {"absolute_max_bytes": 10 << 20, "preferred_max_bytes": 2 << 20, "max_message_count": 10}
DELIVER, BROADCAST = "/orderer.AtomicBroadcast/Deliver", "/orderer.AtomicBroadcast/Broadcast"
WAIT = "/amcast.osn.Receipts/Wait"
ADMIN = ORG1 / "users/Admin@org1.example.com/tls"


def say(what):
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


def run_node(tls):
    share_freed_memory()  # and below, `gc.freeze`: as `serving.serve`

    async def serve():
        server = Server(node, metrics=node.metrics, tls=tls)
        await server.start()
        gc.collect()
        gc.freeze()
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

        def signed(kind, content):
            return signed_envelope(kind, "chain-a", content, signer=admin, now=now)

        wide = ConfigUpdate(channel_id="chain-a")
        for number in range(450_000):
            wide.write_set.values[f"v{number:x}"].SetInParent()
        header = canonical(SignatureHeader(creator=admin.creator, nonce=b"n" * 24))
        signature = ConfigSignature(signature_header=header, signature=admin.sign(b"another"))
        many = [signature] * (6 * MB // len(canonical(signature)))
        for update, signatures in ((wide, []), (ConfigUpdate(channel_id="chain-a"), many)):
            made = ConfigUpdateEnvelope(config_update=canonical(update), signatures=signatures)
            yield "update", BROADCAST, signed(HeaderType.CONFIG_UPDATE, canonical(made))
        for size in (30 * MB, *[9 * MB] * 3):
            content = b"[" + b"[]," * (size // 3) + b"0]"
            yield "JSON", WAIT, signed(HeaderType.DELIVER_SEEK_INFO, content)
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

    async def run(self):
        server = await asyncio.start_server(self.relay, "127.0.0.1", 0)
        self.relayed = "{}:{}".format(*server.sockets[0].getsockname())
        sent = list(self.large())
        await self.half()
        say("ready")
        await asyncio.gather(self.idle(), self.stalled(), self.send(sent))
        say(json.dumps(self.ended))
        await asyncio.to_thread(sys.stdin.read)


@asynccontextmanager
async def process(*arguments):
    command = [sys.executable, "-m", "tests.ordering_osn.api.test_flood", *map(str, arguments)]
    pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
    made = await asyncio.create_subprocess_exec(*command, **pipes)
    try:
        yield made
    finally:
        if made.returncode is None:
            made.kill()
        await made.wait()


def peak_mb(number):
    status = Path(f"/proc/{number}/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024 / MB


def work_s(number):
    stat = Path(f"/proc/{number}/stat").read_text(encoding="ascii")
    fields = stat.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


class Honest:
    """Sends a transaction and reads a block, each time by a new connection.

    `delays`: how long each call took, or, where the machine has others to serve, how long the node
    has worked meanwhile.
    """

    def __init__(self, port, tls, node):
        self.tls, self.node, self.delays = tls, node, {"Broadcast": [], "Deliver": []}
        self.address = f"127.0.0.1:{port}"

    def client(self):
        return NodeClient(self.address, tls=self.tls, name="orderer.example.com" * bool(self.tls))

    async def measured(self, what, answers):
        began, worked = time.monotonic(), work_s(self.node)
        answered = await gathered(answers, within_s=WITHIN_S)
        took = time.monotonic() - began
        self.delays[what].append(min(took, work_s(self.node) - worked + TICK_S))
        return answered

    async def calls(self):
        tls_hash = self.tls.tls_hash if self.tls else b""
        request = seek_envelope(USER, "chain-a", 0, 0, tls_hash=tls_hash)
        async with self.client() as client:
            sent = client.broadcast([transaction()], timeout_s=WITHIN_S)
            assert await self.measured("Broadcast", sent) == [(200, "")]
            read = client.deliver(request, timeout_s=WITHIN_S)
            assert numbers(await self.measured("Deliver", read)) == ["block 0", 200]


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("secrets", "address"),
    [("plain", "127.0.0.2"), ("mutual", "127.0.0.1")],
    ids=["by address", "by TLS certificate"],
)
def test_a_client_is_served_whatever_strangers_send(secrets, address, capsys):
    """They differ from it by their address, or by their TLS certificate."""

    async def flood():
        async with process("node", secrets) as node:
            port = int(await node.stdout.readline())
            honest = Honest(port, USER_TLS if secrets == "mutual" else None, node.pid)
            async with honest.client() as client:
                large = transaction(data=bytes(2 * MB))
                assert await gathered(client.broadcast([large])) == [(200, "")]
            async with process("strangers", secrets, port, address) as strangers:
                await strangers.stdout.readline()
                sending = asyncio.create_task(strangers.stdout.readline())
                while not sending.done():
                    await honest.calls()
                for _ in range(20):  # those who are left are idle, do not read, or have half sent
                    await honest.calls()
                return honest.delays, json.loads(await sending), peak_mb(node.pid)

    delays, ended, peak = asyncio.run(flood())
    with capsys.disabled():
        say(f"\n{secrets}, strangers at {address}: {peak:.0f} MB at most")
        for what, each in delays.items():
            median = sorted(each)[len(each) // 2]
            say(f"  {what}: {len(each)} calls, median {median:.3f} s, longest {max(each):.2f} s")
        for what, how in ended.items():
            say(f"  {what}: {how}")
    assert peak < MEMORY_MB_MAX
    assert max(map(max, delays.values())) < DELAY_S_MAX


if __name__ == "__main__":
    role, secrets, *rest = sys.argv[1:]
    if role == "node":
        run_node(MUTUAL_TLS if secrets == "mutual" else None)
    else:
        os.nice(5)
        admin_tls = TlsFiles.read(ADMIN / "client.crt", ADMIN / "client.key", [ORDERER_CA])
        asyncio.run(Strangers(admin_tls if secrets == "mutual" else None, *rest).run())
