"""The joint appender in memory: what a hook may do to its requests, and what is never stored twice.

The appender is the product's but for its sockets, so this judges what users run.
"""

import random
from collections import deque

import pytest

from multicast.drivers.appender.dispatcher import Limits
from multicast.drivers.memory.brokers import MemoryBrokers, answer_at_once
from multicast.drivers.memory.driver import MemoryDriver, MemoryLog
from multicast.drivers.protocol import Appended, JointRecord, TopicPartition

LOGS = [TopicPartition("A", number) for number in range(3)]
LOG, OTHER, _ = LOGS
ORDER = TopicPartition("O", 0)
NOT_LEADER, TIMED_OUT, TOO_LARGE, TOO_FEW, TOO_FEW_AFTER = 6, 7, 10, 19, 20
OUT_OF_ORDER, INVALID = 45, 87
REQUEST_S, DELIVERY_S = 5.0, 20.0


class Clock:
    """Time that the test moves; nobody waits."""

    threads = False
    now = 0.0

    def monotonic(self):
        return self.now

    def wait_for(self, _, ready, __):
        return ready()


class Cluster:
    """A log, its brokers and one appender, whose requests carry tickets beside."""

    def __init__(self, **limits):
        self.clock = Clock()
        self.log = MemoryLog({"A": len(LOGS), "O": 1}, clock=self.clock)
        self.requests = []
        self.brokers = MemoryBrokers(self.log, carry=self.requests.append)
        driver = MemoryDriver(brokers=self.brokers, limits=Limits(REQUEST_S, DELIVERY_S, **limits))
        self.appender = driver.appender(beside=self._beside)
        self.sent = {log: [] for log in [*LOGS, ORDER]}
        self.outcomes = {log: [] for log in [*LOGS, ORDER]}
        self._count = 0

    def value(self, partition):
        """Give a value for a partition that no other record has."""
        self._count += 1
        self.sent[partition].append(b"%d" % self._count)
        return self.sent[partition][-1]

    def append(self, partition):
        value = self.value(partition)
        self.appender.append(partition, value, done=self.done(partition, value))

    def done(self, partition, value):
        return lambda outcome: self.outcomes[partition].append((value, outcome))

    def _beside(self, started):
        value = self.value(ORDER)
        assert all(started.values())
        return [JointRecord(ORDER, value, self.done(ORDER, value))]

    def stored(self, partition):
        fetched = self.log.read(partition, 0, 100_000)
        return [record.value for record in fetched.records] if fetched else []

    def kinds(self, partition):
        return [
            "stored" if isinstance(outcome, Appended) else type(outcome.error).__name__
            for _, outcome in self.outcomes[partition]
        ]


@pytest.fixture
def cluster():
    made = Cluster()
    for log in (LOG, ORDER):
        made.appender.prepare(log)
    return made


def test_a_message_and_its_ticket_share_a_request_and_it_is_answered_as_a_whole(cluster):
    cluster.append(LOG)
    (request,) = cluster.requests
    assert set(request.batches) == {LOG, ORDER}
    request.store()
    assert (cluster.stored(LOG), cluster.stored(ORDER)) == ([b"1"], [b"2"])
    assert not cluster.outcomes[LOG]
    request.answer()
    assert cluster.kinds(LOG) == cluster.kinds(ORDER) == ["stored"]


def test_a_message_is_refused_while_its_ticket_is_stored(cluster):
    cluster.append(LOG)
    request = cluster.requests.pop()
    request.store({LOG: INVALID})
    request.answer()
    assert cluster.kinds(LOG) == ["AppendRefused"]
    assert (cluster.stored(LOG), cluster.stored(ORDER)) == ([], [b"2"])


def test_with_two_leaders_a_message_and_its_ticket_go_two_ways(cluster):
    cluster.brokers.leaders[OTHER] = 1
    cluster.append(OTHER)
    assert [(request.node, set(request.batches)) for request in cluster.requests] == [
        (1, {OTHER}),
        (0, {ORDER}),
    ]


def test_an_answer_that_is_lost_is_made_good_by_the_next_connection(cluster):
    cluster.append(LOG)
    lost = cluster.requests.pop()
    lost.store()
    lost.disconnect()
    again = cluster.requests.pop()
    assert again.batches == lost.batches
    answer_at_once(again)
    lost.answer()  # of a connection that has ended
    assert cluster.outcomes[LOG] == [(b"1", Appended(0))]
    assert (cluster.stored(LOG), cluster.stored(ORDER)) == ([b"1"], [b"2"])


