"""Deliver over gRPC: each of Fabric's statuses and kinds of seek, one row each."""

import asyncio
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from ordering_osn.api.metrics import Metrics
from ordering_osn.api.seek import ENDLESS, seek_envelope
from ordering_osn.chain.envelopes import canonical
from ordering_osn.config.policies import PolicyNotMet
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
    SmallChannel,
    SmallChannels,
    asking,
    blocks,
    gathered,
    numbers,
    served,
    until,
)

OLDEST, NEWEST = SeekPosition(oldest=SeekOldest()), SeekPosition(newest=SeekNewest())


@pytest.fixture(scope="module")
def thousand(tmp_path_factory):
    channel = SmallChannel(tmp_path_factory.mktemp("thousand"))
    channel.grow(1000)
    yield channel
    channel.store.close()


def block_at(number):
    return SeekPosition(specified=SeekSpecified(number=number))


def answers_to(runner, channels, *requests, **options):
    """Return the answers of one stream to these requests, sent one after another."""

    async def ask():
        async with served(channels, **options) as client:
            return numbers(await gathered(client.deliver(*requests)))

    return runner.run(ask())


# The checks, in their order.


@pytest.mark.parametrize(
    "request_bytes",
    {
        "garbage where the envelope should be": b"\xff\xff\xff",
        "an empty message": b"",
        "a payload that cannot be read": canonical(Envelope(payload=b"\xff\xff")),
        "no header": canonical(Envelope(payload=canonical(Payload(data=b"x")))),
        "a channel header that cannot be read": canonical(
            Envelope(payload=canonical(Payload(header=Header(channel_header=b"\xff\xff"))))
        ),
    }.items(),
    ids=lambda row: row[0],
)
def test_what_cannot_be_read_is_a_bad_request(runner, channels, request_bytes):
    assert answers_to(runner, channels, request_bytes[1]) == [400]


def test_a_channel_header_without_a_timestamp_is_a_bad_request(runner, channels):
    payload = Payload(header=Header(channel_header=b"\x22\x07chain-a"), data=b"")
    assert answers_to(runner, channels, canonical(Envelope(payload=canonical(payload)))) == [400]


@pytest.mark.parametrize(
    ("minutes", "status"), [(-20, 400), (-16, 400), (16, 400), (-14, 200), (14, 200)]
)
def test_a_timestamp_is_within_a_quarter_of_an_hour(runner, channels, minutes, status):
    now = datetime.now(UTC) + timedelta(minutes=minutes)
    request = seek_envelope(USER, "chain-a", "oldest", "oldest", now=now)
    assert answers_to(runner, channels, request)[-1] == status


def test_the_time_is_looked_at_before_the_channel(runner, channels):
    old = datetime.now(UTC) - timedelta(minutes=20)
    assert answers_to(runner, channels, asking(b"", channel="nowhere", now=old)) == [400]


@pytest.mark.parametrize("name", ["nowhere", ""])
def test_an_unknown_channel_is_not_found_before_the_seek_info_is_looked_at(runner, channels, name):
    assert answers_to(runner, channels, asking(b"\xff\xff", channel=name)) == [404]


def test_a_seek_info_that_cannot_be_read_is_a_bad_request_though_the_chain_has_failed(
    runner, channels, channel
):
    channel.errored = True
    assert answers_to(runner, channels, asking(b"\xff\xff")) == [400]


def test_a_failed_chain_sends_strict_readers_away_before_their_policy_is_looked_at(
    runner, channels, channel
):
    channel.errored = True
    request = seek_envelope(STRANGER, "chain-a", "oldest", "newest")
    assert answers_to(runner, channels, request) == [503]


@pytest.mark.parametrize("data", [b"", canonical(SeekInfo(start=OLDEST))])
def test_who_is_no_reader_is_forbidden_before_start_and_stop_are_looked_at(runner, channels, data):
    assert answers_to(runner, channels, asking(data, signer=STRANGER)) == [403]


def test_an_unsigned_request_is_forbidden(runner, channels):
    envelope = Envelope.FromString(seek_envelope(USER, "chain-a", "oldest"))
    assert answers_to(runner, channels, canonical(Envelope(payload=envelope.payload))) == [403]


def test_a_signature_over_other_bytes_is_forbidden(runner, channels):
    envelope = Envelope.FromString(seek_envelope(USER, "chain-a", "oldest"))
    other = Envelope.FromString(seek_envelope(USER, "chain-a", "oldest"))
    envelope.signature = other.signature
    assert answers_to(runner, channels, canonical(envelope)) == [403]


