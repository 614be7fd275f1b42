"""The drain: ends one epoch, so that the next one begins.

The newest plan of the control topic is that of the next epoch, which has not begun. This module
does the I/O of the steps that `epoch_change.py` defines. Each step first reads what is in the logs,
so a killed drain is run again, and several drains at once do no harm.

    ready     a collector of the next epoch that an instance has opened: it only waits for the end
    helped    a collector of the old epoch that did not freeze in time: the drain runs an instance
              of it (any process may run any collector at any time)

The drain refuses an epoch that a wrong order record has damaged; `recovery.py` ends that.

Invariant: the ends are written after all collectors are frozen and all logs reach their ends, but
for those that have lost them, and say what is a function of these.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import MappingProxyType
from uuid import uuid4

from collectors.core.epoch_change import cuts_of, ends_of, logs_to_mark, losses_of, seen_of
from collectors.core.mending import ordered_to, resumed
from collectors.engine.engine import Engine
from collectors.engine.instance import CollectorInstance
from collectors.engine.skips import fill_up
from multicast.control import (
    ControlReader,
    control_partition,
    ends_record,
    log_partition,
    markers_record,
    stream_partition,
)
from multicast.control.documents import Ended
from multicast.drivers.clock import clock_of
from multicast.drivers.protocol import (
    Appended,
    AppendFailed,
    AppendOutcome,
    Driver,
    Reader,
    TopicPartition,
)
from multicast.errors import AccessDenied, AppendRefused, AppendUnknown, Conflict, TimedOut
from multicast.messages import epoch_header
from multicast.order.runs import digest_of
from multicast.order.stream import OrderStream
from topology.tree import Plan

# How long to wait for the next epoch's collectors. Without the wait the change only pauses
# deliveries for longer; ten times more delays a change for which nobody runs collectors.
_READY_S = 3.0
# Longer than several standbys need to take over one after the other, 0.2 s each along a path of the
# tree. So the drain helps only collectors without any instance.
_HELP_S = 1.5
_POLL_S = 0.05  # adds to the pause of a change, so well below the 0.2 s that a human notices
_NAMED_MAX = 10  # names in a sentence; more make it unreadable


def drain(
    driver: Driver,
    control: ControlReader,
    epoch: int,
    *,
    timeout_s: float,
    say: Callable[[str], None],
) -> bool:
    """End an epoch; return once the next one can begin.

    The plan of the next epoch must be in the control topic. Blocks for at most `timeout_s` seconds,
    then raises `TimedOut`: run it again. `say` is called with a sentence for each step. Returns
    True if all collectors froze without help of the drain.
    """
    with ExitStack() as opened:
        deadline = clock_of(driver).monotonic() + timeout_s
        steps = Drain(driver, control, epoch, deadline=deadline, say=say)
        opened.callback(steps.appender.close)
        steps.run(opened)
        return not steps.helped


@dataclass(frozen=True, slots=True)
class Streams:
    """The streams that end, by their Kafka partitions, and their common reader."""

    reader: Reader
    places: Mapping[TopicPartition, OrderStream]

    @property
    def named(self) -> dict[str, OrderStream]:
        """The streams by their collectors' names."""
        return {stream.collector: stream for stream in self.places.values()}

    def read(self, timeout_s: float) -> None:
        """Poll once, for at most `timeout_s` seconds, and read the records."""
        for fetched in self.reader.poll(timeout_s):
            stream = self.places[fetched.partition]
            for record in fetched.records:
                stream.read(record.offset, record.value)
            stream.passed(fetched.position)


