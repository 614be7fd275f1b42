"""Deliver over gRPC: each of Fabric's statuses and kinds of seek, one row each."""

import asyncio
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from ordering_osn.api.metrics import Metrics
from ordering_osn.api.seek import ENDLESS, seek_envelope
from ordering_osn.chain.envelopes import canonical
from ordering_osn.protos import (
    Block,
    Envelope,
    Header,
    Payload,
    SeekInfo,
    SeekNewest,
    SeekOldest,
    SeekPosition,
    SeekSpecified,
)
from tests.ordering_osn.helpers.chains import (
    STRANGER,
    USER,
    NoReaders,
    answers_of,
    answers_to,
    asking,
    blocks,
    gathered,
    numbers,
    served,
)
from tests.ordering_osn.helpers.loops import becomes

OLDEST, NEWEST = SeekPosition(oldest=SeekOldest()), SeekPosition(newest=SeekNewest())


def block_at(number):
    return SeekPosition(specified=SeekSpecified(number=number))


def minutes_from_now(minutes):
    return datetime.now(UTC) + timedelta(minutes=minutes)


def with_header(raw):
    return canonical(Envelope(payload=canonical(Payload(header=Header(channel_header=raw)))))


def signed_otherwise(signature):
    """A request under another signature than its own."""
    envelope = Envelope.FromString(seek_envelope(USER, "chain-a", "oldest"))
    return canonical(Envelope(payload=envelope.payload, signature=signature))


def created_by(creator):
    nobody = SimpleNamespace(creator=creator, nonce=USER.nonce, sign=USER.sign)
    return seek_envelope(nobody, "chain-a", "oldest")


AWAY = {"channel": "nowhere"}
# In the order of the checks: the request, its status, and whether the chain has failed.
CHECKS = {
    "garbage": (lambda: b"\xff\xff\xff", 400, False),
    "no header": (lambda: canonical(Envelope(payload=canonical(Payload(data=b"x")))), 400, False),
    "no timestamp": (lambda: with_header(b"\x22\x07chain-a"), 400, False),
    "an old one for nowhere": (lambda: asking(b"", now=minutes_from_now(-20), **AWAY), 400, False),
    "no seek info for nowhere": (lambda: asking(b"\xff\xff", channel="nowhere"), 404, False),
    "no seek info for no name": (lambda: asking(b"\xff\xff", channel=""), 404, False),
    "no seek info": (lambda: asking(b"\xff\xff"), 400, True),
    "a stranger's of a failed chain": (lambda: seek_envelope(STRANGER, "chain-a", 0, 0), 503, True),
    "a stranger's without start": (lambda: asking(b"", signer=STRANGER), 403, False),
    "an unsigned one": (lambda: signed_otherwise(b""), 403, False),
    "one with another's signature": (lambda: signed_otherwise(USER.sign(b"other")), 403, False),
    "no creator": (lambda: created_by(b""), 403, False),
    "no creator that can be read": (lambda: created_by(b"\xff\xff"), 403, False),
    "no certificate": (lambda: created_by(b"\x0a\x07Org1MSP\x12\x02no"), 403, False),
    "neither start nor stop": (lambda: asking(canonical(SeekInfo())), 400, False),
    "no stop": (lambda: asking(canonical(SeekInfo(start=OLDEST))), 400, False),
    "no start": (lambda: asking(canonical(SeekInfo(stop=NEWEST))), 400, False),
}


@pytest.mark.parametrize("case", CHECKS)
def test_a_request_is_checked_in_this_order_and_refused_with_this_status(
    runner, channels, channel, case
):
    request, status, channel.errored = CHECKS[case]
    assert answers_to(runner, channels, request()) == [status]


@pytest.mark.parametrize(
    ("minutes", "status"), [(-20, 400), (-16, 400), (16, 400), (-14, 200), (14, 200)]
)
def test_a_timestamp_is_within_a_quarter_of_an_hour(runner, channels, minutes, status):
    request = seek_envelope(USER, "chain-a", "oldest", "oldest", now=minutes_from_now(minutes))
    assert answers_to(runner, channels, request)[-1] == status


def test_an_unknown_channel_of_a_long_name_is_not_found_and_not_quoted_whole(runner, channels):
    (answer,) = answers_of(runner, channels, asking(b"", channel="\0" * 60_000))
    assert answer == 404
    assert answer.info.startswith("this node has no channel")
    assert answer.info.endswith("(60000 characters)")


# The rows D1 to D16. The chain of the table has the blocks 0 to 9.


