"""Simulated consumers: they read late and little, deliver, commit, crash, and go on from cursors.

A turn's bits go in; `multicast.subscription` and `multicast.delivery` say what is delivered, and
the judge hears of every message that is handed to the application.

    seat        a durable place: what was committed there survives the process that sits on it
    start       where a process begins: the committed cursor, the beginning, or the end

No rule of the protocol stands here, except the one that is the application's: commit what was
processed, never more.
"""

from __future__ import annotations

from bench.simulation.judge import Judge, Label
from bench.simulation.nodes import AMOUNTS
from bench.simulation.schedule import ConsumerSeat
from bench.simulation.world import READ_ALL, World
from multicast.control import ALONE, ControlState, log_partition, stream_partition
from multicast.cursor import Cursor
from multicast.delivery import Batch, Delivery
from multicast.drivers.protocol import TopicPartition
from multicast.errors import AmcastError, ProtocolViolation, TopicChanged, Trimmed, UnknownVersion
from multicast.subscription import SubscriptionRequest, earliest, follow, pass_marker, resume


class SimulatedConsumer:
    """One process on a seat, from its start to its crash."""

    def __init__(self, world: World, sitter: Sitter, judge: Judge, *, where: str) -> None:
        self.world = world
        self.sitter = sitter
        self.judge = judge
        self.view = world.view()
        state = self.view.state
        self.wanted = sitter.wanted
        self.bounds = sitter.seat.bounds
        if where == "committed":
            assert sitter.committed is not None
            self._resume(state, sitter.committed)
        elif where == "latest":
            latest = self._latest(state)
            self._resume(self.view.refresh(), latest)
        else:
            self._take(earliest(state, self.wanted, bounds=self.bounds))
        self.last = self.delivery.position
        world.note("sits down", *sitter.label, where, str(self.last))

    def _resume(self, state: ControlState, cursor: Cursor) -> None:
        trusting = not self.sitter.wary
        self._take(resume(state, self.wanted, cursor, bounds=self.bounds, checkpoints=trusting))

    def _take(self, delivery: Delivery) -> None:
        """Read for this epoch from now on."""
        self.delivery = delivery
        self.order_at: TopicPartition | None = None
        self.positions: dict[int, int] = {}
        if delivery.order is not None:
            self.order_at = stream_partition(delivery.plan, delivery.order.collector)
        self.places = {number: log_partition(log) for number, log in delivery.logs.items()}

    def _latest(self, state: ControlState) -> Cursor:
        """Make the cursor of the end of the newest epoch that has begun."""
        epoch = state.begun_epoch
        _, source = self.wanted.resolve(state.plan(epoch))
        epoch = state.first_epoch(epoch, source)
        plan = state.plan(epoch)
        if source.startswith(ALONE):
            at = log_partition(plan.log(source.removeprefix(ALONE)))
            return Cursor(epoch, source, 0, 0, self.world.end(at))
        return Cursor(epoch, source, self.world.end(stream_partition(plan, source)), 0, 0)

    # -- one turn ---------------------------------------------------------------------------

    def turn(self, bits: int) -> bool:
        """Do some of what a process does, or all of it once the world is calm; False: it crashed.

        Raises what the cores say about what they read.
        """
        calm = self.world.calm
        amount = READ_ALL if calm else AMOUNTS[bits & 3]
        if calm or bits & 4:
            self.view.refresh()
        if calm or bits & 0x18:
            self.read_order(amount)
        if calm or bits & 0x60:
            self.read_payloads(bits >> 7, amount)
        alive = True
        if calm or bits & 0x3000:
            alive = self.deliver(bits >> 14)
        if alive and (calm or bits & 0x800):
            self.turn_epoch()
        return alive

    def read_order(self, amount: int) -> None:
        """Read on in the order stream, until the core has enough."""
        delivery = self.delivery
        if self.order_at is None or delivery.order is None or delivery.order_paused():
            return
        fetched = self.world.read(self.order_at, delivery.order.offset_next, amount)
        if fetched is None:
            return
        for record in fetched.records:
            delivery.order_read(record.offset, record.value)
            if delivery.order_paused():
                return
        delivery.order_passed(fetched.position)

    def read_payloads(self, bits: int, amount: int) -> None:
        """Read on in some of the logs that are not paused."""
        delivery = self.delivery
        starts = delivery.payload_starts
        if starts is None:
            return
        if not self.positions:
            # What was ordered early may not be there yet: beyond a log's end nobody can read.
            self.positions = {
                number: min(start, self.world.end(self.places[number]))
                for number, start in starts.items()
            }
        paused = delivery.paused()
        for number, position in self.positions.items():
            bits >>= 1
            if number in paused or not (self.world.calm or bits & 1):
                continue
            fetched = self.world.read(self.places[number], position, amount)
            if fetched is not None:
                if not self.world.same_topic(self.places[number].topic):
                    name = self.places[number].topic
                    raise TopicChanged(f"topic {name} was deleted and made again")
                self.positions[number] = fetched.position
                delivery.payload_read(number, fetched.records, fetched.position)
                self.world.worked(self.sitter.seat.consumer, delivery.logs[number].name)

    def deliver(self, bits: int) -> bool:
        """Hand messages to the application one by one, and commit; perhaps crash in between."""
        world = self.world
        most = READ_ALL if world.calm else AMOUNTS[bits & 3]
        crash_after = commit_after = -1
        if not world.calm:
            if not bits >> 2 & world.schedule.crash_mask:
                crash_after = bits >> 10 & 7
            if bits >> 14 & 1:
                commit_after = bits >> 15 & 7
        done = 0
        for batch in self.delivery.deliver(most):
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

    def _hand_over(self, batch: Batch, index: int) -> None:
        cursor = batch.cursor(index)
        label = self.sitter.label
        message_id = self.judge.delivered(label, batch, index, before=self.last)
        self.world.trace.append((self.world.turn, "delivers", *label, message_id))
        self.last = cursor

    def commit(self, cursor: Cursor) -> None:
        """Make a position durable: the last message that the application has processed."""
        if self.sitter.committed != cursor:
            self.sitter.committed = cursor
            self.world.note("commits", *self.sitter.label, str(cursor))

    def _crash(self) -> bool:
        self.world.fault("consumer crashed")
        self.world.note("crashes", *self.sitter.label, str(self.last))
        return False

    def turn_epoch(self) -> None:
        """Go on with the next epoch where this one is over."""
        delivery, state = self.delivery, self.view.state
        if delivery.order is None and delivery.marker is not None and not delivery.ended:
            pass_marker(state, delivery, self.view.refresh)
            return
        if delivery.ended:
            following = follow(state, self.wanted, delivery, bounds=self.bounds)
            if following is not None:
                self._take(following)
                self.last = following.position
                self.world.note("turns to epoch", *self.sitter.label, following.plan.epoch)