class Drain:
    """One drain; `recovery.py` overrides the steps that cope with damage."""

    gone: Mapping[str, int] = MappingProxyType({})  # checkpoints that streams lost, by collector

    def __init__(
        self,
        driver: Driver,
        control: ControlReader,
        epoch: int,
        *,
        deadline: float,
        say: Callable[[str], None],
    ) -> None:
        self.appender = driver.appender()
        self.helped = False
        self._driver = driver
        self._clock = clock_of(driver)
        self._control = control
        self._plan: Plan = control.state.plan(epoch)
        self._retained = control.state.retained(epoch)
        self._next: Plan = control.state.plan(epoch + 1)
        self._deadline = deadline
        self._denied: AccessDenied | None = None  # why an instance of ours could not help
        self._say = say

    def run(self, opened: ExitStack) -> None:
        """Do all steps that are not done yet; `opened` closes what they open."""
        epoch = self._plan.epoch
        state = self._control.refresh()
        if epoch in state.ends:
            return
        if epoch not in state.markers:
            self._wait_for_ready()
        # Opened before collectors freeze: afterwards it would make the pause longer.
        streams = self._open_streams(opened)
        if epoch not in state.markers:
            positions = self._mark()
            attempt = self._attempt()
            self._write(*markers_record(state.previous, epoch, positions, attempt=attempt))
            state = self._control.refresh()
            if epoch not in state.markers:
                raise self._overtaken()
        self._say(f"epoch {epoch}: its collectors freeze")
        ends = self._wait_for_freeze(streams, state.markers[epoch], opened)
        losses = losses_of(state, epoch, streams.places.values())
        cuts = cuts_of(self._plan, self._next, losses, streams.places.values())
        sight, ended = seen_of(streams.named, ends, cuts), self._settle(streams, ends, cuts)
        ended = replace(ended, seen=sight.seen, lost=sight.lost)
        full = {**ends, **ordered_to(streams.places.values())}
        self._fill({name: end for name, end in full.items() if name not in losses})
        ends.update(cuts)
        if epoch not in (state := self._control.refresh()).ends:
            attempt = self._attempt()
            key, value = ends_record(state.previous, epoch, ends, attempt=attempt, ended=ended)
            self._restore(ends, ended, began=digest_of(value))
            self._write(key, value)
            if epoch not in self._control.refresh().ends:
                raise self._overtaken()
        self._say(f"epoch {epoch} has ended")

    def _overtaken(self) -> Conflict:
        return Conflict(
            f"another operator changes topic {self._plan.topic} at the same time: run "
            f"'amcast topology apply' again"
        )

    def _attempt(self) -> str:
        """Give a name that no other attempt to write to the control topic has."""
        return uuid4().hex

    def _wait_for_ready(self) -> None:
        """Wait for a while until the next epoch's collectors are open, so that the pause is short.

        Correctness does not depend on it.
        """
        until = min(self._deadline, self._clock.monotonic() + _READY_S)
        names = {node.name for node in self._next.collectors} - self._retained.collectors
        while self._clock.monotonic() < until:
            if names <= self._control.state.advertised.collectors_open(self._next.epoch):
                return
            self._control.follow(_POLL_S)

    def _mark(self) -> dict[str, int]:
        """Append an epoch marker to each log that needs one; give the offset after each marker."""
        outcomes: dict[str, AppendOutcome] = {}
        names = logs_to_mark(self._plan, self._retained)
        for name in names:

            def done(outcome: AppendOutcome, name: str = name) -> None:
                outcomes[name] = outcome

            partition = log_partition(self._plan.log(name))
            header = epoch_header(name, self._next.epoch)
            self.appender.append(partition, None, headers=[header], done=done)
        self._flush()
        # A refused record makes those behind it unknown, in whatever log: it tells the cause.
        for outcome in outcomes.values():
            if isinstance(outcome, AppendFailed) and isinstance(outcome.error, AppendRefused):
                raise outcome.error
        return {name: _offset(outcomes.get(name), name) + 1 for name in names}

    def _open_streams(self, opened: ExitStack) -> Streams:
        """Open the streams that have to freeze, and read once."""
        epoch = self._plan.epoch
        names = {
            stream_partition(self._plan, node.name): node.name
            for node in self._plan.collectors
            if node.name not in self._retained.collectors
        }
        ends = self._driver.last_stable_offsets(list(names))
        places: dict[TopicPartition, OrderStream] = {
            partition: self._control.state.stream(
                epoch, name, below=min(ends[partition], self.gone.get(name, ends[partition]))
            )
            for partition, name in names.items()
        }
        reader = self._driver.reader(
            {partition: stream.offset_next for partition, stream in places.items()}
        )
        opened.callback(reader.close)
        streams = Streams(reader, places)
        streams.read(0.0)
        return streams

    def _wait_for_freeze(
        self, streams: Streams, markers: Mapping[str, int], opened: ExitStack
    ) -> dict[str, int]:
        """Read the streams until all are frozen; give the end of each log."""
        epoch = self._plan.epoch
        named = streams.named
        help_at = self._clock.monotonic() + _HELP_S
        while (ends := ends_of(self._plan, named, markers, self._retained)) is None:
            now = self._clock.monotonic()
            waits = [name for name, stream in named.items() if not stream.state.frozen]
            if self._denied is not None:
                raise self._denied
            if now >= self._deadline:
                raise TimedOut(
                    f"epoch {epoch} has not ended in time: {some(waits)} did not freeze; "
                    f"run 'amcast topology apply' again; where 'amcast doctor' names damage, run "
                    f"'amcast topology recover'"
                )
            if now >= help_at:
                self.helped = True
                help_at = now + self._help(waits, streams, opened)
            streams.read(min(_POLL_S, self._deadline - now))
        return ends

    def _help(self, names: list[str], streams: Streams, opened: ExitStack) -> float:  # noqa: ARG002
        """Run an instance of each collector that did not freeze in time.

        Gives the number of seconds after which to help again.
        """
        self._say(f"{some(names)} did not freeze in time; this command runs an instance of each")
        engine = opened.enter_context(Engine(self._driver, self._plan.topic))
        for name in names:
            node = CollectorInstance(engine, name, epoch=self._plan.epoch)

            def ended(node: CollectorInstance = node) -> None:
                if isinstance(node.error, AccessDenied):
                    self._denied = node.error
                elif node.error is not None:
                    self._say(f"{node.name}: {node.error}")

            node.on_end = ended
            engine.add(node)
        return float("inf")

    def _settle(self, streams: Streams, ends: Mapping[str, int], cuts: Collection[str]) -> Ended:
        """Raise `Conflict` if the streams contradict each other; a recovery repairs that.

        `ends` are those of the streams, also of the logs that are cut.
        """
        strayed = resumed(streams.named, ends, cuts)
        torn = self._frozen_early(ends, cuts) + [
            f"collector {name} has strayed" for name in strayed
        ]
        if torn:
            raise Conflict(
                f"epoch {self._plan.epoch} cannot end without loss: {torn[0]}; "
                f"run 'amcast topology recover'"
            )
        return Ended()

    def _restore(self, ends: Mapping[str, int], ended: Ended, *, began: bytes) -> None:
        """Append what the next epoch's streams are owed: nothing, after an ordinary change."""

    def _frozen_early(self, ends: Mapping[str, int], cuts: Collection[str]) -> list[str]:
        markers = self._control.state.markers[self._plan.epoch]
        return [
            f"log {name} was frozen before its marker"
            for name, marker in markers.items()
            if ends.get(name, marker) < marker and name not in cuts
        ]

    def _fill(self, targets: Mapping[str, int]) -> None:
        """Fill each log up to its ordered position, which tickets may put beyond its end.

        However many skips that takes: the collectors are frozen, so a refusal would let all wait.
        """
        deadline, say = self._deadline, self._say
        fill_up(self._driver, self.appender, self._plan, targets, deadline=deadline, say=say)

    def _write(self, key: bytes, value: bytes) -> None:
        outcomes: list[AppendOutcome] = []
        partition = control_partition(self._plan.topic)
        self.appender.append(partition, value, key=key, done=outcomes.append)
        self._flush()
        _offset(outcomes[0] if outcomes else None, partition.topic)

    def _flush(self) -> None:
        if not self.appender.flush(max(0.0, self._deadline - self._clock.monotonic())):
            raise TimedOut(
                "the brokers did not acknowledge the drain's records in time; run the command again"
            )


def _offset(outcome: AppendOutcome | None, name: str) -> int:
    if isinstance(outcome, Appended):
        return outcome.offset
    if isinstance(outcome, AppendFailed):
        raise outcome.error
    raise AppendUnknown(f"{name} did not acknowledge a record; run the command again")


def with_stream_starts(driver: Driver, plan: Plan) -> Plan:
    """Fill in where the collectors' streams begin: at the present ends of their partitions."""
    places = {node.name: stream_partition(plan, node.name) for node in plan.collectors}
    ends = driver.last_stable_offsets(list(places.values()))
    nodes = [replace(node, stream_first=ends[places[node.name]]) for node in plan.collectors]
    return replace(plan, collectors=tuple(nodes))


def some(names: Sequence[str]) -> str:
    """Join the first few names, and say how many more there are."""
    more = len(names) - _NAMED_MAX
    return ", ".join(names[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
