"""The appends to one partition against a broker in memory that checks numbers as Kafka's does.

Requests are lost, late and answered too late; leaders change; records are refused; time runs out.
"""

import random
from collections import deque

import pytest
from kafka.record.memory_records import MemoryRecords

from multicast.drivers.appender.entries import QueuedRecord, QueuedRun
from multicast.drivers.appender.partition_appends import PartitionAppends
from multicast.drivers.appender.record_batch import NO_HEADERS, ProducerIdentity
from multicast.drivers.protocol import Appended, TopicPartition
from multicast.errors import AppendNotStored, AppendRefused, AppendUnknown

NOT_LEADER, TOO_FEW, NOT_ENOUGH_AFTER = 6, 19, 20
TOO_LARGE, OUT_OF_ORDER, OLD_EPOCH = 10, 45, 47
AT = TopicPartition("t", 0)


class Broker:
    """One partition's log, and what a broker remembers of its one producer."""

    def __init__(self, records_max=1000):
        self.log = []
        self.epoch = None
        self.batches = deque(maxlen=5)
        self.records_max = records_max

    def append(self, written):
        batch = MemoryRecords(written).next_batch()
        assert batch.validate_crc()
        values = [record.value for record in batch]
        first, epoch = batch.base_sequence, batch.producer_epoch
        last = (first + len(values) - 1) % 2**31
        if epoch == self.epoch:
            for seen in self.batches:
                if seen[:2] == (first, last):
                    return 0, seen[2]
        if len(values) > self.records_max or any(value.startswith(b"!") for value in values):
            return TOO_LARGE, -1
        if self.epoch is not None:
            if epoch < self.epoch:
                return OLD_EPOCH, -1
            if epoch > self.epoch:
                if first:
                    return OUT_OF_ORDER, -1
                self.batches.clear()
            elif first != (self.batches[-1][1] + 1) % 2**31:
                return OUT_OF_ORDER, -1
        self.epoch = epoch
        self.batches.append((first, last, len(self.log)))
        self.log += values
        return 0, self.batches[-1][2]


def queued(value, since):
    return QueuedRecord(40, value, None, NO_HEADERS, print, since=since)


def queued_run(values, since):
    return QueuedRun(values, None, None, print, since=since)


def flat(outcomes):
    """Give the value and the outcome of each record of these entries."""
    for entry, outcome in outcomes:
        values = entry.values if isinstance(entry, QueuedRun) else [entry.value]
        for more, value in enumerate(values):
            is_stored = isinstance(outcome, Appended)
            yield value, Appended(outcome.offset + more) if is_stored else outcome


