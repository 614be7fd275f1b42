"""Measures the latency of trees in hops, in virtual time, as if cores were unlimited.

It runs the real cores (collector, order stream, delivery) on the in-memory log, and counts the hops
of each message of the shared partition from its append to its delivery. It reads no clock and draws
nothing at random, so equal inputs give equal results. The cores are those of version 1 of the order
records, in which a message waits for its collectors.

    hop     from the start of an append until every reader has the record: each append takes one
            hop, so plain Kafka's latency is one hop

Nothing else takes time, because no process waits for a core. A machine with two cores cannot show
this beyond a few collectors.

    python -m bench.micro.virtual        a table; with `-o json` the document, which the suite keeps
"""

from __future__ import annotations

import heapq
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from bench.comparison.layouts import Layout, RunningConsumer, lay_out
from bench.comparison.workload import FIRST, from_document
from collectors.collector import Append, Collector, CollectorLimits
from multicast.control import log_partition, order_topic, stream_partition
from multicast.cursor import start_cursor
from multicast.delivery import Delivery
from multicast.drivers.memory.driver import MemoryLog
from multicast.drivers.protocol import TopicPartition
from multicast.order import OrderStream
from topology.tree import Plan

SIZES = (1, 2, 4, 8, 16, 32)
ARMS = (FIRST, "single-root")
HOP = 1000  # ticks of virtual time
_STEP = 370  # ticks between two messages: less than a hop, so several are in flight at any time
_MESSAGES = 300  # 111 hops of load: several times the greatest latency
_TOPIC = "A"
_ALL = 1_000_000  # records of one read: more than a run has


class VirtualWorld:
    """The log, virtual time, and the listeners to new records of each Kafka partition."""

    def __init__(self, plan: Plan) -> None:
        self.now = 0
        self.log = MemoryLog(
            {_TOPIC: len(plan.logs), order_topic(_TOPIC): len(plan.collectors)}, now_ms=lambda: 0
        )
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._made = 0
        self._listeners: dict[TopicPartition, list[Callable[[], None]]] = {}

    def after(self, ticks: int, what: Callable[[], None]) -> None:
        """Call `what` after some ticks; events of one time keep their order."""
        self._made += 1
        heapq.heappush(self._events, (self.now + ticks, self._made, what))

    def tell(self, partition: TopicPartition, whom: Callable[[], None]) -> None:
        """Call `whom` after each new record of a partition."""
        self._listeners.setdefault(partition, []).append(whom)

    def append(self, partition: TopicPartition, value: bytes) -> None:
        """Store a record, and notify its readers, one hop from now."""

        def store() -> None:
            self.log.write(partition, value)
            for listener in self._listeners.get(partition, ()):
                listener()

        self.after(HOP, store)

    def run(self) -> None:
        """Run until no event is left."""
        while self._events:
            self.now, _, what = heapq.heappop(self._events)
            what()


class VirtualCollector:
    """One collector: feeds new records to its core, and makes the core's appends."""

    def __init__(self, world: VirtualWorld, plan: Plan, name: str) -> None:
        self._world = world
        starts = dict.fromkeys((log.name for log in plan.logs), 0)
        own = OrderStream(plan, name, starts)
        above = plan.collector(name).parent
        parent = None if above is None else OrderStream(plan, above, starts)
        # In virtual time appends cost nothing, so none waits for earlier ones.
        self.core = Collector(own, parent, writer=1, limits=CollectorLimits(pending_max=1000))
        self.core.own_end(0)
        self._own_partition = stream_partition(plan, name)
        world.tell(self._own_partition, self._own)
        if above is not None:
            self._parent_partition = stream_partition(plan, above)
            world.tell(self._parent_partition, self._follow)
        for number in sorted(own.own):
            partition = log_partition(plan.logs[number])
            self.core.log_end(number, 0)
            world.tell(partition, partial(self._grown, number, partition))

    def _grown(self, number: int, partition: TopicPartition) -> None:
        self.core.log_end(number, self._world.log.last_stable_offsets([partition])[partition])
        self._step()

    def _own(self) -> None:
        fetched = self._world.log.read(self._own_partition, self.core.own.offset_next, _ALL)
        for record in fetched.records if fetched else ():
            self.core.own_read(record.offset, record.value)
        self._step()

    def _follow(self) -> None:
        assert self.core.parent is not None
        fetched = self._world.log.read(self._parent_partition, self.core.parent.offset_next, _ALL)
        for record in fetched.records if fetched else ():
            self.core.parent_read(record.offset, record.value)
        self._step()

    def _step(self) -> None:
        for action in self.core.step(0):
            if isinstance(action, Append):
                self._world.append(self._own_partition, action.raw)


