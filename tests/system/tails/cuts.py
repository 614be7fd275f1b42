"""Brokers are killed and lose ends of partitions: readers that go on never differ in silence.

A round has some systems on one cluster. In each, readers deliver; then all brokers are killed, each
system loses something else, and its readers go on: one that was there, one from its group's commit,
one from a cursor that a user's own database kept, and a new one.

    stays      the reader delivers all that there is, without an error
    lost       a reader has delivered it, and it is gone
    alone      a reader from a cursor, which names the last message of one log only, has delivered
               what is gone of another log before any collector stated that log's end: nobody can
               notice (docs/protocol.md, "Lost tails")

In some systems an operator's command is under way, which the cut interrupts. A reader that begins
before the collectors are back may deliver by what a stream has instead of its lost end: it stops a
little after they have stated that.

It is run by `make cuts`. CUTS in the environment says how many cuts there are, and FIRST the number
of the first one: each has its own seed.
"""

import collections
import contextlib
import itertools
import os
import random
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import pytest
from kafka import KafkaAdminClient

from multicast import Consumer, Producer
from multicast.consuming import readers
from multicast.control import (
    ControlReader,
    collectors_partition,
    control_partition,
    log_partition,
    order_topic,
    stream_partition,
)
from multicast.drivers import open_driver
from multicast.errors import AmcastError, TimedOut, Truncated
from multicast.local.cluster import LocalCluster
from tests.helpers.cuts import cut
from tests.helpers.forged import streams_of
from tests.helpers.plans import chain, priced
from tests.helpers.system import PATIENCE_S, System, until
from tests.system.tails.operators import STEPS, Operator

pytestmark = [pytest.mark.campaign, pytest.mark.slow, pytest.mark.timeout(7200)]
CUTS, FIRST = int(os.environ.get("CUTS", "20")), int(os.environ.get("FIRST", "0"))
SYSTEMS, AT_ONCE = 12, 6  # of a round: so many cuts cost one start of the brokers
NAMES = ("C1", "C2", "C4")  # the top's, its child's, and one who reads a log alone
SILENT_S, EARLY_S = 20.0, 3.0
# Collectors that are back state within that time what a stream has lost.
SETTLED_S = 3.0
LOOK_S = 2.0  # so often a reader under a later leader looks here for what is stated
# What is cut: partitions by the name of a log, of a collector for its stream, or a control topic.
KINDS = {
    "a log": ["P1"],
    "a log that two collectors know": ["P2"],
    "a child's own log": ["P3"],
    "a log without a collector": ["P4"],
    "the order of the top": ["K1"],
    "the order of a child": ["K2"],
    "both orders": ["K1", "K2"],
    "a log and its order": ["P1", "K1"],
    "several logs": ["P1", "P2", "P3", "P4"],
    "what collectors state": ["collectors"],
    "all topics, to one moment": ["P1", "P2", "P3", "P4", "K1", "K2", "collectors"],
    "all topics, each to its own moment": ["P1", "P2", "P3", "P4", "K1", "K2", "collectors"],
    "what nobody has read": ["P1", "P4"],
    "plans, in a change": ["operators"],
    "a log, in a change": ["P1"],
    "an order, in a change": ["K1"],
    "plans, in a recovery": ["operators"],
    "an order, in a recovery": ["K2"],
}
# Brokers, and whether eligible leader replicas (KIP-966) are on.
STAYING = ("stays", "TimedOut")
CLUSTERS = [(1, True), (1, True), (3, True), (1, True), (3, False)]


@dataclass
class Reading:
    """What one reader has delivered, before the cut and in all, and how it ended."""

    name: str
    role: str
    before: list = field(default_factory=list)
    all: list = field(default_factory=list)
    end: str = "stays"
    why: str = ""
    seconds: float = 0.0

    def take(self, batch):
        """Note a batch."""
        self.all += [(batch.log.name, each.offset, each.value) for each in batch.records]

    def go_on(self, consumer, silent_s=SILENT_S, further_s=0.0):
        """Deliver all that there is, and what comes within some time."""
        began = time.monotonic()
        while time.monotonic() < began + PATIENCE_S:
            try:
                for batch in consumer.until_end(timeout=silent_s):
                    self.take(batch)
                until_s = time.monotonic() + further_s
                while time.monotonic() < until_s:
                    for batch in consumer.poll(0.5):
                        self.take(batch)
                self.end = "stays"
                break
            except AmcastError as error:
                self.end, self.why = type(error).__name__, f"{error}"
                if not error.retriable or isinstance(error, TimedOut):
                    break
        self.seconds = time.monotonic() - began