class Sitter:
    """What a seat remembers between its processes."""

    def __init__(self, seat: ConsumerSeat, wanted: SubscriptionRequest) -> None:
        self.seat = seat
        self.wanted = wanted
        self.label: Label = (seat.consumer, seat.instance)
        self.committed: Cursor | None = None
        self.process: SimulatedConsumer | None = None
        self.late = seat.late
        self.heirs = 0
        self.wary = False  # of checkpoints


class Consumers:
    """All seats. A process sits down when its turn comes and nobody sits there."""

    def __init__(self, world: World, judge: Judge) -> None:
        self._world = world
        self._judge = judge
        scene = world.schedule.scene
        wanted = {
            name: SubscriptionRequest.of(name, None if named else interest)
            for (name, interest), named in zip(scene.interests, scene.named, strict=True)
        }
        self.sitters = [Sitter(seat, wanted[seat.consumer]) for seat in world.schedule.seats]

    def turn(self, bits: int) -> None:
        """Give one seat its turn."""
        self._turn(self.sitters[(bits & 63) % len(self.sitters)], bits >> 6)

    def epochs(self) -> int:
        """Count the epochs that all seats have come through."""
        return sum(s.process.last.epoch for s in self.sitters if s.process is not None)

    def calm_turns(self) -> None:
        """Give every seat a turn."""
        for sitter in self.sitters:
            self._turn(sitter, 0)

    def _turn(self, sitter: Sitter, bits: int) -> None:
        try:
            if sitter.process is None:
                self._sit_down(sitter, bits >> 36 & 7)
            assert sitter.process is not None
            if not sitter.process.turn(bits):
                self._stand_up(sitter)
        except ProtocolViolation as error:
            # The log belies a checkpoint: the next process does without.
            self._stopped(sitter, error)
            sitter.wary = True
        except Trimmed as error:
            # Retention went past it: somebody else joins at the end, who never saw the beginning.
            self._stopped(sitter, error)
            sitter.committed = None
            sitter.late = True
            self._inherit(sitter)
        except (TopicChanged, UnknownVersion) as error:
            self._stopped(sitter, error)
        except AmcastError as error:
            self._stopped(sitter, error)
            raise

    def _sit_down(self, sitter: Sitter, choice: int) -> None:
        where = "earliest"
        if sitter.committed is not None and (choice or sitter.late):
            where = "committed"
        elif sitter.late:
            where = "latest"
        sitter.process = SimulatedConsumer(self._world, sitter, self._judge, where=where)
        self._judge.begins(sitter.label)

    def _stand_up(self, sitter: Sitter) -> None:
        assert sitter.process is not None
        self._world.stats.void += sum(sitter.process.delivery.void.values())
        sitter.process = None
        if sitter.late and sitter.committed is None:
            # It began at the end and left no cursor: who comes next begins at a later end, and is
            # somebody else to whom what lies between was never addressed.
            self._inherit(sitter)

    def _inherit(self, sitter: Sitter) -> None:
        sitter.heirs += 1
        sitter.label = (sitter.seat.consumer, f"{sitter.seat.instance}{sitter.heirs}")

    def _stopped(self, sitter: Sitter, error: AmcastError) -> None:
        sitter.process = None
        self._world.fault(f"consumer stopped: {type(error).__name__}")
        self._world.note("stops", *sitter.label, type(error).__name__)