class VirtualConsumer:
    """One consumer; it records the latency of each message of the shared partition."""

    def __init__(self, world: VirtualWorld, plan: Plan, reading: RunningConsumer) -> None:
        self._world = world
        subscription = plan.subscription(reading.name)
        assert subscription is not None
        assert subscription.collector is not None
        name = subscription.collector
        self._order = OrderStream(plan, name, dict.fromkeys((log.name for log in plan.logs), 0))
        cursor = start_cursor(plan, name)
        self._delivery = Delivery(plan, subscription.interest, self._order, cursor)
        self._order_partition = stream_partition(plan, name)
        self._shared = plan.logs[0].name
        self.took: list[int] = []
        world.tell(self._order_partition, self._ordered)
        for number in self._delivery.logs:
            partition = log_partition(plan.logs[number])
            world.tell(partition, partial(self._payload, number, partition))

    def _ordered(self) -> None:
        fetched = self._world.log.read(self._order_partition, self._order.offset_next, _ALL)
        for record in fetched.records if fetched else ():
            self._delivery.order_read(record.offset, record.value)
        self._deliver()

    def _payload(self, number: int, partition: TopicPartition) -> None:
        end = self._world.log.last_stable_offsets([partition])[partition]
        fetched = self._world.log.read(partition, end - 1, 1)
        assert fetched is not None
        self._delivery.payload_read(number, fetched.records, fetched.position)
        self._deliver()

    def _deliver(self) -> None:
        for batch in self._delivery.deliver(_ALL):
            if batch.log.name == self._shared:
                sent = [int(record.value or b"") for record in batch.records]
                self.took += [self._world.now - sent_ticks for sent_ticks in sent]


def latencies(kind: str, size: int, arm: str) -> list[float]:
    """Run a tree of a size; return the hops of each message of the shared partition, sorted."""
    given = {"kind": kind, "size": size, "message_bytes": 24, "load": 1, "messages": _MESSAGES}
    layout = lay_out(from_document(given, name=kind), arm, _TOPIC)
    plan = layout.plan
    assert plan is not None
    world = VirtualWorld(plan)
    for node in plan.collectors:
        VirtualCollector(world, plan, node.name)
    readers = [VirtualConsumer(world, plan, reading) for reading in layout.consumers]
    _produce(world, plan, layout)
    world.run()
    took = sorted(ticks / HOP for reader in readers for ticks in reader.took)
    shared = sum(_log_of(index, layout) == 0 for index in range(_MESSAGES))
    assert len(took) == shared * len(readers), "every message is delivered to every consumer"
    return took


def _log_of(index: int, layout: Layout) -> int:
    """Choose a message's log: every third goes to a partition that is not shared, in turns."""
    return 1 + index // 3 % (len(layout.partitions) - 1) if index % 3 == 2 else 0


def _produce(world: VirtualWorld, plan: Plan, layout: Layout) -> None:
    """Let one producer send the messages; each carries the time at which it was sent."""

    def send(number: int) -> None:
        world.append(log_partition(plan.logs[number]), b"%d" % world.now)

    for index in range(_MESSAGES):
        world.after(index * _STEP, partial(send, _log_of(index, layout)))


def document(sizes: Sequence[int] = SIZES) -> dict[str, Any]:
    """Return the hops by kind of tree, size and arm, as a document."""
    series = []
    for kind in ("tree", "bottleneck"):
        for arm in ARMS:
            for size in sizes:
                took = latencies(kind, size, arm)
                entry: dict[str, Any] = {"kind": kind, "arm": arm, "size": size}
                entry |= {"messages": len(took), "p50_hops": statistics.median(took)}
                series.append({**entry, "max_hops": took[-1]})
    return {
        "schema_version": 1,
        "benchmark": "virtual",
        "command": "python -m bench.micro.virtual -o json",
        "model": {"hop": "one append and its fetch"},
        "figures": {},
        "series": series,
    }


def main(arguments: list[str]) -> None:
    """Print a line for each tree, or the document."""
    result = document()
    if arguments == ["-o", "json"]:
        sys.stdout.write(json.dumps(result, indent=1) + "\n")
        return
    for entry in result["series"]:
        sys.stdout.write(
            f"{entry['kind']:10} {entry['size']:3} {entry['arm']:14} "
            f"p50 {entry['p50_hops']:g} hops, slowest {entry['max_hops']:g}\n"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
