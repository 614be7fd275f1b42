"""Streams of strangers over gRPC: bounded, and they keep nobody out who has a right."""

import asyncio
from contextlib import AsyncExitStack
from functools import partial

import grpc
import pytest
from grpc import aio

from ordering_osn.api.connection_errors import ConnectionLost
from ordering_osn.api.grpc_client import NodeClient
from ordering_osn.api.metrics import Metrics
from ordering_osn.api.receipt_request import receipt_envelope
from ordering_osn.api.seek import ENDLESS, seek_envelope
from ordering_osn.api.streams import ClientStreams
from tests.ordering_osn.helpers.chains import (
    CLIENT_TLS,
    MUTUAL_TLS,
    ORDERER,
    SERVER_TLS,
    SMALL_WINDOW,
    USER,
    USER_TLS,
    SmallChannels,
    gathered,
    numbers,
    refused,
    served,
    serving,
    transaction,
)
from tests.ordering_osn.helpers.loops import becomes

METHODS = (
    "/orderer.AtomicBroadcast/Broadcast",
    "/orderer.AtomicBroadcast/Deliver",
    "/amcast.osn.Receipts/Wait",
    "/amcast.osn.MultiChain/BroadcastMulti",
    "/amcast.osn.MultiChain/DeliverMulti",
    "/amcast.osn.MultiChain/Status",
    "/amcast.osn.MultiChain/LogEnd",
)


def deliver(client, *, signer=USER, stop=0, **options):
    return client.deliver(seek_envelope(signer, "chain-a", 0, stop, **options))


@pytest.mark.parametrize("method", METHODS)
def test_a_stream_without_a_request_is_ended(runner, channels, method):
    """Also one whose client declares a single request: gRPC would wait for it without end."""

    async def ask():
        async with (
            serving(channels, streams=ClientStreams(first_s=0.05)) as server,
            aio.insecure_channel(f"127.0.0.1:{server.port}") as stranger,
        ):
            call = stranger.stream_stream(method)()
            async with asyncio.timeout(60):
                return await call.code(), await call.details()

    code, details = runner.run(ask())
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "no request that could be granted came within 0.05 s" in details