def two_orders():
    """Give a plan in which the child orders all that its parent does, and more; P4 is read alone.

    So the readers of the two meet the same messages in two streams.
    """
    plan = chain()
    collectors = (plan.collectors[0], replace(plan.collectors[1], bag=("P1", "P2", "P3")))
    second = replace(plan.consumers[1], interest=("P1", "P2", "P3"))
    consumers = (plan.consumers[0], second, plan.consumers[2])
    return priced(replace(plan, collectors=collectors, consumers=consumers))


class Victim:
    """One system that loses something."""

    def __init__(self, cluster, folder, number, rng):
        kinds = list(KINDS)
        self.kind, self.rng = kinds[number % len(kinds)], rng
        self.restarts = rng.random() < 0.5  # the collectors, as in the power cut of a whole room
        self.stated = rng.random() < 0.5
        self.unread = self.kind == "what nobody has read"
        step = rng.choice(STEPS)
        driver = rng.choice(("librdkafka", "kafka-python"))
        self.system = System(cluster.bootstrap, two_orders(), folder, driver=driver)
        self.topic, self.plan = self.system.topic, self.system.plan
        self.operator, self.again = None, ""
        if ", in a " in self.kind:
            recovers = self.kind.endswith("recovery")
            self.operator = Operator(self.system, recovers=recovers, step=step)
        self.lost = {}  # by log, or collector: the first offset
        self.seen = {}  # by log: how far a collector's stream says that it was seen
        self.readings = []
        self.there = {}
        self._numbers = itertools.count()
        self._collectors = self.system.start()

    def write(self, count):
        """Send messages; each is a batch of its own."""
        with Producer(topic=self.topic, driver=self.system.driver) as producer:
            for _ in range(count):
                for to in ({"P1"}, {"P2"}, {"P3"}, {"P4"}):
                    producer.multicast(b"%d" % next(self._numbers), to=to).accepted(PATIENCE_S)

    def subscribed(self, name, **where):
        """Open a consumer."""
        return Consumer(topic=self.topic, name=name, driver=self.system.driver, **where)

    def read(self):
        """Let each reader deliver what there is, and keep its place."""
        for name in NAMES:
            consumer = self.there[name] = self.subscribed(name, group=f"{name} there")
            reading = Reading(name, "was there")
            reading.go_on(consumer)
            assert reading.end == "stays", reading.end
            reading.before = list(reading.all)
            consumer.commit()
            kept = Reading(name, "from a database")
            with self.subscribed(name, group="none", committed=False) as other:
                most = self.rng.randint(len(reading.all) // 2, len(reading.all))
                for message in other:
                    kept.all.append((str(message.message_id).split(":")[0], message))
                    if len(kept.all) == most:
                        break
                self.there[name, "cursor"] = str(other.position)
            kept.all = reading.all[:most]
            kept.before = list(kept.all)
            committed = Reading(name, "from a commit", list(reading.all), list(reading.all))
            self.readings += [reading, committed, kept, Reading(name, "new")]

    def prepare(self):
        """Write and read; what nobody has read comes afterwards."""
        self.system._wait_running(self._collectors, {"K1", "K2"})
        self.write(self.rng.randint(15, 30))
        if self.operator is None or not self.operator.ends_it:
            self.read()
        if self.operator is not None:
            self._interrupt(self.operator)
        elif self.unread:
            self._collectors.kill()
            self.write(10)
        elif self.stated:
            until(lambda: self._seen("P1") and self._seen("P2"), "what collectors state")
        if self.restarts and not self.unread:
            self._collectors.kill()
        self.seen = self._seen_ends()

    def _interrupt(self, operator):
        """Let a command begin that the cut interrupts; if it is almost done, read behind it."""
        operator.spoil(self.write)
        operator.begin()
        if operator.ends_it:
            self.write(5)
            self.read()
        with contextlib.closing(ControlReader(self.system.driver, self.topic)) as control:
            state = control.refresh()
            self.plan = state.plan(state.begun_epoch)

    def _seen(self, log):
        """Whether the streams say that a log was seen to end where it ends."""
        at = log_partition(self.system.plan.log(log))
        return self._seen_ends()[log] == self.system.driver.last_stable_offsets([at])[at]

    def _seen_ends(self):
        """Give by log how far its top's stream says that it was seen; 0: not at all."""
        ends = {}
        streams, plan = streams_of(self.system), self.plan
        for log in plan.logs:
            top = plan.top(log.name)
            seen = (
                ()
                if top is None
                else streams[top.name].stream.state.seen.get(plan.number(log.name), ())
            )
            ends[log.name] = max((each.end for each in seen), default=0)
        return ends

    def cut(self, folders):
        """Lose what the kind names."""
        plan, moment = self.plan, None
        for what in KINDS[self.kind]:
            if what == "collectors":
                at = collectors_partition(self.topic)
            elif what == "operators":
                at = control_partition(self.topic)
            elif what.startswith("K"):
                at = stream_partition(plan, what)
            else:
                at = log_partition(plan.log(what))

            def choose(borders, half=1 if what == "operators" else None):  # 1: behind a plan
                nonlocal moment
                if self.unread:
                    return borders[-self.rng.randint(1, 10)]
                border = self.rng.choice(borders[half or len(borders) // 2 :])
                if self.kind.endswith("one moment"):
                    moment = moment or border.time_ms
                    later = [each for each in borders if each.time_ms >= moment]
                    return later[0] if later else borders[-1]
                return border

            self.lost[what] = cut(folders, *at, choose)

    def go_on(self):
        """Write more, and let all readers go on, and those that were there before collectors."""
        early = [Reading(name, "early") for name in NAMES]
        with contextlib.ExitStack() as opened:
            for reading in early:
                self._go_on(reading, opened, silent_s=EARLY_S)
            if self.restarts or self.unread or self._collectors.ended():
                start = self.system.order if self.operator is None else self.system.start
                self._collectors = start()
            self.write(60)
            if self.operator is not None:
                self.again = self.operator.again()
            threading.Event().wait(SETTLED_S)
            for reading in self.readings:
                self._go_on(reading, opened)
            for reading in early:
                if reading.end in STAYING:
                    reading.go_on(self.there[reading.name, "early"], further_s=2 * LOOK_S)
            self.readings += early

    def _go_on(self, reading, opened, **waits):
        try:
            consumer = opened.enter_context(self._opened(reading))
        except AmcastError as error:
            reading.end, reading.why = type(error).__name__, f"{error}"
        else:
            self.there[reading.name, reading.role] = consumer
            reading.go_on(consumer, **waits)

    def _opened(self, reading):
        name = reading.name
        if reading.role == "was there":
            return self.there[name]
        if reading.role == "from a commit":
            return self.subscribed(name, group=f"{name} there")
        if reading.role == "from a database":
            start = self.there[name, "cursor"]
            return self.subscribed(name, group="none", committed=False, start=start)
        return self.subscribed(name, group="none", committed=False)

    def has_lost(self, reading):
        """Whether the reader had delivered what is gone."""
        return any(at >= self.lost.get(log, at + 1) for log, at, _ in reading.before)

    def is_alone(self, reading):
        """Whether nobody can notice that the reader had delivered what is gone."""
        gone = {log for log, at, _ in reading.before if at >= self.lost.get(log, at + 1)}
        named = reading.before[-1][0] if reading.before else None  # by the cursor
        unseen = all(self.seen[log] <= self.lost[log] for log in gone)
        return bool(gone) and reading.role == "from a database" and named not in gone and unseen

    def judge(self):
        """Give what differs in silence, or is not said by name."""
        wrong = []
        for name in NAMES:
            mine = [each for each in self.readings if each.name == name]
            for one, other in itertools.combinations(self._staying(name), 2):
                both = list(zip(one.all, other.all, strict=False))
                differ = [place for place, (a, b) in enumerate(both) if a != b]
                if differ:
                    wrong.append(f"{name}: {one.role} and {other.role} differ at {differ[0]}")
            for each in mine:
                if self.has_lost(each) and each.end == "stays" and not self.is_alone(each):
                    wrong.append(f"{name}: {each.role} goes on without what it had delivered")
                if each.end not in (*STAYING, Truncated.__name__):
                    wrong.append(f"{name}: {each.role} stops with {each.end}: {each.why}")
                # Who was there may have fetched ahead what nobody had delivered, and delivers it.
                if self.unread and each.end != "stays" and each.role != "was there":
                    wrong.append(f"{name}: {each.role} stops for nothing: {each.why}")
        for one, other in itertools.product(self._staying("C1"), self._staying("C2")):
            common = set(one.all) & set(other.all)
            orders = [[each for each in reading.all if each in common] for reading in (one, other)]
            if orders[0] != orders[1]:
                wrong.append(f"C1 {one.role} and C2 {other.role} have two orders")
        return wrong

    def _staying(self, name):
        """Give the readers that go on; what a new one has delivered before it stops counts, too."""
        mine = [each for each in self.readings if each.name == name and not self.is_alone(each)]
        return [each for each in mine if each.end in STAYING or each.role == "new"]

    def states(self):
        """Say of which logs the control topic states a loss."""
        with contextlib.closing(ControlReader(self.system.driver, self.topic)) as control:
            state = control.refresh()
            logs = [log for log in self.lost if log[0] == "P" and state.loss_of(1, log) is not None]
            streams = {name for name, _ in state.losses.streams}
            return logs + [name for name in self.lost if name in streams]

    def close(self):
        """End what was started."""
        for consumer in self.there.values():
            if isinstance(consumer, Consumer):
                consumer.close()
        self.system.__exit__()


def switch_off(bootstrap):
    """Switch eligible leader replicas off."""
    with contextlib.closing(KafkaAdminClient(bootstrap_servers=bootstrap)) as admin:
        name = "eligible.leader.replicas.version"
        done = admin.update_features({name: ("SAFE_DOWNGRADE", 0)})
        assert done == {name: "OK"}, done


def a_round(brokers, *, elr, numbers, folder):
    """Run one round on a cluster of its own; give its victims, which are closed."""
    with LocalCluster(brokers=brokers) as cluster, contextlib.ExitStack() as opened:
        if not elr:
            switch_off(cluster.bootstrap)
        victims, pool = [], opened.enter_context(ThreadPoolExecutor(AT_ONCE))
        for number in numbers:
            place = folder / str(number)
            place.mkdir()
            victims.append(Victim(cluster, place, number, random.Random(f"cut {number}")))
            opened.callback(victims[-1].close)
        list(pool.map(Victim.prepare, victims))
        running = cluster._need().brokers
        for broker in running:
            cluster.kill(broker.broker_id)
        for victim in victims:
            victim.cut([broker.data for broker in running])
        cluster.start()
        with open_driver("kafka-python", cluster.bootstrap) as driver:
            for victim in victims:
                order = order_topic(victim.topic)
                until(lambda order=order: order in driver.partition_counts([order]), "a topic")
        list(pool.map(Victim.go_on, victims))
        return [(victim, victim.states()) for victim in victims]


class Table:
    """Who has noticed what, by the kind of the cut."""

    def __init__(self):
        self.wrong, self._counts = [], collections.defaultdict(collections.Counter)
        self._soon = collections.defaultdict(list)

    def note(self, victim, where, stated):
        """Take what has become of a system."""
        where = f"cut of {victim.kind} {victim.lost}, {where}, {victim.system.driver_name}"
        self.wrong += [f"{where}: {each}" for each in victim.judge()]
        counts = self._counts[victim.kind]
        counts["cuts"] += 1
        counts["stated"] += bool(stated)
        if victim.operator is not None:
            counts[f"the command again: {victim.again}"] += 1
        for reading in victim.readings:
            counts[f"{reading.role}: {reading.end}"] += 1
            counts["alone"] += victim.is_alone(reading) and reading.end == "stays"
            if reading.end == "Truncated":
                self._soon[victim.kind].append(reading.seconds)

    def __str__(self):
        cuts = sum(counts["cuts"] for counts in self._counts.values())
        lines = [f"{cuts} cuts, silent differences and other wrong ends: {len(self.wrong)}"]
        for kind, counts in self._counts.items():
            times = sorted(self._soon[kind])
            median = f"; Truncated after {times[len(times) // 2]:.1f} s (median)" if times else ""
            lines.append(f"{kind}: {', '.join(f'{k} {v}' for k, v in counts.items())}{median}")
        return "\n".join(["", *lines, *self.wrong, ""])


def test_readers_that_go_on_never_differ_in_silence(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(readers, "_LOOK_LATER_S", LOOK_S)
    table = Table()
    try:
        for first in range(FIRST, FIRST + CUTS, SYSTEMS):
            brokers, elr = CLUSTERS[first // SYSTEMS % len(CLUSTERS)]
            numbers = range(first, min(first + SYSTEMS, FIRST + CUTS))
            for victim, stated in a_round(brokers, elr=elr, numbers=numbers, folder=tmp_path):
                table.note(victim, f"{brokers} brokers", stated)
    finally:
        with capsys.disabled():
            sys.stdout.write(str(table))
    assert not table.wrong