@pytest.mark.parametrize("creator", [b"", b"\xff\xff", b"\x0a\x07Org1MSP\x12\x02no"])
def test_a_creator_that_is_no_identity_is_forbidden(runner, channels, creator):
    nobody = SimpleNamespace(creator=creator, nonce=USER.nonce, sign=USER.sign)
    assert answers_to(runner, channels, seek_envelope(nobody, "chain-a", "oldest")) == [403]


@pytest.mark.parametrize(
    "info", [SeekInfo(), SeekInfo(start=OLDEST), SeekInfo(stop=NEWEST)],
    ids=["neither", "no stop", "no start"],
)  # fmt: skip
def test_a_seek_without_start_or_stop_is_a_bad_request(runner, channels, info):
    assert answers_to(runner, channels, asking(canonical(info))) == [400]


# The rows D1 to D16.


def test_d1_from_oldest_to_oldest_is_block_0(runner, channels, channel):
    channel.grow(3)
    request = seek_envelope(USER, "chain-a", "oldest", "oldest")
    assert answers_to(runner, channels, request) == ["block 0", 200]


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


def test_d3_from_995_to_newest_of_1000_is_five_blocks_and_counted(runner, thousand):
    metrics = Metrics()
    request = seek_envelope(USER, "chain-a", 995, "newest")
    found = answers_to(runner, SmallChannels(thousand), request, metrics=metrics)
    assert found == [*blocks(995, 999), 200]
    labels = ("chain-a", "false", "block")
    assert metrics.deliver_requests_received.value(*labels) == 1
    assert metrics.deliver_blocks_sent.value(*labels) == 5
    assert metrics.deliver_requests_completed.value(*labels, "true") == 1
    assert metrics.deliver_streams_opened.value() == 1
    assert metrics.deliver_streams_closed.value() == 1


def test_d4_a_stop_before_the_start_is_a_bad_request(runner, thousand):
    request = seek_envelope(USER, "chain-a", 100, 99)
    assert answers_to(runner, SmallChannels(thousand), request) == [400]


@pytest.mark.parametrize("beyond", [1, 2, 1000])
def test_d5_past_the_end_and_not_to_wait_is_what_there_is_and_not_found(
    runner, channels, channel, beyond
):
    channel.grow(10)
    request = seek_envelope(USER, "chain-a", 7, 9 + beyond, block_until_ready=False)
    assert answers_to(runner, channels, request) == [*blocks(7, 9), 404]


def test_d6_past_the_end_waits_and_delivers_as_blocks_are_cut(runner, channels, channel):
    channel.grow(3)

    async def ask():
        async with served(channels) as client:
            stream = client.deliver(seek_envelope(USER, "chain-a", 1, 4))
            answers = [await anext(stream), await anext(stream)]
            for _ in range(2):
                waiting = asyncio.create_task(anext(stream))
                assert not (await asyncio.wait({waiting}, timeout=0.05))[0]
                await asyncio.to_thread(channel.add)
                answers.append(await asyncio.wait_for(waiting, 60))
            return numbers([*answers, *await gathered(stream)])

    assert runner.run(ask()) == [*blocks(1, 4), 200]


def test_d7_from_the_next_block_waits_for_it(runner, channels, channel):
    channel.grow(3)

    async def ask():
        async with served(channels) as client:
            stream = client.deliver(seek_envelope(USER, "chain-a", 3, 3))
            waiting = asyncio.create_task(anext(stream))
            assert not (await asyncio.wait({waiting}, timeout=0.05))[0]
            await asyncio.to_thread(channel.add)
            return numbers([await waiting, *await gathered(stream)])

    assert runner.run(ask()) == ["block 3", 200]


def test_d7_from_the_next_block_and_not_to_wait_is_not_found(runner, channels, channel):
    channel.grow(3)
    request = seek_envelope(USER, "chain-a", 3, 3, block_until_ready=False)
    assert answers_to(runner, channels, request) == [404]


@pytest.mark.parametrize("to_wait", [True, False])
@pytest.mark.parametrize("stop", [5, 2, ENDLESS, "newest"])
def test_d8_a_start_beyond_the_next_block_is_not_found_at_once(
    runner, channels, channel, to_wait, stop
):
    channel.grow(3)
    request = seek_envelope(USER, "chain-a", 4, stop, block_until_ready=to_wait)
    assert answers_to(runner, channels, request) == [404]


@pytest.mark.parametrize("stop", [block_at(0), NEWEST, SeekPosition()])
def test_d10_a_start_that_names_no_block_is_not_found(runner, channels, stop):
    info = SeekInfo(start=SeekPosition(), stop=stop)
    assert answers_to(runner, channels, asking(canonical(info))) == [404]