def test_strangers_who_wait_keep_nobody_out_at_their_own_address(runner, channels):
    """Ten times as many as may wait: the oldest make room, who asks at once is served and stays."""

    async def ask():
        limits = ClientStreams(waiting_max=5, grace_s=0)
        async with AsyncExitStack() as stack:
            server = await stack.enter_async_context(serving(channels, streams=limits))
            address = f"127.0.0.1:{server.port}"
            client = await stack.enter_async_context(NodeClient(address))
            stranger = await stack.enter_async_context(aio.insecure_channel(address))
            tail = deliver(client, stop=ENDLESS)
            assert numbers([await anext(tail)]) == ["block 0"]
            writing = asyncio.Event()

            async def envelopes():
                yield transaction()
                await writing.wait()
                yield transaction()

            writer = client.broadcast(envelopes())
            assert (await anext(writer))[0] == 200
            idle = [stranger.stream_stream(METHODS[number % 2])() for number in range(50)]
            await becomes(lambda: sum(call.done() for call in idle) >= 45)
            answers = numbers(await gathered(deliver(client)))
            await becomes(lambda: sum(call.done() for call in idle) >= 45)
            codes = {await call.code() for call in idle if call.done()}
            writing.set()
            rest = [status for status, _ in await gathered(writer)]
            following = numbers([await anext(tail)])
            for call in idle:
                call.cancel()
            await tail.aclose()
            return answers, codes, rest, following, limits

    answers, codes, rest, following, limits = runner.run(ask())
    assert answers == ["block 0", 200]
    assert codes == {grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert (rest, following) == ([200], ["block 1"])
    assert not limits._granted


def test_a_client_has_so_many_streams_and_others_have_theirs(runner, channels):
    async def ask():
        limits = ClientStreams(client_max=2)
        async with served(channels, streams=limits) as client:
            held = [deliver(client, stop=ENDLESS) for _ in range(2)]
            for stream in held:
                await anext(stream)
            (refused,) = await gathered(deliver(client))
            other = numbers(await gathered(deliver(client, signer=ORDERER)))
            await held[0].aclose()
            await becomes(lambda: sum(limits._granted.values()) == 1)
            again = numbers(await gathered(deliver(client)))
            await held[1].aclose()
            return refused, refused.info, other, again

    refused, info, other, again = runner.run(ask())
    assert (refused, "2 streams" in info) == (503, True)
    assert other == again == ["block 0", 200]


def test_under_mutual_tls_the_certificate_tells_who_has_a_stream(runner, channels):
    """Its streams are counted before any request, and not ended for others."""

    async def ask():
        limits = ClientStreams(client_max=2, waiting_max=0, grace_s=0)
        options = {"tls": MUTUAL_TLS, "client_tls": USER_TLS, "streams": limits}
        async with served(channels, **options) as client:
            idle = [client._channel.stream_stream(METHODS[1])() for _ in range(2)]
            await becomes(lambda: sum(limits._granted.values()) == 2)
            with_hash = partial(deliver, client, tls_hash=USER_TLS.tls_hash)
            await refused(with_hash, "this client has 2 streams")
            ended = [call.done() for call in idle]
            for call in idle:
                call.cancel()
            return ended

    assert runner.run(ask()) == [False, False]


def test_requests_for_receipts_are_counted_while_they_wait(runner, channels):
    async def ask():
        limits = ClientStreams(client_max=1)
        async with served(channels, streams=limits) as client:
            request = receipt_envelope(USER, "chain-a", "f" * 64, 60_000)
            waiting = asyncio.create_task(client.wait(request))
            await becomes(lambda: limits._granted)
            with pytest.raises(ConnectionLost, match="RESOURCE_EXHAUSTED"):
                await client.wait(request)
            waiting.cancel()

    runner.run(ask())


@pytest.mark.slow
def test_stalled_readers_of_a_client_are_bounded_and_others_go_on(runner, channels, channel):
    """Of one client and chain; what they hold is bounded, the next ones are told why."""
    channel.add(b"z" * 2**22)
    request = seek_envelope(USER, "chain-a", 1, 1)

    async def ask():
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(served(channels))
            stalled = []
            for _ in range(8):
                channel_of = aio.insecure_channel(client.address, SMALL_WINDOW)
                await stack.enter_async_context(channel_of)
                for _ in range(2):
                    stalled.append(channel_of.stream_stream(METHODS[1])())
                    await stalled[-1].write(request)
            other = numbers(await gathered(deliver(client, signer=ORDERER)))
            async with asyncio.timeout(60):
                while True:
                    (answer, *_) = await gathered(client.deliver(request))
                    if isinstance(answer, int):
                        break
            for call in stalled:
                call.cancel()
            return other, answer, answer.info

    other, refused, info = runner.run(ask())
    assert other == ["block 0", 200]
    assert (refused, "have stopped reading" in info) == (503, True)


@pytest.mark.parametrize(
    ("host", "secrets"),
    [("127.0.0.1", (None, None)), ("::1", (None, None)), ("127.0.0.1", (SERVER_TLS, CLIENT_TLS))],
    ids=["IPv4", "IPv6", "TLS"],
)
def test_a_client_that_does_not_read_loses_its_connection(runner, channel, caplog, host, secrets):
    """All its streams, and what gRPC holds for them; others keep theirs."""
    channel.add(b"z" * 2**22)
    tls, client_tls = secrets
    metrics, limits = Metrics(), ClientStreams(stalled_s=2.0)
    name = [("grpc.ssl_target_name_override", "orderer.example.com")]

    async def ask():
        async with AsyncExitStack() as stack:
            server = await stack.enter_async_context(
                serving(SmallChannels(channel), tls=tls, host=host, metrics=metrics, streams=limits)
            )
            address = f"[{host}]:{server.port}" if ":" in host else f"{host}:{server.port}"
            honest = NodeClient(address, tls=client_tls, name="orderer.example.com")
            client = await stack.enter_async_context(honest)
            tail = client.deliver(seek_envelope(USER, "chain-a", 2, ENDLESS))
            following = asyncio.create_task(anext(tail))
            await becomes(lambda: limits._granted)
            if tls is None:
                stranger = aio.insecure_channel(address, SMALL_WINDOW)
            else:
                credentials = grpc.ssl_channel_credentials(client_tls.authorities)
                stranger = aio.secure_channel(address, credentials, SMALL_WINDOW + name)
            await stack.enter_async_context(stranger)
            stalled = [stranger.stream_stream(METHODS[1])() for _ in range(3)]
            for call in stalled:
                await call.write(seek_envelope(USER, "chain-a", 1, 1))
            async with asyncio.timeout(60):
                codes = {await call.code() for call in stalled}
            await becomes(lambda: sum(limits._granted.values()) == 1)
            channel.add()
            return codes, numbers([await following]), server

    codes, following, server = runner.run(ask())
    assert codes == {grpc.StatusCode.UNAVAILABLE}
    assert following == ["block 2"]
    assert not server._deliver._send_window._stalled
    assert metrics.stalled_connections_ended.value() == 1
    (said,) = [entry.getMessage() for entry in caplog.records if entry.levelname == "WARNING"]
    assert "it has not read 4195" in said
    assert said.endswith("that were sent to it within 2.11 s")
