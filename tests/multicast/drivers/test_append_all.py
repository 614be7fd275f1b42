"""Many appends in one call, and the receipts of many: the same for the fake and on a broker."""

import threading
from functools import partial

import pytest

from multicast.drivers.protocol import Appended, AppendFailed
from multicast.errors import AppendRefused, AppendUnknown, BufferFull, TimedOut
from multicast.messages import MessageID
from tests.helpers.driver_worlds import PATIENCE_S, REAL, read, values
from tests.helpers.held import SteppedDriver
from tests.helpers.plans import poster
from tests.helpers.small import Small


@pytest.fixture(params=["memory", REAL[0]])
def world(request, world_named):
    return world_named(request.param)


class Outcomes:
    """Takes each outcome under its index, and no index twice."""

    def __init__(self):
        self.by_index = {}

    def __call__(self, first, count, outcome):
        for more in range(count):
            assert first + more not in self.by_index
            is_stored = isinstance(outcome, Appended)
            each = Appended(outcome.offset + more) if is_stored else outcome
            self.by_index[first + more] = each

    def __eq__(self, expected):
        return [self.by_index[index] for index in range(len(self.by_index))] == expected

    def __repr__(self):
        return repr(self.by_index)

    __hash__ = None


# --- the drivers' contract ----------------------------------------------------------------------


def test_many_get_consecutive_offsets_in_their_order_among_single_appends(world, opened):
    (partition,) = world.topic()
    appender = opened(world.driver.appender())
    single, first, second = [], Outcomes(), Outcomes()
    assert appender.append_all(partition, [b"a", b"", None], done=first) == 3
    appender.append(partition, b"b", done=single.append)
    assert (
        appender.append_all(partition, [b"%d" % number for number in range(2000)], done=second)
        == 2000
    )
    assert appender.append_all(partition, [], done=second) == 0
    assert appender.flush(PATIENCE_S)
    assert first == [Appended(0), Appended(1), Appended(2)]
    assert single == [Appended(3)]
    assert second == [Appended(4 + number) for number in range(2000)]
    records, _ = read(opened(world.driver.reader({partition: 0})), {partition: 2004})
    assert values(records[partition])[:5] == [b"a", b"", None, b"b", b"0"]
    assert values(records[partition])[4:] == [b"%d" % number for number in range(2000)]


@pytest.mark.parametrize(
    "headers", [None, [(), [("h", b"1")], [("h", None), ("h", b""), ("i", b"2")]]]
)
def test_many_have_a_key_each_and_headers(world, opened, headers):
    (partition,) = world.topic()
    appender = opened(world.driver.appender())
    outcomes = Outcomes()
    sent = [b"a", None, b"c"]
    given = [b"k", None, b""]
    assert appender.append_all(partition, sent, keys=given, headers=headers, done=outcomes) == 3
    assert appender.flush(PATIENCE_S)
    assert outcomes == [Appended(0), Appended(1), Appended(2)]
    records, _ = read(opened(world.driver.reader({partition: 0})), {partition: 3})
    assert [record.value for record in records[partition]] == sent
    assert [record.key for record in records[partition]] == given
    read_back = [list(record.headers) for record in records[partition]]
    assert read_back == [list(pairs) for pairs in headers or [()] * 3]


def test_a_full_buffer_takes_the_first_ones_and_says_how_many(world, opened):
    (partition,) = world.topic()
    world.hold_appends = True
    appender = opened(world.driver.appender(in_flight_max=10))
    outcomes = Outcomes()
    sent = [b"%d" % number for number in range(10_000)]
    taken = appender.append_all(partition, sent, done=outcomes)
    assert 10 <= taken < 10_000
    world.release()
    world.hold_appends = False
    assert appender.flush(PATIENCE_S)
    assert outcomes == [Appended(offset) for offset in range(taken)]
    assert appender.append_all(partition, sent[taken : taken + 10], done=Outcomes()) == 10
    assert appender.flush(PATIENCE_S)
    records, _ = read(opened(world.driver.reader({partition: 0})), {partition: taken + 10})
    assert values(records[partition]) == sent[: taken + 10]


