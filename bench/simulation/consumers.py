"""Simulated consumers: they read late and little, deliver, commit, crash, and resume from cursors.

Each turn runs `subscription` and `delivery` of the product; the turn's bits choose what it
does. Every delivery is reported to the judge.

    seat        one consumer instance over its restarts: its commits survive its processes
    start       where a process begins: the committed cursor, the beginning, or the end

This module contains no rule of the protocol, except the application's own: commit only processed
messages.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import cast

from bench.simulation.collectors import AMOUNTS
from bench.simulation.judge import Judge, Label
from bench.simulation.schedule import ConsumerSeat
from bench.simulation.world import READ_ALL, World
from multicast.conditional.lookback import Lookback
from multicast.consuming.batches import Batch
from multicast.consuming.cursor import Cursor
from multicast.consuming.delivery import Delivery
from multicast.consuming.group_positions import GroupPositions
from multicast.consuming.last_read import LastRead, LastReads
from multicast.consuming.stated_ends import read_stated, refuse_lost_stream, refuse_other_end, tell
from multicast.consuming.subscription import (
    SubscriptionRequest,
    chain_back,
    follow,
    pass_marker,
    resume,
)
from multicast.control import (
    SINGLE_LOG,
    ControlReader,
    ControlState,
    log_partition,
    stream_partition,
)
from multicast.drivers.protocol import Fetched, TopicPartition
from multicast.errors import (
    AmcastError,
    ClusterUnreachable,
    ProtocolViolation,
    TopicChanged,
    Trimmed,
    Truncated,
    UnknownVersion,
)

_STEPS_MAX = 200  # of a calm turn: a reader that goes on for ever may not hold up the others


class SimulatedConsumer:
    """One process of a seat, from its start to its crash."""

    def __init__(self, world: World, seat: Seat, judge: Judge, *, where: str) -> None:
        self.world = world
        self.seat = seat
        self.judge = judge
        self.view = world.view()
        state = self.view.state
        self.request = seat.request
        self.bounds = seat.spec.bounds
        self.lookback = Lookback(world.driver)
        self.last_reads = LastReads(world.driver)
        self.groups = GroupPositions()
        if where == "committed":
            assert seat.committed is not None
            self._resume(state, seat.committed)
            self.last_reads.refuse_others(seat.last_of_logs)
            self.groups.goes_on(seat.last_of_logs)
        elif where == "latest":
            latest = self._latest(state)
            self._resume(self.view.refresh(), latest)
        else:
            links, _ = chain_back(state, self.request, state.epoch)
            self._take(resume(state, self.request, links[-1].start, bounds=self.bounds))
        self.losses_told = state.losses
        self.last = self.delivery.position
        self._markers_passed = 0
        world.note("sits down", *seat.label, where, str(self.last))

    def _resume(self, state: ControlState, cursor: Cursor) -> None:
        trusting = not self.seat.distrusts_checkpoints
        self._take(resume(state, self.request, cursor, bounds=self.bounds, checkpoints=trusting))

    def _take(self, delivery: Delivery) -> None:
        """Deliver from this epoch from now on."""
        if delivery.order is not None and self.world.schedule.loses:
            where = delivery.plan.epoch, delivery.order.collector
            refuse_lost_stream(self.world.driver, self.view.state, *where)
        self.delivery = delivery
        delivery.void_too = True  # the judge compares the decisions
        self.order_partition: TopicPartition | None = None
        self.positions: dict[int, int] = {}
        if delivery.order is not None:
            self.order_partition = stream_partition(delivery.plan, delivery.order.collector)
        self.places = {number: log_partition(log) for number, log in delivery.logs.items()}
        self.last_reads.begin(self.order_partition)

    def _latest(self, state: ControlState) -> Cursor:
        """Return the cursor at the current end of the newest epoch that has begun."""
        epoch = state.begun_epoch
        _, source = self.request.resolve_at(state, epoch)
        epoch = state.first_epoch(epoch, source)
        plan = state.plan(epoch)
        if source.startswith(SINGLE_LOG):
            partition = log_partition(plan.log(source.removeprefix(SINGLE_LOG)))
            return Cursor(epoch, source, 0, 0, self.world.end(partition))
        return Cursor(epoch, source, self.world.end(stream_partition(plan, source)), 0, 0)

    # -- one turn ---------------------------------------------------------------------------

    def turn(self, bits: int) -> bool:
        """Do a part of a consumer's work, or all of it once the world is calm.

        Returns False if the process crashed. Raises the cores' errors about what they read.
        """
        if not self.world.calm:
            return self._part(bits)
        before: object = None
        for _ in range(_STEPS_MAX):
            if before == (before := self._progress()):
                break
            self._part(bits)
        return True

    def _progress(self) -> tuple[object, ...]:
        order = self.delivery.order
        read = 0 if order is None else order.offset_next
        waits = self.delivery.judges.wanted, self.delivery.order_paused(), self._markers_passed
        return self.delivery.plan.epoch, read, self.last, waits, *self.positions.values()

    def _part(self, bits: int) -> bool:
        calm = self.world.calm
        amount = READ_ALL if calm else AMOUNTS[bits & 3]
        if calm or bits & 4:
            state, before = self.view.refresh(), self.losses_told
            self.losses_told = state.losses
            if self.losses_told != before:
                tell(state, self.delivery)
        if calm or bits & 0x18:
            self.read_order(amount)
        if calm or bits & 0x60:
            self.read_payloads(bits >> 7, amount)
        if self.delivery.judges.wanted is not None:
            wanted = self.delivery.judges.wanted.log.topic
            self.lookback.read(self.delivery.judges, 0.0)
            if self.delivery.judges.wanted is None and not self.world.same_topic(wanted):
                raise TopicChanged(f"topic {wanted} was deleted and recreated")
        alive = True
        if calm or bits & 0x3000:
            alive = self.deliver(bits >> 14)
        if alive and (calm or bits & 0x800):
            self.turn_epoch()
        return alive

    def read_order(self, amount: int) -> None:
        """Read the next records of the order stream, until the core pauses it."""
        delivery = self.delivery
        if self.order_partition is None or delivery.order is None or delivery.order_paused():
            return
        fetched = self._read(self.order_partition, delivery.order.offset_next, amount)
        if fetched is None:
            return
        for record in fetched.records:
            delivery.order_read(record)
            if delivery.order_paused():
                return
        delivery.order_passed(fetched.position)

    def read_payloads(self, bits: int, amount: int) -> None:
        """Read the next records of some of the logs that are not paused."""
        delivery = self.delivery
        self._prove()
        starts = delivery.payload_starts
        if starts is None:
            return
        if not self.positions:
            # Messages that were ordered early may not be stored yet; reads beyond the end fail.
            self.positions = {
                number: min(start, self.world.end(self.places[number]))
                for number, start in starts.items()
            }
            self.last_reads.begins({self.places[log]: at for log, at in self.positions.items()})
        paused = delivery.paused()
        for number, position in self.positions.items():
            bits >>= 1
            if number in paused or not (self.world.calm or bits & 1):
                continue
            fetched = self._read(self.places[number], position, amount)
            if fetched is not None:
                if not self.world.same_topic(self.places[number].topic):
                    name = self.places[number].topic
                    raise TopicChanged(f"topic {name} was deleted and recreated")
                self.positions[number] = fetched.position
                delivery.payload_read(number, fetched.records, fetched.position)
                self.world.worked(self.seat.spec.consumer, delivery.logs[number].name)

    def _read(self, partition: TopicPartition, position: int, amount: int) -> Fetched | None:
        """Read on as the product does; raises `Truncated` if what was read before is gone."""
        try:
            fetched = self.world.read(partition, position, amount)
        except Trimmed:
            if self.world.schedule.loses:
                self.last_reads.refuse_lost(partition)
            raise
        if fetched is not None:
            self.last_reads.note(partition, fetched.records, fetched.position)
        return fetched

    def _prove(self) -> None:
        """Compare the message before the cursor."""
        if self.delivery.unproven is not None:
            number, offset, checksum = self.delivery.unproven
            self.last_reads.refuse_others({self.places[number]: LastRead(offset, checksum)})
            self.delivery.unproven = None

    def deliver(self, bits: int) -> bool:
        """Deliver messages one by one, and commit; perhaps crash in between. False: it crashed."""
        world = self.world
        most = READ_ALL if world.calm else AMOUNTS[bits & 3]
        crash_after = commit_after = -1
        if not world.calm:
            if not bits >> 2 & world.schedule.crash_mask:
                crash_after = bits >> 10 & 7
            if bits >> 14 & 1:
                commit_after = bits >> 15 & 7
        done = 0
        for batch in self._next_batches(most):
            for index in range(len(batch.records)):
                if done == crash_after:
                    return self._crash()
                self._hand_over(batch, index)
                done += 1
                if done == commit_after:
                    self.commit(self.last)
        if crash_after >= 0:
            return self._crash()
        if world.calm or bits >> 13 & 1:
            self.commit(self.last)
        return True

    def _next_batches(self, most: int) -> list[Batch]:
        """Take what can be delivered; at a stop, read what is stated of the logs' ends."""
        self.groups.follow(self.delivery)
        batches = self.delivery.deliver(most)
        for batch in batches:
            self.groups.handed_out(batch)
        if batches:
            self.groups.moved(self.delivery)
        elif self.delivery.stopped_in is not None:
            control = cast("ControlReader", self.view)
            read_stated(self.world.driver, control, self.delivery, nullcontext())
        return batches

    def _hand_over(self, batch: Batch, index: int) -> None:
        cursor = batch.cursor(index)
        label = self.seat.label
        message_id = self.judge.delivered(label, batch, index, before=self.last)
        if self.delivery.order is not None and self.world.schedule.loses:
            lost = self.delivery.order.state.lost.get(self.delivery.plan.number(batch.log.name))
            self.judge.refuse_lost(label, message_id, batch.records[index].offset, lost)
        self.world.trace.append((self.world.now, "delivers", *label, message_id))
        self.last = cursor

    def commit(self, cursor: Cursor) -> None:
        """Commit the cursor of the last message that the application has processed."""
        if self.seat.committed != cursor:
            self.seat.committed = cursor
            self.seat.last_of_logs = self.groups.last_of_logs(cursor, self.last_reads.gaps())
            self.world.note("commits", *self.seat.label, str(cursor))

    def _crash(self) -> bool:
        self.world.fault("consumer crashed")
        self.world.note("crashes", *self.seat.label, str(self.last))
        return False

    def turn_epoch(self) -> None:
        """Continue with the next epoch if this one has ended."""
        delivery, state = self.delivery, self.view.state
        if delivery.order is None and delivery.marker is not None and not delivery.ended:
            self._markers_passed += pass_marker(state, delivery, self.view.refresh)
            return
        if delivery.ended:
            self._prove()
            following = follow(state, self.request, delivery, bounds=self.bounds)
            if following is not None:
                if self.order_partition is not None and self.world.schedule.loses:
                    self.last_reads.refuse_lost(self.order_partition)
                refuse_other_end(state, delivery.order)
                self._take(following)
                self.last = following.position
                self.world.note("turns to epoch", *self.seat.label, following.plan.epoch)