class World:
    """A partition's appends, the broker, and the requests between them."""

    def __init__(self, seed, *, faults=True):
        self.rng = random.Random(seed)
        self.faults = faults
        self.broker = Broker(self.rng.choice((1000, 3)))
        self.appends = PartitionAppends(
            AT,
            requests_max=self.rng.choice((1, 2, 5)),
            batch_bytes_max=self.rng.choice((300, 10_000)),
        )
        self.appends.identity = ProducerIdentity(7, 0)
        self.appends.leader = 1
        self.appends._sequence = self.rng.choice((0, 2**31 - 4))
        self.requests, self.answers, self.late = deque(), deque(), []
        self.now, self.count = 0.0, 0
        self.outcomes = []
        self.expected = []
        self.counted = 0

    def run(self, turns):
        actions = [self.enqueue, self.send, self.process, self.answer]
        odd = [self.cut, self.late_arrives, self.expire, self.late_lost]
        for _ in range(turns):
            self.now += 1.0
            self.rng.choice(actions)()
            if self.faults and self.rng.random() < 0.1:
                self.rng.choice(odd)()
            self.settle()
        self.faults = False
        while self.late:
            self.late_arrives()
        for _ in range(10_000):
            for action in (self.send, self.process, self.answer, self.settle):
                action()
            if self.appends.idle and not self.requests and not self.answers:
                return
        raise AssertionError("it never ends")

    def enqueue(self):
        for _ in range(self.rng.randint(1, 3)):
            values = []
            for _ in range(self.rng.choice((1, 1, 2, 9))):
                refused = self.faults and self.rng.random() < 0.05
                values.append((b"!" if refused else b"") + b"%d" % self.count)
                self.count += 1
            self.expected += values
            is_run = len(values) > 1
            made = queued_run(values, self.now) if is_run else queued(values[0], self.now)
            self.appends.enqueue(made)

    def send(self):
        if self.appends.leader is None:
            self.appends.leader = 1  # found again
            return
        batch = self.appends.to_send_again()
        if batch is None and self.appends.may_take():
            count = self.rng.randint(1, self.appends.fitting())
            self.counted += self.appends.count_first(count)
            batch = self.appends.take(count, self.now, 0)
        if batch is not None:
            self.requests.append(batch)

    def process(self):
        if self.requests:
            batch = self.requests.popleft()
            chance = self.rng.random() if self.faults else 1.0
            if chance < 0.1:
                answer = self.rng.choice((NOT_LEADER, TOO_FEW)), -1
            else:
                answer = self.broker.append(batch.written)
                if chance < 0.2 and answer[0] == 0:
                    answer = self.rng.choice((NOT_LEADER, NOT_ENOUGH_AFTER)), -1
            self.answers.append((batch, answer))

    def answer(self):
        if self.answers:
            batch, (code, offset) = self.answers.popleft()
            self.appends.answered(batch, code, offset, f"error {code}")

    def cut(self):
        """Break the connection; the broker may still get what was sent, much later."""
        for batch, _ in self.answers:
            self.appends.unanswered(batch)
        for batch in self.requests:
            self.appends.unanswered(batch)
        if self.requests:
            self.late.append(deque(batch.written for batch in self.requests))
        self.requests.clear()
        self.answers.clear()

    def late_arrives(self):
        if self.late:
            some = self.rng.choice(self.late)
            self.broker.append(some.popleft())
            if not some:
                self.late.remove(some)

    def late_lost(self):
        if self.late:
            self.late.remove(self.rng.choice(self.late))

    def expire(self):
        due = self.now - self.rng.choice((30.0, 60.0))
        self.appends.expire(due, "time is up")
        self.settle()
        self.outcomes += self.appends.refuse_queue(AppendNotStored("late"), since=due)

    def settle(self):
        self.outcomes += self.appends.settled()

    def judge(self):
        log = self.broker.log
        told = list(flat(self.outcomes))
        assert [value for value, _ in told] == self.expected
        assert len(set(log)) == len(log), "a record is stored twice"
        places = {value: number for number, value in enumerate(self.expected)}
        assert [places[value] for value in log] == sorted(places[value] for value in log)
        assert self.counted == sum(entry.count for entry, _ in self.outcomes if entry.counted)
        for value, outcome in told:
            if isinstance(outcome, Appended):
                assert log[outcome.offset] == value
            elif outcome.error.definite:
                assert value not in log
        return told


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(150), id="150"),
        pytest.param(range(150, 600), id="450 more", marks=pytest.mark.campaign),
    ],
)
def test_nothing_is_doubled_reordered_or_misreported_whatever_happens(seeds):
    told = set()
    for seed in seeds:
        world = World(seed)
        world.run(300)
        for value, outcome in world.judge():
            kind = Appended if isinstance(outcome, Appended) else type(outcome.error)
            told.add((kind, value.startswith(b"!")))
    assert told >= {(kind, False) for kind in (Appended, AppendUnknown, AppendNotStored)}
    assert (AppendRefused, True) in told


def test_without_faults_everything_is_stored_and_no_epoch_begins():
    for seed in range(20):
        world = World(seed, faults=False)
        world.broker.records_max = 1000
        world.run(300)
        assert all(isinstance(outcome, Appended) for _, outcome in world.judge())
        assert world.appends.identity == ProducerIdentity(7, 0)


@pytest.fixture
def world():
    """A partition with one batch stored, so that several may be in flight."""
    world = World(0, faults=False)
    world.broker.records_max = 1000
    world.appends = PartitionAppends(AT, requests_max=5, batch_bytes_max=10_000)
    world.appends.identity, world.appends.leader = ProducerIdentity(7, 0), 1
    append(world, b"first")
    world.process()
    world.answer()
    world.settle()
    return world


def append(world, *values):
    for value in values:
        world.expected.append(value)
        world.appends.enqueue(queued(value, world.now))
    world.requests.append(world.appends.take(len(values), world.now, 0))


def finish(world):
    world.run(0)
    return [outcome for _, outcome in world.judge()]


