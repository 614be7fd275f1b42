"""Broadcast over gRPC: each of Fabric's statuses, the stream's rules, and receipts."""

import asyncio
import json
import logging
from datetime import UTC, datetime, timedelta

import grpc
import pytest
from grpc import aio

from ordering_osn.api.broadcast import IN_FLIGHT_MAX
from ordering_osn.api.connection_errors import ConnectionLost
from ordering_osn.api.grpc_client import NodeClient
from ordering_osn.api.metrics import Metrics
from ordering_osn.api.receipt_request import receipt_envelope
from ordering_osn.api.responses import block_answer, read_answer, read_status, status_answer
from ordering_osn.chain.envelopes import canonical
from ordering_osn.chain.transactions import transaction_id
from ordering_osn.protos import (
    Block,
    BroadcastResponse,
    DeliverResponse,
    Envelope,
    Header,
    HeaderType,
    Payload,
)
from tests.ordering_osn.helpers.chains import (
    MUTUAL_TLS,
    STRANGER,
    USER,
    USER_TLS,
    SmallChannel,
    SmallChannels,
    gathered,
    served,
    serving,
    transaction,
)
from tests.ordering_osn.helpers.configs import real_envelopes
from tests.ordering_osn.helpers.loops import becomes


@pytest.fixture
def channels(tmp_path):
    opened = [SmallChannel(tmp_path, name) for name in ("chain-a", "chain-b")]
    yield SmallChannels(*opened)
    for channel in opened:
        channel.store.close()


def statuses(runner, channels, *sent, **options):
    """The statuses that one stream answers with."""

    async def ask():
        async with served(channels, **options) as client:
            return [status for status, _ in await gathered(client.broadcast(sent))]

    return runner.run(ask())


def ordered(channels, name="chain-a"):
    """The transactions in a chain's blocks."""
    store = channels.get(name).store
    return [
        data
        for number in range(1, store.height)
        for data in Block.FromString(store.read(number)).data.data
    ]


# Statuses.


def with_header(**parts):
    return canonical(Envelope(payload=canonical(Payload(header=Header(**parts)))))


def test_what_is_stored_is_a_success_and_its_bytes_are_those_that_were_sent(runner, channels):
    sent = real_envelopes()
    assert statuses(runner, channels, *sent) == [200] * 40
    assert ordered(channels) == sent


REFUSED = {
    "garbage": (b"\xff\xff\xff", 400),
    "empty": (b"", 400),
    "a payload that cannot be read": (canonical(Envelope(payload=b"\xff\xff")), 400),
    "no header": (canonical(Envelope(payload=canonical(Payload(data=b"x")))), 400),
    "no channel header": (with_header(signature_header=b"x"), 400),
    "a channel header that cannot be read": (with_header(channel_header=b"\xff\xff"), 400),
    "a CONFIG": (transaction(kind=HeaderType.CONFIG), 400),
    "a reader's request": (transaction(kind=HeaderType.DELIVER_SEEK_INFO), 400),
    "an ORDERER_TRANSACTION": (transaction(kind=HeaderType.ORDERER_TRANSACTION), 400),
    "no channel": (transaction(chain=""), 404),
    "an unknown channel": (transaction(chain="nowhere"), 404),
    "no writer's": (transaction(signer=STRANGER), 403),
    "unsigned": (canonical(Envelope(payload=Envelope.FromString(transaction()).payload)), 403),
}