@pytest.mark.parametrize(
    ("seek", "expected"),
    [
        (("oldest", "oldest", True), ["block 0", 200]),  # D1
        ((5, 4, True), [400]),  # D4
        *(((7, 9 + beyond, False), [*blocks(7, 9), 404]) for beyond in (1, 2, 1000)),  # D5
        ((10, 10, False), [404]),  # D7
        *(((11, stop, True), [404]) for stop in (12, 9, ENDLESS, "newest")),  # D8
        *(((11, stop, False), [404]) for stop in (12, 9, ENDLESS, "newest")),
        # To the next block, without waiting for it: what there is.
        (("oldest", "next", False), [*blocks(0, 9), 200]),
        ((1, "next", False), [*blocks(1, 9), 200]),
        (("newest", "next", False), ["block 9", 200]),
        (("next", "next", False), [404]),
    ],
)
def test_d1_d4_d5_d7_d8_a_seek_is_answered_as_the_table_says(
    runner, channels, channel, seek, expected
):
    channel.grow(10)
    start, stop, waits = seek
    request = seek_envelope(USER, "chain-a", start, stop, block_until_ready=waits)
    assert answers_to(runner, channels, request) == expected


def test_d2_from_newest_to_newest_is_one_block_though_another_lands(runner, channels, channel):
    channel.grow(5)

    class Landing:
        """A ledger that grows by one block with each read."""

        base = 0

        @property
        def height(self):
            return channel.store.height

        def read(self, number):
            channel.add()
            return channel.store.read(number)

    channel.ledger = Landing()
    request = seek_envelope(USER, "chain-a", "newest", "newest")
    assert answers_to(runner, channels, request) == ["block 4", 200]
    assert channel.store.height == 6


def test_d3_from_5_to_newest_of_10_is_five_blocks_and_counted(runner, channels, channel):
    channel.grow(10)
    metrics = Metrics()
    request = seek_envelope(USER, "chain-a", 5, "newest")
    assert answers_to(runner, channels, request, metrics=metrics) == [*blocks(5, 9), 200]
    labels = ("chain-a", "false", "block")
    assert metrics.deliver_requests_received.value(*labels) == 1
    assert metrics.deliver_blocks_sent.value(*labels) == 5
    assert metrics.deliver_requests_completed.value(*labels, "true") == 1
    assert metrics.deliver_streams_opened.value() == 1
    assert metrics.deliver_streams_closed.value() == 1


@pytest.mark.parametrize("stop", [block_at(0), NEWEST, SeekPosition()])
def test_d10_a_start_that_names_no_block_is_not_found(runner, channels, stop):
    info = SeekInfo(start=SeekPosition(), stop=stop)
    assert answers_to(runner, channels, asking(canonical(info))) == [404]


def following(runner, channels, *events, ready=1, start=0, stop=ENDLESS, best_effort=False,
              **options):  # fmt: skip
    """Follow a stream: so many answers are there, each further one follows an event; to its end."""

    async def ask():
        async with served(channels, **options) as client:
            request = seek_envelope(USER, "chain-a", start, stop, best_effort=best_effort)
            stream = client.deliver(request)
            answers = [await anext(stream) for _ in range(ready)]
            for event in events:
                waiting = asyncio.create_task(anext(stream))
                assert not (await asyncio.wait({waiting}, timeout=0.02))[0]
                await asyncio.to_thread(event)
                answers.append(await asyncio.wait_for(waiting, 60))
            return numbers([*answers, *await gathered(stream)])

    return runner.run(ask())


@pytest.fixture
def fails(channel):
    return lambda: setattr(channel, "errored", True)


def test_d6_past_the_end_waits_and_delivers_as_blocks_are_cut(runner, channels, channel):
    channel.grow(3)
    answers = following(runner, channels, *[channel.add] * 2, ready=2, start=1, stop=4)
    assert answers == [*blocks(1, 4), 200]


def test_d7_from_the_next_block_waits_for_it(runner, channels, channel):
    channel.grow(3)
    answers = following(runner, channels, channel.add, ready=0, start=3, stop=3)
    assert answers == ["block 3", 200]


def test_d11_d13_to_the_largest_number_is_a_tail_that_ends_when_the_chain_fails(
    runner, channels, channel, fails
):
    answers = following(runner, channels, *[channel.add] * 8, fails)
    assert answers == [*blocks(0, 8), 503]


async def test_d12_a_client_that_leaves_while_it_waits_ends_its_stream(channels):
    metrics = Metrics()

    async with served(channels, metrics=metrics) as client:
        stream = client.deliver(seek_envelope(USER, "chain-a", 0, ENDLESS))
        await anext(stream)
        await stream.aclose()
        await becomes(lambda: metrics.deliver_streams_closed.value() == 1)
    completed = metrics.deliver_requests_completed
    assert completed.value("chain-a", "false", "block", "false") == 1
    assert completed.value("chain-a", "false", "block", "true") == 0