def test_before_the_first_batch_is_stored_no_second_one_is_sent():
    appends = PartitionAppends(AT, requests_max=5, batch_bytes_max=10_000)
    appends.identity = ProducerIdentity(7, 0)
    for value in (b"a", b"b"):
        appends.enqueue(queued(value, 0.0))
    batch = appends.take(1, 0.0, 0)
    assert not appends.may_take()
    appends.answered(batch, 0, 0, "")
    appends.settled()
    assert appends.may_take()


def test_a_refused_record_does_not_fail_those_behind_it(world):
    for value in (b"!large", b"a", b"b"):
        append(world, value)
    outcomes = finish(world)
    assert isinstance(outcomes[1].error, AppendRefused)
    assert outcomes[2:] == [Appended(1), Appended(2)]
    assert world.appends.identity == ProducerIdentity(7, 1)


def test_a_batch_that_is_too_large_is_divided_until_only_the_large_record_is_refused(world):
    append(world, b"a", b"!large", b"b", b"c")
    outcomes = finish(world)
    assert [isinstance(outcome, Appended) for outcome in outcomes] == [1, 1, 0, 1, 1]
    assert world.broker.log == [b"first", b"a", b"b", b"c"]


def test_a_run_that_is_too_large_is_divided_until_only_the_large_record_is_refused(world):
    values = [b"a", b"b", b"!large", b"c", b"d"]
    world.expected += values
    world.appends.enqueue(queued_run(values, world.now))
    world.requests.append(world.appends.take(1, world.now, 0))
    # What waits meanwhile is divided, too.
    waiting = [b"%d" % number for number in range(100)]
    world.expected += waiting
    world.appends.enqueue(queued_run(waiting, world.now))
    outcomes = finish(world)
    assert [isinstance(outcome, Appended) for outcome in outcomes[:6]] == [1, 1, 1, 0, 1, 1]
    assert world.broker.log == [b"first", b"a", b"b", b"c", b"d", *waiting]


def test_a_foreign_batch_with_our_next_number_leaves_only_what_had_no_answer_in_doubt(world):
    append(world, b"a")
    world.cut()  # "a" never arrives
    world.late.clear()
    world.broker.batches.append((1, 3, 1))
    world.broker.log += [b"x"] * 3
    world.send()
    world.send()
    append_queue(world, b"b")
    world.run(0)
    (_, first), (_, in_doubt), (_, later) = world.outcomes
    assert first == Appended(0)
    assert isinstance(in_doubt.error, AppendUnknown)
    assert later == Appended(4)
    assert world.broker.log == [b"first", b"x", b"x", b"x", b"b"]


def append_queue(world, value):
    world.appends.enqueue(queued(value, world.now))


def test_a_newer_epoch_of_somebody_else_is_overtaken_without_doubt(world):
    world.broker.epoch = 3
    world.broker.batches = deque([(5, 6, 1)])
    append(world, b"a")
    assert finish(world)[1] == Appended(1)
    assert world.appends.identity.epoch >= 3


def test_what_follows_a_batch_that_comes_later_waits_for_it_in_the_same_epoch(world):
    for value in (b"a", b"b"):
        append(world, value)
    world.cut()  # both are in doubt from now on
    world.late.clear()
    for _ in range(3):
        world.send()
    world.appends.answered(world.requests.popleft(), NOT_LEADER, -1, "not the leader")
    world.process()  # so the second one is out of sequence
    world.answer()
    assert finish(world)[1:] == [Appended(1), Appended(2)]
    assert world.appends.identity == ProducerIdentity(7, 0)


def test_when_the_epochs_are_used_up_another_id_is_asked_for(world):
    world.appends.identity = ProducerIdentity(7, 2**15 - 1)
    append(world, b"!large")
    world.process()
    world.answer()
    world.settle()
    assert world.appends.identity is None
    assert not world.appends.may_take()


def test_what_is_given_up_is_in_doubt_only_if_it_was_sent(world):
    append(world, b"a")
    append_queue(world, b"b")
    told = [outcome.error for _, outcome in world.appends.give_up("closed")]
    assert [type(error) for error in told] == [AppendUnknown, AppendNotStored]
    assert world.appends.idle


def test_what_is_refused_in_the_queue_says_whether_a_request_has_counted_it(world):
    for value in (b"a", b"b"):
        append_queue(world, value)
    world.appends.count_first(1)  # "a" was in a request, and was put back
    refused = world.appends.refuse_queue(AppendNotStored("no"))
    assert [outcome.sent for _, outcome in refused] == [True, False]