def test_a_ticket_does_not_join_a_request_that_sends_an_earlier_one_again(cluster):
    """Of two batches for one partition in a request a broker would store and answer one."""
    cluster.append(LOG)
    answer_at_once(cluster.requests.pop())  # more than one batch may be in flight now
    cluster.append(LOG)
    request = cluster.requests.pop()
    request.store()
    request.answers[ORDER] = TIMED_OUT, -1
    cluster.brokers.leaders = {ORDER: None, OTHER: None}
    request.answer()
    cluster.append(OTHER)
    cluster.brokers.leaders = {}
    cluster.brokers.turn()
    while cluster.requests:
        answer_at_once(cluster.requests.pop(0))
    assert cluster.stored(ORDER) == [b"2", b"4", b"6"]
    assert [outcome for _, outcome in cluster.outcomes[ORDER]] == [*map(Appended, range(3))]


def test_a_frozen_leader_makes_an_outcome_unknown_once_its_time_is_up(cluster):
    cluster.append(LOG)
    cluster.clock.now = DELIVERY_S - 1
    cluster.brokers.turn()
    assert len(cluster.requests) == 2  # by another connection
    cluster.append(LOG)
    cluster.clock.now = DELIVERY_S + 1
    cluster.brokers.turn()
    assert cluster.kinds(LOG) == ["AppendUnknown"]
    cluster.brokers.carry = answer_at_once
    for request in cluster.requests:
        request.store()  # late: the first one before the new epoch begins
    cluster.requests[-1].disconnect()
    assert cluster.stored(LOG) == [b"1", b"3"]
    assert cluster.kinds(LOG) == ["AppendUnknown", "stored"]


def test_a_batch_for_a_deposed_leader_waits_until_somebody_looks_for_the_new_one(cluster):
    cluster.brokers.carry = answer_at_once
    cluster.append(LOG)
    cluster.brokers.leaders[LOG] = None
    cluster.append(LOG)
    assert cluster.kinds(LOG) == ["stored"]
    cluster.brokers.leaders[LOG] = 2
    cluster.brokers.away.add(2)
    cluster.brokers.turn()
    assert cluster.kinds(LOG) == ["stored"]
    cluster.brokers.away.clear()
    cluster.brokers.turn()
    assert cluster.kinds(LOG) == ["stored", "stored"]


@pytest.mark.parametrize("kind", ["before its turn", "in each epoch"])
def test_a_batch_that_is_refused_for_its_number_again_and_again_waits_for_a_look_up(cluster, kind):
    brokers, requests = cluster.brokers, cluster.requests
    cluster.append(LOG)
    answer_at_once(requests.pop())  # more than one batch may be in flight now
    for _ in range(2):
        cluster.append(LOG)
    first, second = requests
    carried = []

    def carry(request):
        carried.append(request)
        assert len(carried) < 9, "it is sent again without a pause"
        request.store({LOG: OUT_OF_ORDER} if kind == "in each epoch" else None)
        request.answer()

    if kind == "before its turn":  # the leader changes twice, and the other one is frozen
        brokers.leaders[LOG] = 1
        first.store({LOG: NOT_LEADER})
        first.answer()
        brokers.leaders[LOG], brokers.carry = 0, carry
        second.store({LOG: NOT_LEADER})
        second.answer()
        answer_at_once(requests.pop())
    else:
        brokers.carry = carry
        first.store({LOG: OUT_OF_ORDER})
        first.answer()
        second.store({LOG: OUT_OF_ORDER})
        second.answer()
    brokers.carry = answer_at_once
    brokers.turn()
    assert cluster.kinds(LOG) == ["stored"] * 3
    assert cluster.stored(LOG) == cluster.sent[LOG]


def test_a_closed_appender_tells_what_was_sent_from_what_was_not(cluster):
    for _ in range(3):
        cluster.append(LOG)  # before the first is stored, no other one is sent
    cluster.appender.close(0)
    assert cluster.kinds(LOG) == ["AppendUnknown", "AppendNotStored", "AppendNotStored"]


def test_a_close_waits_for_what_goes_beside(cluster):
    cluster.brokers.leaders[OTHER] = 1
    cluster.append(OTHER)
    message, ticket = cluster.requests
    answer_at_once(message)

    def wait_for(_, ready, __):
        if not ready():
            answer_at_once(ticket)
        return ready()

    cluster.clock.wait_for = wait_for
    cluster.appender.close()
    assert cluster.kinds(ORDER) == ["stored"]


def test_a_ticket_that_cannot_be_written_holds_up_neither_flush_nor_close(cluster):
    cluster.brokers.leaders[ORDER] = None
    cluster.append(LOG)
    answer_at_once(cluster.requests.pop())
    assert cluster.appender.flush(0)
    cluster.appender.close()
    assert cluster.kinds(ORDER) == ["AppendUnknown"]


