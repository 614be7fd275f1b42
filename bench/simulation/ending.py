"""How a schedule ends: the faults end, and the judge looks at what is left.

busy       all logs grow without a pause: debts and surplus must be mended all the same, and an
           epoch must end
hung       a transaction stays open: messages of all other logs must be delivered meanwhile
at rest    no log has a debt, and its next ticket orders exactly its next message; whoever
           begins at a checkpoint is where those are who began at the start, and reads little
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from bench.simulation.consumers import Consumers
from bench.simulation.judge import Judge, Violation
from bench.simulation.requests import CutShort
from bench.simulation.world import World
from bench.simulation.writers import Producers
from multicast.control import ControlState, log_partition, stream_partition
from multicast.errors import Trimmed
from multicast.order.rule import StreamState
from multicast.order.stream import OrderStream, StreamCheckpoint
from topology.tree import Log

BUSY_MS = 200  # between two messages of each log: a log with so many never rests for a tick
_BUSY_ROUNDS = 36  # a window has four ticks; an imbalance may end it, and leave a smaller one
_HELD_ROUNDS = 8  # more than levels and epochs, and than a collector takes to hold a log
_EPOCH_ROUNDS = 100  # more than an announced epoch takes to begin
_WHOLE = 100  # offsets: more than a log has that is released
_READ_MORE_MAX = 100  # beyond two intervals: what is appended at once, or a lost statement


class Ending:
    """The end of one run; `calm_round` gives all processes a turn after some milliseconds."""

    def __init__(
        self,
        world: World,
        judge: Judge,
        producers: Producers,
        consumers: Consumers,
        *,
        calm_round: Callable[[int], None],
    ) -> None:
        self._world = world
        self._judge = judge
        self._producers = producers
        self._consumers = consumers
        self._calm_round = calm_round

    def busy(self) -> Violation | None:
        """Let all logs grow; two producers die, one after a ticket, and one before it."""
        world = self._world
        logs = world.view().state.plan().logs
        for number, log in enumerate(logs):
            cut = (CutShort.TICKETS, CutShort.MESSAGES, None)[number % 3]
            self._producers.beside().multicast(log.to, 0, cut=cut)
        producer = self._producers.beside()
        for _ in range(_BUSY_ROUNDS):
            producer.refresh()
            for log in logs:
                producer.multicast(log.to, 0)
            self._calm_round(BUSY_MS)
        state = world.view().state
        if state.begun_epoch < state.epoch:
            return Violation("liveness", "an epoch does not end while all logs grow")
        # Without tickets each message makes a debt, until the next window.
        return self._late(state, " while it grows") if state.plan().tickets else None

    def hung(self, bits: int) -> Violation | None:
        """Leave a transaction open for a while."""
        world = self._world
        for _ in range(_EPOCH_ROUNDS):  # `apply` refuses while a transaction is open
            state = world.view().state
            if state.begun_epoch == state.epoch:
                break
            self._calm_round(250)
        else:
            return None  # why no epoch begins is judged at rest
        logs = state.plan().logs
        hung = logs[bits % len(logs)]
        transaction = world.log.transaction()
        offset = transaction.append(log_partition(hung), b"hung")
        producer = self._producers.beside()
        for _ in range(_HELD_ROUNDS):
            self._calm_round(250)
        for _ in range(2):
            producer.refresh()
            for log in logs:
                producer.multicast(log.to, 0)
            self._calm_round(250)
        for _ in range(_HELD_ROUNDS):
            self._calm_round(250)
        violation = self._beside(hung)
        transaction.commit()
        world.stores += 1
        self._judge.acknowledged("tx", hung.to, "accepted", f"{hung.name}:{offset}")
        return violation or self._release(hung)

    def _beside(self, hung: Log) -> Violation | None:
        """Check that consumers have all of the logs but the one with an open transaction."""
        for seat in self._consumers.seats:
            if seat.process is None:
                continue
            for name, reached in seat.process.delivery.progress().items():
                end = self._world.end(log_partition(seat.process.delivery.plan.log(name)))
                if name != hung.name and reached < end:
                    return Violation(
                        "held",
                        f"an open transaction in log {hung.name} delays messages of log {name}: "
                        f"{'/'.join(seat.label)} has {reached} of {end}",
                    )
        return None

    def _release(self, hung: Log) -> Violation | None:
        for _ in range(_HELD_ROUNDS):
            self._calm_round(250)
            for log, (position, debt, held), end in self._tops(self._world.view().state):
                if log.name == hung.name and not held and position >= end:
                    # What is left must fit into the record that releases the log.
                    whole = self._world.schedule.limits.run_length_max >= _WHOLE
                    if debt and whole:
                        return Violation("held", f"log {log.name} is released with a debt")
                    return None
        if self._world.view().state.plan().top(hung.name) is None:
            return None
        return Violation("held", f"log {hung.name} is not released")

    def go_on(self) -> None:
        """Give each log more messages, so that whoever reads it goes on."""
        producer = self._producers.beside()
        for _ in range(_HELD_ROUNDS):
            self._calm_round(250)
            producer.refresh()
            for log in self._world.view().state.plan().logs:
                producer.multicast(log.to, 0)

    # -- at rest ----------------------------------------------------------------------------

    def verdict(self) -> Violation | None:
        """Judge the streams of all epochs."""
        state = self._world.view().state
        return self._late(state) or self._checkpoints(state)

    def _late(self, state: ControlState, when: str = "") -> Violation | None:
        for log, (position, debt, held), end in self._tops(state):
            if position != end or debt or held:
                return Violation(
                    "not late",
                    f"log {log.name} ends at {end}, is ordered up to {position} and has a debt of "
                    f"{debt}{', and is held' if held else ''}{when}",
                )
        return None

    def _tops(self, state: ControlState) -> list[tuple[Log, tuple[int, int, bool], int]]:
        """Give of each ordered log its position, its debt, whether it is held, and its end."""
        plan = state.plan(state.begun_epoch)
        found = []
        streams: dict[str, OrderStream] = {}
        for log in plan.logs:
            top = plan.top(log.name)
            if top is None:
                continue
            if top.name not in streams:
                streams[top.name] = self._whole(state, plan.epoch, top.name)
            stream = streams[top.name]
            number = stream.plan.number(log.name)
            own = stream.state
            where = own.positions[number], own.debts[number], number in own.held
            found.append((log, where, self._world.next_offset(log_partition(log))))
        return found

    def _whole(self, state: ControlState, epoch: int, name: str) -> OrderStream:
        end = self._world.end(stream_partition(state.plan(epoch), name))
        return self._world.read_on(state.stream(epoch, name, below=end), strict=True)

    def _checkpoints(self, state: ControlState) -> Violation | None:
        for epoch in range(1, state.begun_epoch + 1):
            for node in state.plan(epoch).collectors:
                if state.first_epoch(epoch, node.name) == epoch:
                    wrong = self._checkpoints_of(state, epoch, node.name)
                    if wrong:
                        return Violation(
                            "checkpoints", f"of collector {node.name} of epoch {epoch}: {wrong}"
                        )
        return None

    def _checkpoints_of(self, state: ControlState, epoch: int, name: str) -> str:
        """Say what is wrong with the checkpoints of a stream, or ""."""
        partition = stream_partition(state.plan(epoch), name)
        end = self._world.end(partition)
        points = [p for p in state.checkpoints(epoch, name) if isinstance(p, StreamCheckpoint)]
        whole = state.opened(epoch, name)
        last: StreamState | None = None
        try:
            read_on = partial(self._world.read_on, strict=True)
            read_on(whole, whole.offset_next)
            for point in sorted(points, key=lambda point: point.record.mark):
                read_on(whole, point.record.mark)
                opened = state.opened(epoch, name, point)
                if opened.state != whole.state:
                    return f"the one at {point.offset} names another state"
                if last is None:
                    read_on(opened, end)
                    last = opened.state
            read_on(whole, end)
        except Trimmed:
            return ""
        if last is not None and last != whole.state:
            return "the oldest one leads elsewhere"
        if whole.state.frozen:
            return ""
        read = end - max([point.record.mark for point in points], default=whole.offset_first)
        bound = 2 * self._world.schedule.limits.checkpoint_records + _READ_MORE_MAX
        return f"a new reader reads {read} records" if read > bound else ""