@pytest.mark.parametrize(("envelope", "status"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused_has_fabrics_status_and_is_in_no_block(runner, channels, envelope, status):
    assert statuses(runner, channels, envelope) == [status]
    assert ordered(channels) == []


def test_a_chain_that_takes_nothing_is_unavailable(runner, channels):
    channels.get("chain-a").errored = True
    assert statuses(runner, channels, transaction()) == [503]


# The stream.


def test_the_first_answer_that_is_no_success_ends_the_stream(runner, channels):
    good = real_envelopes()[:3]
    assert statuses(runner, channels, *good[:2], b"\xff", good[2]) == [200, 200, 400]


async def test_nothing_behind_a_refused_envelope_is_let_in(channels):
    """All of them were sent before the first was answered."""
    good = real_envelopes()
    sent = [*good[:5], transaction(signer=STRANGER), *good[5:]]

    channels.stored = asyncio.Event()
    async with serving(channels) as server, aio.insecure_channel(f"127.0.0.1:{server.port}") as raw:
        call = raw.stream_stream("/orderer.AtomicBroadcast/Broadcast")()
        for envelope in sent:
            await call.write(envelope)
        await becomes(lambda: len(channels.submitted) == 6)
        channels.stored.set()
        found = [read_status(await call.read())[0] for _ in range(6)]
        assert await call.read() is aio.EOF
        assert await call.code() == grpc.StatusCode.OK
        assert found == [200] * 5 + [403]
    assert ordered(channels) == good[:5]
    assert len(channels.submitted) == 6


def test_a_client_hears_of_a_refusal_though_it_goes_on_sending(runner, channels):
    sent = [*real_envelopes()[:5], transaction(signer=STRANGER), *real_envelopes() * 50]
    assert statuses(runner, channels, *sent) == [200] * 5 + [403]


async def test_answers_come_in_the_order_of_the_envelopes_and_many_are_in_flight():
    class Backwards(SmallChannels):
        """Stores the envelopes in reverse order."""

        async def submit(self, envelope):
            number = int(envelope)
            arrived.append(number)
            if number == 9:
                for waiting in reversed(turns):
                    waiting.set()
            else:
                turns.append(asyncio.Event())
                await turns[-1].wait()
            return 200, f"number {number}"

    arrived, turns = [], []
    sent = [b"%d" % number for number in range(10)]

    async with served(Backwards()) as client:
        assert await gathered(client.broadcast(sent)) == [
            (200, f"number {number}") for number in range(10)
        ]
    assert arrived == list(range(10))


async def test_what_was_in_flight_behind_one_that_could_not_be_stored_gets_no_answer():
    class Away(SmallChannels):
        """The log fails at the second of three envelopes."""

        async def submit(self, envelope):
            arrived.append(envelope)
            if len(arrived) == 3:
                all_here.set()
            await all_here.wait()
            return (503, "the log is away") if envelope == b"b" else (200, "")

    arrived, all_here = [], asyncio.Event()

    async with serving(Away()) as server, aio.insecure_channel(f"127.0.0.1:{server.port}") as raw:
        call = raw.stream_stream("/orderer.AtomicBroadcast/Broadcast")()
        for envelope in (b"a", b"b", b"c"):
            await call.write(envelope)
        assert [read_status(answer)[0] async for answer in call] == [200, 503]


@pytest.mark.slow
async def test_no_more_than_so_many_envelopes_of_a_stream_are_in_flight(channels):
    sent = IN_FLIGHT_MAX + 100

    channels.stored = asyncio.Event()
    async with served(channels) as client:
        many = [transaction() for _ in range(sent)]
        answering = asyncio.create_task(gathered(client.broadcast(many)))
        await becomes(lambda: len(channels.submitted) >= IN_FLIGHT_MAX)
        assert not (await asyncio.wait({answering}, timeout=0.2))[0]
        in_flight = len(channels.submitted)
        channels.stored.set()
        answers = await answering
    assert in_flight <= IN_FLIGHT_MAX + 1
    assert answers == [(200, "")] * sent


@pytest.mark.slow
async def test_large_envelopes_are_bounded_by_their_bytes(channels):
    sent = [transaction(b"x" * (5 << 20)) for _ in range(8)]

    channels.stored = asyncio.Event()
    async with served(channels) as client:
        answering = asyncio.create_task(gathered(client.broadcast(sent)))
        await becomes(lambda: len(channels.submitted) >= 4)
        assert not (await asyncio.wait({answering}, timeout=0.3))[0]
        in_flight = len(channels.submitted)
        channels.stored.set()
        answers = await answering
    assert in_flight == 4
    assert answers == [(200, "")] * 8


def test_a_panic_ends_its_stream_and_no_other(runner, channels, caplog):
    class Panicking(SmallChannels):
        """Raises an unexpected error on one envelope."""

        async def submit(self, envelope):
            if envelope == b"panic":
                raise ZeroDivisionError("nobody foresaw it")
            return await channels.submit(envelope)

    good = real_envelopes()

    async def ask():
        async with served(Panicking()) as client:
            going = asyncio.Queue()

            async def slowly():
                while (envelope := await going.get()) is not None:
                    yield envelope

            other = client.broadcast(slowly())
            going.put_nowait(good[0])
            assert await anext(other) == (200, "")
            failing = client.broadcast([good[1], b"panic", good[2]])
            statuses = [(await anext(failing))[0]]
            with pytest.raises(ConnectionLost, match="INTERNAL"):
                await anext(failing)
            going.put_nowait(good[3])
            going.put_nowait(None)
            return statuses, await gathered(other)

    with caplog.at_level(logging.CRITICAL, logger="amcast.osn"):
        assert runner.run(ask()) == ([200], [(200, "")])
    assert ordered(channels) == [good[0], good[1], good[3]]


async def test_a_client_that_leaves_does_not_undo_what_it_sent(channels):
    metrics = Metrics()
    name = ("orderer.AtomicBroadcast", "Broadcast")

    channels.stored = asyncio.Event()
    async with served(channels, metrics=metrics) as client:
        stream = client.broadcast(real_envelopes()[:3])
        first = asyncio.ensure_future(anext(stream))
        await becomes(lambda: len(channels.submitted) == 3)
        first.cancel()
        await asyncio.wait({first})
        await stream.aclose()
        completed = metrics.grpc_server_stream_requests_completed
        await becomes(lambda: completed.value(*name, "Canceled") == 1)
        channels.stored.set()
        await becomes(lambda: len(ordered(channels)) == 3)
    assert ordered(channels) == real_envelopes()[:3]


async def test_a_server_stops_within_seconds_though_streams_are_open(channels):
    async with serving(channels) as server, NodeClient(f"127.0.0.1:{server.port}") as client:
        going = asyncio.Queue()

        async def slowly():
            while True:
                yield await going.get()

        going.put_nowait(transaction())
        stream = client.broadcast(slowly())
        assert await anext(stream) == (200, "")
        await asyncio.wait_for(server.stop(0.2), 60)
        with pytest.raises(ConnectionLost):
            await anext(stream)


def test_streams_are_counted(runner, channels):
    metrics = Metrics()
    statuses(runner, channels, *real_envelopes()[:3], metrics=metrics)
    name = ("orderer.AtomicBroadcast", "Broadcast")
    assert metrics.grpc_server_stream_requests_received.value(*name) == 1
    assert metrics.grpc_server_stream_messages_received.value(*name) == 3
    assert metrics.grpc_server_stream_messages_sent.value(*name) == 3
    assert metrics.grpc_server_stream_requests_completed.value(*name, "OK") == 1


# Answers, as bytes.


@pytest.mark.parametrize("info", ["", "why", "é" * 100])
@pytest.mark.parametrize("status", [200, 400, 403, 404, 500, 503])
def test_answers_are_what_the_published_messages_say(status, info):
    raw = status_answer(status, info)
    assert BroadcastResponse.FromString(raw) == BroadcastResponse(status=status, info=info)
    assert read_status(raw) == (status, info)
    assert read_answer(DeliverResponse(status=status).SerializeToString()) == status


@pytest.mark.parametrize("size", [0, 1, 127, 128, 20_000, 3 << 20])
def test_a_block_is_sent_as_the_bytes_that_stand_in_the_ledger(size):
    block = Block()
    block.data.data.append(b"x" * size)
    raw = block.SerializeToString()
    assert DeliverResponse.FromString(block_answer(raw)).block == block
    assert read_answer(block_answer(raw)) == raw


@pytest.mark.parametrize("raw", [b"\x12\x05abc", b"\x12", b"\x12\xff", b"\x08\xc8"])
def test_half_an_answer_is_an_error(raw):
    with pytest.raises(ValueError, match="answer"):
        read_answer(raw)


# Receipts.


def wait_for(runner, channels, request, **options):
    async def ask():
        async with served(channels, **options) as client:
            return await client.wait(request)

    return runner.run(ask())


def test_a_receipt_names_the_block_and_the_place_in_it(runner, channels):
    sent = real_envelopes()[:3]
    statuses(runner, channels, *sent)
    answer = wait_for(
        runner, channels, receipt_envelope(USER, "chain-a", transaction_id(sent[1]), 1000)
    )
    assert answer == {"status": 200, "chain": "chain-a", "block": 2, "index": 0}


def test_a_transaction_that_stands_in_no_block_in_time_is_not_found(runner, channels):
    answer = wait_for(runner, channels, receipt_envelope(USER, "chain-a", "0" * 64, 50))
    assert answer["status"] == 404
    assert (answer["chain"], answer["block"], answer["index"]) == ("chain-a", None, None)


def asked_for(*, who, chain="chain-a", tx="0", wait=1, minutes_ago=0):
    now = datetime.now(UTC) - timedelta(minutes=minutes_ago)
    return receipt_envelope(who, chain, tx, wait, now=now)


REQUESTS = {  # made only in the test: a request may be no older than 15 minutes
    "garbage": (lambda: b"\xff", 400),
    "an old one": ({"who": USER, "minutes_ago": 20}, 400),
    "an unknown chain": ({"who": USER, "chain": "nowhere"}, 404),
    "no reader": ({"who": STRANGER}, 403),
    "no ID": ({"who": USER, "tx": ""}, 400),
    "too long a wait": ({"who": USER, "wait": 10**9}, 400),
    "less than no wait": ({"who": USER, "wait": -1}, 400),
    "no number": ({"who": USER, "wait": True}, 400),
    "no JSON": (lambda: transaction(b"{"), 400),
    "no JSON, of no reader": (lambda: transaction(b"{", signer=STRANGER), 403),
    "JSON without end": (lambda: transaction(b"[" * 60_000), 400),
    "too large": (lambda: transaction(b"[]," * 30_000), 400),
    "no object": (lambda: transaction(json.dumps([1]).encode()), 400),
    "no tag": (lambda: transaction(b'{"transaction": "0", "timeout_ms": 1}'), 400),
}


@pytest.mark.parametrize(("receipt_request", "status"), REQUESTS.values(), ids=REQUESTS)
def test_a_request_for_a_receipt_is_checked_as_a_readers(runner, channels, receipt_request, status):
    is_signed = isinstance(receipt_request, dict)
    envelope = asked_for(**receipt_request) if is_signed else receipt_request()
    answer = wait_for(runner, channels, envelope)
    assert answer["status"] == status
    assert answer["info"]


def test_under_mutual_tls_a_request_for_a_receipt_is_bound_to_the_certificate(runner, channels):
    both = {"tls": MUTUAL_TLS, "client_tls": USER_TLS}
    unbound = receipt_envelope(USER, "chain-a", "0", 1)
    assert wait_for(runner, channels, unbound, **both)["status"] == 400
    bound = receipt_envelope(USER, "chain-a", "0", 1, tls_hash=USER_TLS.tls_hash)
    assert wait_for(runner, channels, bound, **both)["status"] == 404