def test_d11_to_the_largest_number_is_an_endless_tail(runner, channels, channel):
    async def ask():
        async with served(channels) as client:
            stream = client.deliver(seek_envelope(USER, "chain-a", 0, ENDLESS))
            answers = [await anext(stream)]
            for _ in range(20):
                await asyncio.to_thread(channel.add)
                answers.append(await asyncio.wait_for(anext(stream), 60))
            await stream.aclose()
            return numbers(answers)

    assert runner.run(ask()) == blocks(0, 20)


def test_d12_a_client_that_leaves_while_it_waits_ends_its_stream(runner, channels):
    metrics = Metrics()

    async def ask():
        async with served(channels, metrics=metrics) as client:
            stream = client.deliver(seek_envelope(USER, "chain-a", 0, ENDLESS))
            await anext(stream)
            await stream.aclose()
            await until(lambda: metrics.deliver_streams_closed.value() == 1)

    runner.run(ask())
    completed = metrics.deliver_requests_completed
    assert completed.value("chain-a", "false", "block", "false") == 1
    assert completed.value("chain-a", "false", "block", "true") == 0


def test_d13_a_chain_that_fails_ends_a_strict_stream(runner, channels, channel):
    async def ask():
        async with served(channels) as client:
            stream = client.deliver(seek_envelope(USER, "chain-a", 0, ENDLESS))
            found = [await anext(stream)]
            channel.errored = True
            return numbers([*found, *await gathered(stream)])

    assert runner.run(ask()) == ["block 0", 503]


def test_d14_best_effort_goes_on_though_the_chain_has_failed(runner, channels, channel):
    channel.errored = True

    async def ask():
        async with served(channels) as client:
            stream = client.deliver(seek_envelope(USER, "chain-a", 0, 2, best_effort=True))
            answers = [await anext(stream)]
            await asyncio.to_thread(channel.add)
            answers.append(await anext(stream))
            channel.errored = False
            channel.errored = True
            await asyncio.to_thread(channel.add)
            return numbers([*answers, *await gathered(stream)])

    assert runner.run(ask()) == [*blocks(0, 2), 200]


class Denying:
    """A config with a higher sequence that forbids all reading."""

    maintenance = False

    def __init__(self, sequence):
        self.sequence = sequence
        self.policies = self
        self.evaluations = 0

    def evaluate(self, path, signed):
        self.evaluations += 1
        raise PolicyNotMet(f"{path} is not met by {len(signed)} signatures")


def test_d15_a_config_that_denies_is_forbidden_before_the_next_block(runner, channels, channel):
    async def ask():
        async with served(channels) as client:
            stream = client.deliver(seek_envelope(USER, "chain-a", 0, ENDLESS))
            answers = [await anext(stream)]
            channel.config = Denying(channel.config.sequence + 1)
            await asyncio.to_thread(channel.add)
            return numbers([*answers, *await gathered(stream)])

    assert runner.run(ask()) == ["block 0", 403]


def test_d15_an_identity_that_expires_is_forbidden_before_the_next_block(runner, channels, channel):
    times = [datetime.now(UTC)]

    async def ask():
        async with served(channels, clock=lambda: times[-1]) as client:
            stream = client.deliver(seek_envelope(USER, "chain-a", 0, ENDLESS))
            answers = [await anext(stream)]
            times.append(datetime(2036, 11, 19, tzinfo=UTC))  # User1's certificate ended yesterday
            await asyncio.to_thread(channel.add)
            return numbers([*answers, *await gathered(stream)])

    assert runner.run(ask()) == ["block 0", 403]


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


def test_s1_the_same_seek_twice_gives_the_same_bytes_and_oldest_to_2_is_three_blocks(
    runner, channels, channel
):
    channel.grow(6)

    async def ask():
        async with served(channels) as client:
            request = seek_envelope(USER, "chain-a", "oldest", 2)
            return [await gathered(client.deliver(request)) for _ in range(2)]

    once, again = runner.run(ask())
    assert once == again
    assert once == [*(channel.ledger.read(number) for number in range(3)), 200]


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

    async def ask():
        async with served(channels) as client:
            return await gathered(client.deliver(asking(canonical(info))))

    config, bare, status = runner.run(ask())
    assert config == channel.ledger.read(0)
    whole, bare = Block.FromString(channel.ledger.read(1)), Block.FromString(bare)
    assert bare.header == whole.header
    assert bare.metadata == whole.metadata
    assert not bare.data.data
    assert status == 200