class Faults:
    """Random things happen to requests, leaders and brokers, until `end`."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.cluster = Cluster(
            requests_max=self.rng.choice((1, 2, 5)), batch_bytes_max=self.rng.choice((200, 10_000))
        )
        self.late = []  # of connections that have ended
        self.waiting = {}  # requests by broker, as it takes them one after the other
        self.brokers = self.cluster.brokers
        self.brokers.carry = lambda request: self.waiting.setdefault(request.node, deque()).append(
            request
        )
        for log in [*LOGS, ORDER]:
            self.brokers.leaders[log] = self.rng.randrange(3)

    def run(self, steps):
        usual = [self.append, self.append_many, self.serve, self.serve, self.serve, self.pass_time]
        odd = [self.cut, self.arrive_late, self.move, self.leave, self.forget]
        for _ in range(steps):
            self.rng.choice(odd if self.rng.random() < 0.15 else usual)()

    def end(self):
        """End all faults; what is late arrives, and each append gets its outcome."""
        self.brokers.away.clear()
        while self.late:
            self.arrive_late()
        for _ in range(1000):
            for requests in list(self.waiting.values()):
                # In turns: what one refuses comes again until another has taken what is before it.
                for _ in range(len(requests)):
                    answer_at_once(requests.popleft())
            self.pass_time()
            if self.cluster.appender.flush(0) and not any(self.waiting.values()):
                return
        raise AssertionError("it never ends")

    def append(self):
        self.cluster.append(self.rng.choice(LOGS))

    def append_many(self):
        log = self.rng.choice(LOGS)
        values = [self.cluster.value(log) for _ in range(self.rng.choice((2, 9)))]
        dones = [self.cluster.done(log, value) for value in values]

        def done_all(first, count, outcome):
            for more, done in enumerate(dones[first : first + count]):
                stored = isinstance(outcome, Appended)
                done(Appended(outcome.offset + more) if stored else outcome)

        assert self.cluster.appender.append_all(log, values, done=done_all) == len(values)

    def serve(self):
        """Let a broker take its next request."""
        nodes = [node for node, requests in self.waiting.items() if requests]
        if not nodes or self.rng.random() < 0.2:
            return
        request = self.waiting[self.rng.choice(nodes)].popleft()
        codes = {}
        for partition in request.batches:
            if self.rng.random() < 0.1:
                codes[partition] = self.rng.choice((NOT_LEADER, TOO_LARGE, TOO_FEW, INVALID))
        request.store(codes)
        for partition in request.batches:
            if request.answers[partition][0] == 0 and self.rng.random() < 0.1:
                request.answers[partition] = self.rng.choice((TIMED_OUT, TOO_FEW_AFTER)), -1
        request.answer()

    def cut(self):
        """End the connections to a broker; what is on them is lost, or arrives late."""
        node = self.rng.randrange(3)
        requests = list(self.waiting.pop(node, ()))
        for request in requests:
            if self.rng.random() < 0.3:
                request.store()
        self.late += [request for request in requests if self.rng.random() < 0.5]
        for request in requests[:1]:
            request.disconnect()

    def arrive_late(self):
        if self.late:
            self.late.pop(self.rng.randrange(len(self.late))).store()

    def move(self):
        self.brokers.leaders[self.rng.choice([*LOGS, ORDER])] = self.rng.choice((0, 1, 2, None))

    def leave(self):
        self.brokers.away ^= {self.rng.randrange(3)}

    def forget(self):
        """Let an idle producer be forgotten, of which nothing is on its way."""
        if self.cluster.appender.flush(0) and not self.late and not any(self.waiting.values()):
            self.brokers.forget(self.rng.choice(LOGS))

    def pass_time(self):
        self.cluster.clock.now += self.rng.choice((0.1, 1.0, 6.0))
        self.brokers.turn()


@pytest.mark.parametrize("seeds", [range(first, first + 10) for first in range(0, 40, 10)])
def test_under_random_faults_nothing_is_stored_twice_or_out_of_order_and_outcomes_are_true(seeds):
    kinds = set()
    for seed in seeds:
        faults = Faults(seed)
        faults.run(300)
        for log in LOGS:
            faults.brokers.leaders[log] = faults.brokers.leaders[log] or 0
        faults.brokers.leaders[ORDER] = 0
        faults.end()
        judge(faults.cluster, seed)
        kinds.update(kind for log in LOGS for kind in faults.cluster.kinds(log))
    assert kinds == {"stored", "AppendNotStored", "AppendRefused", "AppendUnknown"}


def judge(cluster, seed):
    for log in [*LOGS, ORDER]:
        stored = cluster.stored(log)
        places = {value: place for place, value in enumerate(cluster.sent[log])}
        order = [places[value] for value in stored]
        assert order == sorted(set(order)), (seed, log, "stored twice, or out of order")
        if log in LOGS:
            values = [value for value, _ in cluster.outcomes[log]]
            assert values == cluster.sent[log], (seed, log, "outcomes are missing or out of order")
        for value, outcome in cluster.outcomes[log]:
            if isinstance(outcome, Appended):
                assert stored[outcome.offset] == value, (seed, log, "a false offset")
            elif outcome.error.definite:
                assert value not in stored, (seed, log, "stored, but refused for certain", outcome)
