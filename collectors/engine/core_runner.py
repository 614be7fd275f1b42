"""Runs the core of one collector: events come in, the core decides, its actions are carried out.

There is no thread here. The loops of the process (`engine.py`) bring the ends of our logs, the
records of our own and the parent's stream, the acks of appends, and ticks. The thread that brings
an event takes the lock, gives the event to the core, and carries out the core's actions, in the
order in which the core gives them.

    lock    one thread at a time works with the core
    acks    arrive on any thread, also on the one that holds the lock. The thread that queues an ack
            tries the lock and never waits for it: if it does not get it, it leaves the ack to the
            thread that has it, which looks for acks again after it has released the lock
    over    no event is taken and no action is carried out any more

An exception ends this one instance; another one continues from the collector's order stream.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from collectors.core.actions import Append, Fill, SaveCheckpoint
from collectors.core.collector import Collector
from collectors.core.sights import EpochEnd, Question
from collectors.core.standby import Standby
from collectors.engine.advertisement import Advertisement
from collectors.engine.assignment import Assignment
from collectors.engine.clock import TickSubscription
from collectors.engine.engine import Engine
from collectors.engine.log_waits import LogWaits
from collectors.engine.own_stream import OwnStream
from collectors.engine.questions import unstated_losses, unstated_stream
from collectors.engine.read_ahead import ReadAhead
from collectors.engine.status import TroubleLog, troubles
from collectors.engine.stream_loop import StreamBatch
from multicast.drivers.protocol import LeaderEnd, Record, TopicPartition
from multicast.errors import AmcastError, TopicChanged, Truncated
from multicast.order.runs import order_checksum
from multicast.order.stream import StreamCheckpoint

# Between two questions where our streams begin: each costs a request for all of a process. Ten
# times as long, new readers fail for so long after records were deleted.
_STARTS_EVERY_S = 10.0
# A statement is read back within some ten milliseconds; one that was lost is written again.
_RESTATE_S = 1.0


class CoreRunner:
    """The sink of all events of one instance. `end` is called without the lock held.

    Nothing reaches the core before `begin`, nor after `over`.
    """

    def __init__(
        self,
        engine: Engine,
        assignment: Assignment,
        role: Standby,
        *,
        end: Callable[[Exception | None], None],
    ) -> None:
        self.assignment = assignment
        self.core: Collector
        self.begun = False
        self.over = False
        self.skips_appended = 0
        self._fills = 0
        self._leaving = False
        self._behind = True  # until our own stream is read up to our start
        self._ahead: ReadAhead | None = None  # what came before `begin` and was not given on yet
        self._waits = LogWaits()
        self.lock = threading.Lock()
        self.advertisement = Advertisement(engine, assignment)
        self._engine = engine
        self._role = role
        self._end = end
        self._own = OwnStream(engine, assignment.own)
        self._parent_paused = False  # while the core has no room for more of its records
        self._parent_held: deque[Record] = deque()  # those that had come before it paused
        self._parent_position = 0  # behind them
        self._ticks = TickSubscription(engine.clock, self)
        self._trouble_log = TroubleLog()
        self._losses_due_s = 0.0  # when those are stated that the control topic lacks
        self._starts_due_s = time.monotonic() + _STARTS_EVERY_S

    # -- life: with the lock held ---------------------------------------------------------------

    def open(self) -> None:
        """Have the engine's loops follow our logs."""
        if self._role.primary:
            self.advertisement.advertise()
        self._engine.ends.follow(self, list(self.assignment.logs))
        self._engine.appender.ready(self.assignment.own)  # before the first append is due

    def stand_ready(self) -> None:
        """Follow our streams, so that `begin` loses no time."""
        own = self.assignment.own
        starts = self.assignment.stream_starts()
        self._ahead = ReadAhead(starts, own, earlier=self._engine.control.tags_in(own))
        self._engine.streams.subscribe(self, starts)

    def begin(self, core: Collector, ends: Mapping[TopicPartition, int]) -> None:
        """Work with this core, and read its streams, which end at `ends`, from where it is."""
        self.core = core
        self._role.begin(core)
        self.begun = True
        if self._ahead is not None:  # the subscriptions go on, behind what is kept
            self._pause(self._ahead.full, paused=False)
            return
        starts = {self.assignment.own: core.own.offset_next}
        if self.assignment.parent is not None and core.parent is not None:
            starts[self.assignment.parent] = core.parent.offset_next
        self._engine.streams.subscribe(self, starts, ends=ends)
        self._catch_up()

    def _pause(self, streams: Sequence[TopicPartition], *, paused: bool) -> None:
        for stream in streams:
            self._engine.streams.pause(self, stream, paused=paused)

    def _catch_up(self) -> None:
        """Read our own stream without a hurry once it is read up to our start."""
        if self._behind and self.core.caught_up():
            self._behind = False
            # Producers write it, too, and only children hurry to relay.
            self._engine.streams.urge(self, self.assignment.own, urgent=False)

    def release(self) -> bool:
        """Offer the collector to a standby, and act on until it has taken over; then end.

        Returns False, and does nothing, where the instance does not act, or has left its share and
        its successor has advertised itself.
        """
        role = self._role
        if not self.begun or not role.acting:
            return False
        if not role.primary and self.advertisement.is_superseded():
            return False
        self.advertisement.offer(self.core.writer)
        role.primary = False
        self._leaving = True
        return True

    # -- life: without the lock -----------------------------------------------------------------

    def take_what_came(self) -> None:
        """Take the records and the ends of our logs that came before `begin`."""
        self._take(self._records, ())
        self._take(self._log_ends, self._engine.ends.known(list(self.assignment.logs)))
        self._engine.chores.recheck(self)

    def close(self) -> None:
        """Leave the engine's loops; `over` is set."""
        self._engine.ends.leave(self, list(self.assignment.logs))
        self._engine.streams.unsubscribe(self, list(self.assignment.stream_starts()))
        self._engine.clock.leave(self)

    def fail(self, error: Exception) -> None:
        """End the instance with an error; state it if a stream has lost its end."""
        if isinstance(error, Truncated) and error.partition is not None:
            stream = TopicPartition(*error.partition)
            statements = unstated_stream(self.assignment, stream, self._engine.control)
            try:
                self._engine.refuse_changed(self.assignment.plan, self.assignment.topics)
            except TopicChanged as changed:
                error, statements = changed, []  # the new topics' stream has lost nothing
            except AmcastError:
                pass  # nobody says so
            for statement in statements:
                self._engine.write_control(*statement)
        self._end(error)

    # -- events -----------------------------------------------------------------------------------

    def on_batches(self, batches: Sequence[StreamBatch]) -> None:
        """Take records of our own and the parent's stream."""
        with self.lock:
            if not self.begun:
                if self._ahead is not None:
                    self._pause(self._ahead.take(batches), paused=True)
                return
        self._take(self._records, batches)

    def on_ends(self, ends: Mapping[TopicPartition, int]) -> int | None:
        """Take ends of logs that moved; see `EndSink.on_ends` for the count."""
        self._engine.chores.recheck(self)
        counts: list[int] = []

        def count_and_take() -> None:
            core, logs = self.core, self.assignment.logs
            counts.append(sum([core.unordered(logs[log], end) for log, end in ends.items()]))
            self._log_ends(ends)

        self._take(count_and_take)
        return sum(counts) if counts and self._role.acting else None

    def on_transaction_opened(self) -> None:
        """Take the news of an open transaction in a log: ticks tell whether the log is held."""
        self._take(_nothing)

    def filled(self, log: int, end: int | None) -> None:
        """Take the end of a log after a fill; None where it is unknown."""
        self._take(lambda: self.core.filled(log, end))

    def question(self, logs: Collection[int] | None = None) -> Question | None:
        """Give the question for the leaders of our logs; None where another instance acts."""
        with self.lock:
            if self.over or not self.begun or not self._role.acting:
                return None
            return self.core.question(logs)

    def epochs(self, question: Question, ends: Mapping[int, LeaderEnd]) -> Mapping[int, int]:
        """Give by log the leader epoch whose end to ask for."""
        with self.lock:
            return self.core.epochs(question, ends)

    def answered(
        self, question: Question, ends: Mapping[int, LeaderEnd], epoch_ends: Mapping[int, EpochEnd]
    ) -> None:
        """Take the leaders' answers."""
        self._take(lambda: self.core.answered(question, ends, epoch_ends), is_event=False)

    def is_judged(self, log: int) -> bool:
        """Whether holes of a log may be filled, as of the last answer."""
        with self.lock:
            return self.core.is_judged(log)

    @property
    def wants_starts(self) -> bool:
        """Whether to ask where our streams begin."""
        return self._role.acting and time.monotonic() >= self._starts_due_s

    def streams_begin(self, starts: Mapping[TopicPartition, int]) -> None:
        """Take where our streams begin now."""
        self._starts_due_s = time.monotonic() + _STARTS_EVERY_S
        self._take(self._begins, starts, is_event=False)

    def control_changed(self) -> None:
        """Take the newest state of the control topic."""
        self._take(self._control)

    def tick(self) -> None:
        """Take a tick; unlike an event, it does not keep the instance on the clock."""
        self._take(self._tick, is_event=False)

    def look(self) -> None:
        """Look whether a standby's patience has ended, or the process that acted."""
        self._take(self._look, is_event=False)

    # -- the loop: one thread at a time, an event at a time ---------------------------------------

    def _take(self, give: Callable[..., None], *events: object, is_event: bool = True) -> None:
        """Give events to the core, and carry out what it decides."""
        try:
            with self.lock:
                if self.over or not self.begun:
                    return
                if is_event:
                    self._ticks.event()
                give(*events)
                self._carry_out()
        except Exception as error:  # noqa: BLE001 - this instance's failure, not the loop's
            self._end(error)
            return
        self._acked()
        # Not in `_acked`, which may run with the lock held.
        if self._is_relieved():
            self._end(None)

    def _acked(self) -> None:
        """Take the acks that are queued; end the instance once its epoch is over."""
        try:
            self._take_acks()
        except Exception as error:  # noqa: BLE001 - this instance's failure, not the loop's
            self._end(error)
            return
        if self.core.frozen:
            self._end(None)

    def _is_relieved(self) -> bool:
        """Whether a standby has taken over what `release` has offered."""
        if not self._leaving:
            return False
        return not self._role.acting or self.advertisement.is_taken(self.core.writer)

    def _take_acks(self) -> None:
        """Give acks to the core, unless another thread holds the lock: then that one does it."""
        while self._own.has_acks and self.lock.acquire(blocking=False):
            try:
                while self._own.has_acks:
                    self._own.take_ack(None if self.over else self.core)
                if not self.over:
                    self._ticks.event()
                    self._carry_out()
            finally:
                self.lock.release()

    def _carry_out(self) -> None:
        """Carry out what the core decides now."""
        self._own.restart_if_failed(self.core)
        acted, acts = self._role.acting, self._role.decide(self.core, time.monotonic())
        if self._role.waiting and self.advertisement.is_holder_known_dead():
            self._role.holder_ended()
            acts = self._role.decide(self.core, time.monotonic())
        if acts and not acted:
            self.advertisement.advertise()
            self._engine.chores.recheck(self)
        if self._role.waiting or self.core.waits:
            self._engine.clock.hurry(self)
        for action in self.core.step() if acts else ():
            match action:
                case Append(raw):
                    self._own.append(raw, writer=self.core.writer, acked=self._acked)
                case SaveCheckpoint(checkpoint):
                    self._name(checkpoint)
                case Fill():
                    self._fills += 1
                    self._engine.chores.fill(self, action)
        if acts and (self.core.lost or self.core.parent_lost):
            self._state_losses()
        if self.assignment.parent is not None:
            self._read_while_room(self.assignment.parent)

    def _state_losses(self) -> None:
        """Write to the control topic what it lacks of losses that we know; again in a second."""
        now = time.monotonic()
        if now < self._losses_due_s:
            return
        lost = {log: first for log, first in self.core.lost.items() if log in self.core.own.own}
        control, parent = self._engine.control, self.assignment.parent
        statements = unstated_losses(self.assignment.plan, lost, control)
        if self.core.parent_lost:
            statements += unstated_stream(self.assignment, parent, control)
        if statements:
            self._losses_due_s = now + _RESTATE_S
            self._engine.chores.state(self, statements)

    def _read_while_room(self, parent: TopicPartition) -> None:
        if self._parent_held:
            self._give_parents()
        if self.core.parent_paused is not self._parent_paused:
            self._parent_paused = not self._parent_paused
            self._pause([parent], paused=self._parent_paused)

    def _name(self, checkpoint: StreamCheckpoint) -> None:
        statement = self._engine.control.naming(checkpoint, time.time_ns() // 1_000_000)
        if statement is not None:
            self._engine.write_control(*statement)

    # -- what each event says to the core ---------------------------------------------------------

    def _records(self, batches: Sequence[StreamBatch]) -> None:
        ahead, self._ahead = self._ahead, None
        every = [*(ahead.batches() if ahead else ()), *batches]
        # Our own first: what it has relayed is compared with the parent's records as they come.
        for batch in sorted(every, key=lambda batch: batch.partition != self.assignment.own):
            if batch.partition == self.assignment.own:
                self._own.take_records(self.core, batch)
            elif self.core.parent is not None:
                _, records, position = batch.since(self.core.parent.offset_next)
                self._parent_held.extend(records)
                self._parent_position = position
                self._give_parents()
        self._catch_up()

    def _give_parents(self) -> None:
        """Give records of the parent's stream while the core has room for them."""
        while self._parent_held and not self.core.parent_paused:
            record = self._parent_held.popleft()
            self.core.parent_read(record.offset, record.value, order_checksum(record))
        if not self._parent_held:
            self.core.parent_passed(self._parent_position)

    def _log_ends(self, ends: Mapping[TopicPartition, int]) -> None:
        for partition, end in ends.items():
            log = self.assignment.logs[partition]
            self.core.log_end(log, end)
            if log in self.core.own.own:
                self._waits.log_end(log, end, self.core.own.state.positions[log])

    def _begins(self, starts: Mapping[TopicPartition, int]) -> None:
        self.core.streams_begin(*[starts[stream] for stream in self.assignment.streams])
        self._trouble_log.look(troubles(self.assignment, self.core))

    def _control(self) -> None:
        # The newest one, whoever calls: with an older one, an offer would be lost.
        state = self._engine.control
        positions = self.assignment.freeze_positions(state)
        if positions is not None:
            self.core.freeze_after(positions)
        writer = state.advertised.offered_by(self.assignment.plan.epoch, self.assignment.name)
        is_others = writer not in (None, self.core.writer)
        self._role.offer(writer if is_others else None)
        if is_others and self._role.acting:  # since before the offer, which the topic still shows
            self.advertisement.advertise()
        elif self.advertisement.is_overtaken():
            self._role.step_back()

    def _look(self) -> None:
        if self._role.waiting and self.advertisement.has_dead_holder():
            self._role.holder_ended()

    def _tick(self) -> None:
        core, logs = self.core, self.assignment.logs
        highs = self._engine.ends.highs(list(logs))
        by_log = {logs[partition]: high for partition, high in highs.items()}
        core.tick(by_log)
        self._waits.tick(core.ahead, core.own.state.positions, by_log, time.monotonic())
        self._trouble_log.look(troubles(self.assignment, core))
        # Perhaps a topic is gone, which the brokers do not say at once, or what was to be stated of
        # a log's end was lost.
        if core.lag or self.wants_starts or (core.to_ask and self._role.acting):
            self._engine.chores.recheck(self)
        may_rest = self._ticks.tick()
        due = core.pending or core.early or core.lag or highs or self._own.has_failed
        if may_rest and not due and not core.due:
            self._engine.clock.rest(self)

    def progress(self, starts: Mapping[int, int]) -> dict[str, Any]:
        """Tell how far the core is, after `begin`; `starts` are the epoch's. From any thread.

        Taken without the lock, so figures of one moment may be a record apart.

        records         of the stream that counted, whoever wrote them
        appended_here   records that this instance has appended, counted or not
        fills           holes that the core wanted filled; for some of them a skip was appended
        ordered_early   offsets that were in the order before they were in their log
        lags            offsets of each log whose top this is, not ordered yet
        stable_lag      records of logs with an open transaction
        ordered         offsets of each log since the epoch's start
        lost            of each log that has lost its end, the first offset that is lost
        """
        core, waits, append_s, now = self.core, self._waits, self._own.latencies, time.monotonic()
        names = [log.name for log in self.assignment.plan.logs]
        ahead, since, still = core.ahead, waits.since, waits.still_since
        lags = {log: max(0, -ahead.get(log, 0)) for log in sorted(core.own.own)}
        positions = sorted(dict(core.own.state.positions).items())
        return {
            "parent": self.assignment.parent_name,
            "acting": self._role.acting,
            "takeovers": self._role.takeovers,
            "frozen": core.frozen,
            "records": core.own.count,
            "appended_here": self._own.appended,
            "pending": core.pending,
            "lag": core.lag,
            "early": core.early,
            "skips": self.skips_appended,
            "fills": self._fills,
            "ordered_early": waits.early,
            "append_seconds": {"counts": tuple(append_s.counts), "sum": append_s.sum_s},
            "lags": {names[log]: lag for log, lag in lags.items()},
            "lag_seconds": {
                names[log]: now - since[log] if lag and log in since else 0.0
                for log, lag in lags.items()
            },
            "stable_lag": {names[log]: waits.stable_lag.get(log, 0) for log in lags},
            "transaction_seconds": {
                names[log]: now - still[log] if log in still else 0.0 for log in lags
            },
            "held": [names[log] for log in sorted(core.held)],
            "lost": {names[log]: first for log, first in sorted(core.lost.items())},
            "troubles": list(troubles(self.assignment, core)),
            "void": {reason.name.lower(): count for reason, count in core.void.items()},
            "ordered": {names[log]: position - starts[log] for log, position in positions},
        }


def _nothing() -> None:
    """Give nothing to the core: what is due is carried out anyway."""