class Seat:
    """One consumer instance: what survives its processes, and the running process."""

    def __init__(self, spec: ConsumerSeat, request: SubscriptionRequest) -> None:
        self.spec = spec
        self.request = request
        self.label: Label = (spec.consumer, spec.instance)
        self.committed: Cursor | None = None
        self.last_of_logs: dict[TopicPartition, LastRead] = {}  # as the commit has them
        self.process: SimulatedConsumer | None = None
        self.late = spec.late
        self.successors = 0
        self.distrusts_checkpoints = False


def requests_of(world: World) -> dict[str, SubscriptionRequest]:
    """Give what each consumer asks for: by its name in the plan, or by its interest."""
    scene = world.schedule.scene
    return {
        name: SubscriptionRequest.of(name, None if named else interest)
        for (name, interest), named in zip(scene.interests, scene.named, strict=True)
    }


class Consumers:
    """All seats. A seat without a process starts one with its turn."""

    def __init__(self, world: World, judge: Judge) -> None:
        self._world = world
        self._judge = judge
        self._stores = -1  # what was stored before the last calm turns
        requests = requests_of(world)
        self.seats = [Seat(spec, requests[spec.consumer]) for spec in world.schedule.seats]

    def turn(self, bits: int) -> None:
        """Give one seat a turn."""
        self._turn(self.seats[(bits & 63) % len(self.seats)], bits >> 6)

    def epochs(self) -> int:
        """Sum the current epochs of all processes: it rises while some seat changes its epoch."""
        return sum(s.process.last.epoch for s in self.seats if s.process is not None)

    def calm_turns(self) -> None:
        """Give every seat a turn, unless there is nothing new since all had one."""
        stores = self._world.stores
        if self._stores == stores and all(seat.process for seat in self.seats):
            return
        self._stores = stores
        for seat in self.seats:
            self._turn(seat, 0)

    def _turn(self, seat: Seat, bits: int) -> None:
        try:
            if seat.process is None:
                self._start(seat, bits >> 36 & 7)
            assert seat.process is not None
            if not seat.process.turn(bits):
                self._crashed(seat)
        except ProtocolViolation as error:
            # The log contradicts a checkpoint: the next process starts without one.
            self._stopped(seat, error)
            seat.distrusts_checkpoints = True
        except (Trimmed, Truncated) as error:
            # Retention deleted what it needs: a new instance joins at the end. Or it is lost: some
            # begin anew first.
            self._stopped(seat, error)
            seat.committed = None
            seat.late = isinstance(error, Trimmed) or seat.successors > 2
            self._inherit(seat)
        except (TopicChanged, UnknownVersion) as error:
            self._stopped(seat, error)
        except ClusterUnreachable:
            self._world.fault("consumer met a leader that is away")  # and goes on
        except AmcastError as error:
            self._stopped(seat, error)
            raise

    def _start(self, seat: Seat, choice: int) -> None:
        where = "earliest"
        if seat.committed is not None and (choice or seat.late):
            where = "committed"
        elif seat.late:
            where = "latest"
        seat.process = SimulatedConsumer(self._world, seat, self._judge, where=where)
        self._judge.begins(seat.label, seat.process.last, seat.committed)

    def _crashed(self, seat: Seat) -> None:
        assert seat.process is not None
        self._world.stats.void += sum(seat.process.delivery.void.values())
        seat.process = None
        if seat.late and seat.committed is None:
            # It started at the end and left no cursor, so its successor starts at a later end. The
            # judge must not expect the messages in between, so the successor gets another label.
            self._inherit(seat)

    def _inherit(self, seat: Seat) -> None:
        self._judge.gives_up(seat.label)
        seat.successors += 1
        seat.label = (seat.spec.consumer, f"{seat.spec.instance}{seat.successors}")

    def _stopped(self, seat: Seat, error: AmcastError) -> None:
        seat.process = None
        self._world.fault(f"consumer stopped: {type(error).__name__}")
        self._world.note("stops", *seat.label, type(error).__name__)
