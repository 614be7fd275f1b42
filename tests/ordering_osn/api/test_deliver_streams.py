"""Deliver over gRPC: TLS, thousands of streams, stalled readers, and the server's stop."""

import asyncio
import json
import resource
import sys
from pathlib import Path

import pytest
from grpc import aio
from grpc._cython import cygrpc

from multicast.errors import UsageError
from ordering_osn.api import grpc_client, grpc_server
from ordering_osn.api.connection_errors import ConnectionLost
from ordering_osn.api.grpc_client import NodeClient
from ordering_osn.api.grpc_server import Server
from ordering_osn.api.metrics import Metrics
from ordering_osn.api.responses import read_answer
from ordering_osn.api.seek import ENDLESS, seek_envelope
from ordering_osn.api.tls_files import TlsFiles
from ordering_osn.chain.blocks import new_block
from ordering_osn.protos import Block
from tests.ordering_osn.helpers.chains import (
    CLIENT_TLS,
    MUTUAL_TLS,
    SERVER_TLS,
    USER,
    USER_TLS,
    answers_to,
    asking,
    blocks,
    gathered,
    numbers,
    refused,
    served,
    serving,
)
from tests.ordering_osn.helpers.loops import becomes

# TLS.


def over_tls(runner, channels, *, tls_hash=b"", tls=MUTUAL_TLS, client_tls=USER_TLS, name=""):
    request = seek_envelope(USER, "chain-a", "oldest", "oldest", tls_hash=tls_hash)
    return answers_to(runner, channels, request, tls=tls, client_tls=client_tls, name=name)


def test_over_tls_the_name_is_checked_against_the_certificate(runner, channels):
    tls = {"tls": SERVER_TLS, "client_tls": CLIENT_TLS}
    assert over_tls(runner, channels, name="orderer.example.com", **tls) == ["block 0", 200]
    with pytest.raises(ConnectionLost):
        over_tls(runner, channels, name="somebody.else", **tls)


@pytest.mark.parametrize("tls", [None, CLIENT_TLS], ids=["no TLS", "no certificate"])
def test_under_mutual_tls_a_client_without_a_certificate_is_not_served(runner, channels, tls):
    with pytest.raises(ConnectionLost):
        over_tls(runner, channels, client_tls=tls)


@pytest.mark.parametrize(
    ("tls_hash", "expected"),
    [(USER_TLS.tls_hash, ["block 0", 200]), (b"", [400]), (b"\x00" * 32, [400])],
    ids=["the certificate's", "none", "another's"],
)
def test_under_mutual_tls_a_request_is_bound_to_the_clients_certificate(
    runner, channels, tls_hash, expected
):
    assert over_tls(runner, channels, tls_hash=tls_hash) == expected


def test_the_binding_is_looked_at_before_the_channel(runner, channels):
    both = {"tls": MUTUAL_TLS, "client_tls": USER_TLS}
    assert answers_to(runner, channels, asking(b"", channel="nowhere"), **both) == [400]


def test_grpc_knows_each_option_that_is_set():
    """It takes any name, and does nothing for one that it does not know."""
    library = Path(cygrpc.__file__).read_bytes()
    options = [*grpc_server._SERVER_OPTIONS, *grpc_client._CLIENT_OPTIONS]
    unknown = [name for name, _ in options if name.encode() not in library]
    assert not unknown


# Idle, many, slow, and the end.