def test_d14_best_effort_goes_on_though_the_chain_has_failed(runner, channels, channel, fails):
    def again():
        channel.errored = False
        fails()
        channel.add()

    fails()
    answers = following(runner, channels, channel.add, again, stop=2, best_effort=True)
    assert answers == [*blocks(0, 2), 200]


def test_d15_a_config_that_denies_is_forbidden_before_the_next_block(runner, channels, channel):
    def denies():
        channel.config = NoReaders(channel.config.sequence + 1)
        channel.add()

    assert following(runner, channels, denies) == ["block 0", 403]


def test_d15_an_identity_that_expires_is_forbidden_before_the_next_block(runner, channels, channel):
    times = [datetime.now(UTC)]

    def expires():
        times.append(datetime(2036, 11, 19, tzinfo=UTC))  # User1's certificate ended yesterday
        channel.add()

    answers = following(runner, channels, expires, clock=lambda: times[-1])
    assert answers == ["block 0", 403]


def test_an_expired_identity_is_forbidden_from_the_start(runner, channels):
    now = datetime(2036, 11, 19, tzinfo=UTC)
    request = seek_envelope(USER, "chain-a", "oldest", "oldest", now=now)
    assert answers_to(runner, channels, request, clock=lambda: now) == [403]


def test_the_policy_is_asked_once_a_config_and_not_once_a_block(runner, channels, channel):
    channel.grow(50)
    real, paths = channel.config, []

    class Counting:
        sequence, maintenance = real.sequence, real.maintenance
        parameters, policies = real.parameters, None

        def evaluate(self, path, signed):
            paths.append(path)
            real.policies.evaluate(path, signed)

    counting = Counting()
    counting.policies = counting
    channel.config = counting
    request = seek_envelope(USER, "chain-a", "oldest", "newest")
    assert answers_to(runner, channels, request) == [*blocks(0, 49), 200]
    assert paths == ["/Channel/Readers"]


def test_d16_a_second_request_on_the_stream_is_served(runner, channels, channel):
    channel.grow(4)
    first = seek_envelope(USER, "chain-a", "oldest", 1)
    second = seek_envelope(USER, "chain-a", 3, 3)
    assert answers_to(runner, channels, first, second, first) == [
        "block 0", "block 1", 200, "block 3", 200, "block 0", "block 1", 200,
    ]  # fmt: skip


def test_the_first_status_that_is_no_success_ends_the_stream(runner, channels):
    good = seek_envelope(USER, "chain-a", "oldest", "oldest")
    bad = seek_envelope(USER, "nowhere", "oldest", "oldest")
    assert answers_to(runner, channels, good, bad, good) == ["block 0", 200, 404]


def test_a_pruned_block_is_not_found_and_oldest_is_the_oldest_kept(runner, channels, channel):
    channel.grow(8)

    class Pruned:
        """A ledger whose first blocks were pruned."""

        base, height = 5, 8
        read = channel.store.read

    channel.ledger = Pruned()
    assert answers_to(runner, channels, seek_envelope(USER, "chain-a", 4, 6)) == [404]
    request = seek_envelope(USER, "chain-a", "oldest", 6)
    assert answers_to(runner, channels, request) == [*blocks(5, 6), 200]


def test_headers_alone_are_sent_to_who_asks_for_them_but_a_config_block_is_whole(
    runner, channels, channel
):
    channel.grow(2)
    info = SeekInfo(start=OLDEST, stop=NEWEST, content_type=SeekInfo.HEADER_WITH_SIG)
    config, bare, status = answers_of(runner, channels, asking(canonical(info)))
    assert config == channel.ledger.read(0)
    whole, bare = Block.FromString(channel.ledger.read(1)), Block.FromString(bare)
    assert bare.header == whole.header
    assert bare.metadata == whole.metadata
    assert not bare.data.data
    assert status == 200


def test_a_reason_longer_than_trailers_may_be_is_cut(runner, channels, channel):
    def read(number):
        raise OSError(f"block {number}: " + "ä" * 20_000)

    channel.ledger = SimpleNamespace(base=0, height=1, read=read)
    (answer,) = answers_of(runner, channels, seek_envelope(USER, "chain-a", 0, 0))
    assert answer == 503
    assert answer.info.startswith("block 0: ää")
    assert len(answer.info.encode()) < 1100