def test_one_that_is_refused_leaves_the_others_of_its_call_alone(world, opened):
    (partition,) = world.topic()
    appender = opened(world.driver.appender())
    outcomes = Outcomes()
    # Above what the clients allow, so that it is refused before it is sent.
    too_large = b"x" * (101 * 1024 * 1024)
    rest = [b"a", too_large, b"b"]
    while rest:
        before = 3 - len(rest)
        done = partial(lambda before, first, *rest: outcomes(before + first, *rest), before)
        rest = rest[appender.append_all(partition, rest, done=done) :]
        assert appender.flush(PATIENCE_S)
    refused = outcomes.by_index.pop(1)
    assert isinstance(refused, AppendFailed)
    assert isinstance(refused.error, AppendRefused)
    assert outcomes.by_index == {0: Appended(0), 2: Appended(1)}


# --- the receipts of many -----------------------------------------------------------------------


class Narrow(SteppedDriver):
    """Takes three appends at a time, and holds each until a test stores it."""

    def __init__(self, log):
        self.held = []
        super().__init__(log, step=self._hold)

    def _hold(self, append):
        self.held.append(append)

    def appender(self, **_):
        return super().appender(in_flight_max=3)

    def let_go(self):
        held, self.held = self.held, []
        for append in held:
            append.settle(append.store())


def test_receipts_tell_ids_and_places_of_all_and_a_cover_carries_the_exact_set():
    with Small(poster()) as small:
        small.run_all()
        with small.producer() as producer:
            declared = producer.multicast_all([b"a", b"b"], to={"P1", "P3"})
            covered = producer.multicast_all([b"c", None], to={"P2", "P4"})
            none = producer.multicast_all([], to={"P1"})
            assert declared.ordered(PATIENCE_S) == [MessageID("P1+P3", 0), MessageID("P1+P3", 1)]
            assert covered.ordered(PATIENCE_S) == [
                MessageID("P2+P3+P4", number) for number in range(2)
            ]
            assert (none.ordered(PATIENCE_S), len(declared), covered.to) == ([], 2, ("P2", "P4"))
            assert declared.outcomes == [Appended(0), Appended(1)]
        assert sorted(small.all("C1")) == ["P1+P3:0", "P1+P3:1", "P2+P3+P4:0", "P2+P3+P4:1"]
        assert "P2+P3+P4:1" in small.all("C2")


@pytest.mark.parametrize("to", [("P1", "P3"), ("P2", "P4")])
def test_many_wait_for_room_and_keep_their_order(to):
    with Small(poster()) as small:
        narrow = Narrow(small.log)
        with small.producer(driver=narrow, tickets=False) as producer:
            got = []
            sending = threading.Thread(
                target=lambda: got.append(
                    producer.multicast_all([b"%d" % number for number in range(8)], to=to)
                )
            )
            sending.start()
            while sending.is_alive():
                narrow.let_go()
                sending.join(0.01)
            narrow.let_go()
            (receipts,) = got
            messages = receipts.accepted(PATIENCE_S)
        assert [message.offset for message in messages] == list(range(8))


def test_what_finds_no_room_in_time_was_not_sent_and_says_so():
    with Small(poster()) as small:
        narrow = Narrow(small.log)
        with small.producer(driver=narrow, tickets=False, block_s=0.1) as producer:
            receipts = producer.multicast_all([b"a", b"b", b"c", b"d", b"e"], to={"P1"})
            with pytest.raises(TimedOut):
                receipts.accepted(0.05)
            assert receipts.outcomes[:3] == [None, None, None]
            narrow.let_go()
            with pytest.raises(BufferFull) as raised:
                receipts.accepted(PATIENCE_S)
            assert raised.value.definite
            assert receipts.outcomes[:3] == [Appended(0), Appended(1), Appended(2)]
            assert [type(outcome.error) for outcome in receipts.outcomes[3:]] == [
                BufferFull,
                BufferFull,
            ]


def test_receipts_raise_for_the_first_that_failed_and_tell_about_each():
    with Small(poster()) as small:
        narrow = Narrow(small.log)
        with small.producer(driver=narrow, tickets=False) as producer:
            receipts = producer.multicast_all([b"a", b"b", b"c"], to={"P1"})
            unknown = AppendUnknown("nobody knows")
            narrow.held.pop(1).settle(AppendFailed(unknown))
            narrow.let_go()
            with pytest.raises(AppendUnknown, match="nobody knows"):
                receipts.accepted(PATIENCE_S)
            assert receipts.outcomes == [Appended(0), AppendFailed(unknown), Appended(1)]