@pytest.mark.slow
async def test_pings_keep_an_idle_stream(channels, channel):
    """At the third ping that comes too early, gRPC ends the connection."""
    pings = [
        ("grpc.keepalive_time_ms", 2_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]

    async with (
        serving(channels) as server,
        aio.insecure_channel(f"127.0.0.1:{server.port}", pings) as client,
    ):
        idle = client.stream_stream("/orderer.AtomicBroadcast/Deliver")()
        await idle.write(seek_envelope(USER, "chain-a", 1, ENDLESS))
        following = asyncio.create_task(idle.read())
        assert not (await asyncio.wait({following}, timeout=12))[0]  # six pings
        await asyncio.to_thread(channel.add)
        assert Block.FromString(read_answer(await following)).header.number == 1


def memory_mib():
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 2**20


@pytest.mark.campaign
@pytest.mark.timeout(900)
async def test_two_thousand_tails_all_get_the_next_block_in_bounded_memory(channels, channel):
    """A copy of the block for all of them at once would be 250 MiB."""
    metrics, tails = Metrics(), 2000
    received, sent = metrics.deliver_requests_received, metrics.deliver_blocks_sent

    async with serving(channels, metrics=metrics) as server:
        before = memory_mib()
        command = [
            sys.executable,
            "-m",
            "tests.ordering_osn.helpers.tails",
            str(server.port),
            str(tails),
            "3",
        ]
        clients = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        try:
            await becomes(lambda: received.value(*LABELS) == tails, 240)
            waiting, peak = memory_mib() - before, 0.0

            def all_sent():
                nonlocal peak
                peak = max(peak, memory_mib() - before)
                return sent.value(*LABELS) == 2 * tails

            await asyncio.to_thread(channel.add, b"x" * 1000)
            await asyncio.to_thread(channel.add, b"y" * 2**17)
            await becomes(all_sent, 240)
            await asyncio.to_thread(channel.add)
            counts, _ = await asyncio.wait_for(clients.communicate(), 240)
        finally:
            if clients.returncode is None:
                clients.kill()
    assert json.loads(counts) == {"[1, 2, 3, 200]": tails}
    assert waiting < 150, f"{tails} waiting tails took {waiting:.0f} MiB"
    assert peak < 225, f"sending 128 KiB to {tails} tails took {peak:.0f} MiB"
    assert channel.watchers == 0, "a stopped server still watches the chain"


LABELS = ("chain-a", "false", "block")


class Repeating:
    """A ledger of large blocks that uses no memory: they differ in their numbers only."""

    base = 0

    def __init__(self, size, height):
        self.height = height
        self._data = b"z" * size

    def read(self, number):
        return new_block(number, b"", [self._data]).SerializeToString()


@pytest.mark.slow
async def test_a_reader_that_stops_reading_holds_one_block_and_slows_nobody(channels, channel):
    """Without flow control the server would send it all 256 MiB.

    HTTP/2 windows and the kernel's buffers hold up to some tens of MiB in addition to its one block
    (`tcp_wmem` and `tcp_rmem`). The exact amount varies, so the bound is half of the blocks.
    """
    metrics, count = Metrics(), 256
    channel.ledger = Repeating(2**20, count)

    async with (
        served(channels, metrics=metrics) as client,
        aio.insecure_channel(
            client.address, [("grpc.max_receive_message_length", 100 << 20)]
        ) as other,
    ):
        stopped = other.stream_stream("/orderer.AtomicBroadcast/Deliver")()
        await stopped.write(seek_envelope(USER, "chain-a", 0, ENDLESS))
        assert Block.FromString(read_answer(await stopped.read())).header.number == 0
        # It stops reading here; flow control limits what is sent to it.
        request = seek_envelope(USER, "chain-a", 0, "newest")
        answers = numbers(await gathered(client.deliver(request), within_s=240))
        sent = metrics.deliver_blocks_sent.value(*LABELS) - count
        stopped.cancel()
    assert answers == [*blocks(0, count - 1), 200]
    assert sent < count / 2, f"{sent} blocks of 1 MiB were sent to the stalled reader"


async def test_a_server_stops_within_seconds_and_tells_its_tails(channels):
    async with serving(channels) as server, NodeClient(f"127.0.0.1:{server.port}") as client:
        request = seek_envelope(USER, "chain-a", 0, ENDLESS)
        streams = [client.deliver(request) for _ in range(50)]
        for stream in streams:
            await anext(stream)
        loop = asyncio.get_running_loop()
        began = loop.time()
        await server.stop(10.0)
        took = loop.time() - began
        ends = [await gathered(stream) for stream in streams]
    assert ends == [[503]] * 50
    assert took < 30


async def test_a_server_stops_though_a_reader_reads_nothing(channels, channel):
    for _ in range(16):
        channel.add(b"z" * 2**20)

    async with (
        serving(channels) as server,
        aio.insecure_channel(
            f"127.0.0.1:{server.port}", [("grpc.max_receive_message_length", 100 << 20)]
        ) as other,
    ):
        stopped = other.stream_stream("/orderer.AtomicBroadcast/Deliver")()
        await stopped.write(seek_envelope(USER, "chain-a", 0, ENDLESS))
        await stopped.read()
        await asyncio.wait_for(server.stop(0.5), 60)


@pytest.mark.parametrize("tls", [TlsFiles(), TlsFiles(b"no", b"key")], ids=["none", "no PEM"])
def test_tls_material_that_cannot_be_used_is_said_so(runner, channels, tls):
    with pytest.raises(UsageError):
        runner.run(Server(channels, tls=tls).start())


def test_more_streams_than_a_server_takes_are_told_so(runner, channels):
    async def ask():
        async with served(channels, streams_max=2) as client:
            request = seek_envelope(USER, "chain-a", 0, ENDLESS)
            held = [client.deliver(request) for _ in range(2)]
            for stream in held:
                await anext(stream)
            await refused(lambda: client.deliver(request), "RESOURCE_EXHAUSTED")
            await held[0].aclose()
            # When one stream has ended, another is accepted.
            async with asyncio.timeout(60):
                while True:
                    try:
                        return numbers(
                            await gathered(client.deliver(seek_envelope(USER, "chain-a", 0, 0)))
                        )
                    except ConnectionLost:
                        await asyncio.sleep(0.01)

    assert runner.run(ask()) == ["block 0", 200]
