"""A cluster for scenarios: the real cores on the in-memory log, moved by hand, step by step.

Tests and scenario scripts say who reads what, which append is stored and which is lost, and look at
the actions that the cores return. Nothing happens that the caller did not ask for. A node here is
one instance of a collector; in a plan (`CollectorSpec`), a collector.
"""

from dataclasses import replace

from collectors.core.actions import Append, SaveCheckpoint
from collectors.core.collector import LIMITS, Collector
from collectors.core.epoch_change import ends_of, freeze_positions, logs_to_mark
from multicast.consuming.cursor import Cursor
from multicast.consuming.subscription import Bounds, SubscriptionRequest, chain_back, follow, resume
from multicast.control import (
    ControlState,
    collectors_partition,
    control_partition,
    ends_record,
    genesis,
    log_partition,
    markers_record,
    order_topic,
    plan_record,
    stream_partition,
)
from multicast.drivers.memory.driver import MemoryLog
from multicast.messages import covered_header, epoch_header
from multicast.order.records import CheckpointRecord, FreezeRecord, OwnRecord, RelayRecord, decode
from multicast.order.rule import NotCounted
from multicast.order.runs import Run, order_checksum
from topology.tree import CollectorSpec, Log, Objective, Plan, Subscription

TOPIC = "A"
CONTROL, COLLECTORS = control_partition(TOPIC), collectors_partition(TOPIC)
ALL = 1_000_000


class InMemoryCluster:
    """One cluster and everybody on it, by name."""

    def __init__(self):
        self.log = MemoryLog(
            {
                **dict.fromkeys((TOPIC, f"{TOPIC}.groups", order_topic(TOPIC)), 9),
                **dict.fromkeys((CONTROL.topic, COLLECTORS.topic), 1),
            },
            now_ms=lambda: self.now,
        )
        self.sets = []
        self.nodes = {}
        self.consumers = {}
        self.bounds = Bounds()
        self.limits = LIMITS
        self.now = 0  # in milliseconds; only callers move it
        self._attempts = 0
        self._writers = 0

    # -- plans --------------------------------------------------------------------------------

    def control(self):
        state = ControlState(TOPIC)
        for partition in (CONTROL, COLLECTORS):
            fetched = self.log.read(partition, 0, ALL)
            for record in fetched.records if fetched else ():
                state.read_from(partition, record)
        return state

    def plan(self, logs, collectors, consumers=(), *, streams=None):
        """Apply a plan: logs by name, collectors as {name: (bag, parent)}, consumers as
        {name: (interest, collector)}. What runs before it is still to be drained."""
        names = sorted({partition for log in logs for partition in log.split("+")})
        for name in logs:
            if "+" in name and name not in self.sets:
                self.sets.append(name)
        state = self.control()
        plan = Plan(
            topic=TOPIC,
            epoch=state.epoch + 1,
            base_epoch=state.epoch,
            cluster_id="",
            input_hash="",
            partitions=tuple(names),
            logs=tuple(
                Log(name, f"{TOPIC}.groups", self.sets.index(name))
                if "+" in name
                else Log(name, TOPIC, int(name[1:]) - 1)
                for name in logs
            ),
            collectors=tuple(
                CollectorSpec(name, tuple(sorted(bag)), parent, (streams or {}).get(name, place))
                for place, (name, (bag, parent)) in enumerate(collectors.items())
            ),
            consumers=tuple(
                Subscription(name, tuple(sorted(interest)), collector)
                for name, (interest, collector) in dict(consumers).items()
            ),
            objective=Objective(0.0, 0.0, 0.0, 0.0),
        )
        plan = replace(
            plan,
            collectors=tuple(
                replace(node, stream_first=self.end(stream_partition(plan, node.name)))
                for node in plan.collectors
            ),
        )
        key, value = plan_record(state.previous or genesis(TOPIC), plan, attempt=self._attempt())
        self.log.write(CONTROL, value, key=key)
        return plan

    def mark(self):
        """Append the newest epoch's markers to the previous epoch's logs; record where they are."""
        state = self.control()
        plan = state.plan(state.epoch - 1)
        markers = {
            name: self.log.write(
                log_partition(plan.log(name)), b"", headers=(epoch_header(name, state.epoch),)
            )
            + 1
            for name in logs_to_mark(plan, state.retained(plan.epoch))
        }
        key, value = markers_record(state.previous, plan.epoch, markers, attempt=self._attempt())
        self.log.write(CONTROL, value, key=key)
        return markers

    def finish(self):
        """Record where the drained epoch's logs end; None before its markers and freezes."""
        state = self.control()
        plan = state.plan(state.epoch - 1)
        if plan.epoch not in state.markers:
            return None
        carried = state.retained(plan.epoch)
        streams = {
            node.name: self.stream(plan, node.name)
            for node in plan.collectors
            if node.name not in carried.collectors
        }
        ends = ends_of(plan, streams, state.markers[plan.epoch], carried)
        if ends is not None:
            key, value = ends_record(state.previous, plan.epoch, ends, attempt=self._attempt())
            self.log.write(CONTROL, value, key=key)
        return ends

    def _attempt(self):
        self._attempts += 1
        return str(self._attempts)

    def writer(self):
        """Give every instance a number of its own."""
        self._writers += 1
        return self._writers

    def stream(self, plan, name):
        """Read a stream from the epoch's start to its end."""
        stream = self.control().opened(plan.epoch, name)
        fetched = self.log.read(stream_partition(plan, name), stream.offset_next, ALL)
        for record in fetched.records if fetched else ():
            stream.read(record.offset, record.value)
        return stream

    def end(self, partition):
        return self.log.last_stable_offsets([partition])[partition]

    # -- messages -------------------------------------------------------------------------------

    def multicast(self, to, *, payload=b"m", plan=None):
        """Append a message to the log that covers a destination set, "P1+P3"; give its ID."""
        plan = plan or self.control().plan()
        exact = tuple(sorted(to.split("+")))
        log = plan.cover(exact)
        headers = () if exact == log.to else (covered_header(log.name, exact),)
        return f"{log.name}:{self.log.write(log_partition(log), payload, headers=headers)}"

    # -- collectors -----------------------------------------------------------------------------

    def node(self, name, *, epoch=None, checkpoint=False):
        """Start an instance "K1.a" of a collector."""
        self.nodes[name] = OneNode(self, name, epoch, checkpoint=checkpoint)
        return self.nodes[name]

    def settle(self, *names):
        """Let these instances (default: all) read, write and store until nothing more happens."""
        chosen = [self.nodes[name] for name in names] if names else list(self.nodes.values())
        moved = True
        while moved:
            moved = False
            for node in chosen:
                node.look()
                node.step()
                moved |= bool(node.store())

    # -- consumers ------------------------------------------------------------------------------

    def consumer(self, name, interest=None, *, cursor=None):
        """Start an instance "C1.a" of a consumer, at a cursor's text or at the beginning."""
        self.consumers[name] = OneConsumer(self, name, interest, cursor)
        return self.consumers[name]


class OneNode:
    """One instance of a collector. Its appends are in flight until they are stored or lost."""

    def __init__(self, cluster, name, epoch, *, checkpoint):
        self.cluster = cluster
        self.name = name.split(".")[0]
        state = cluster.control()
        self.epoch = epoch or state.epoch
        self.plan = state.plan(self.epoch)
        self.partition = stream_partition(self.plan, self.name)
        own_end = cluster.end(self.partition)
        own = state.stream(self.epoch, self.name, below=own_end if checkpoint else 0)
        above = self.plan.collector(self.name).parent
        parent = None
        if above is not None:
            below = own.state.parent_next if checkpoint else 0
            parent = state.stream(self.epoch, above, below=below)
            self.parent_at = stream_partition(self.plan, above)
        self.core = Collector(
            own, parent, writer=cluster.writer(), clock=lambda: cluster.now, limits=cluster.limits
        )
        self.core.own_end(own_end)
        self.in_flight = []

    def look(self, *logs):
        """Read everything there is: markers, both streams, the ends of these logs (default all)."""
        markers = self.cluster.control().markers.get(self.epoch)
        if markers is not None:
            self.core.freeze_after(freeze_positions(self.plan, markers))
        self.read_own()
        if self.core.parent is not None:
            parent = self.core.parent
            fetched = self.cluster.log.read(self.parent_at, parent.offset_next, ALL)
            for record in fetched.records if fetched else ():
                self.core.parent_read(record.offset, record.value, order_checksum(record))
        for number in sorted(self.core.own.own):
            log = self.plan.logs[number]
            if not logs or log.name in logs:
                self.core.log_end(number, self.cluster.end(log_partition(log)))

    def read_own(self):
        fetched = self.cluster.log.read(self.partition, self.core.own.offset_next, ALL)
        for record in fetched.records if fetched else ():
            self.core.own_read(record.offset, record.value)
        self.core.own_passed(self.core.own.offset_next)

    def step(self):
        """Take the core's actions; give them in words. Appends are in flight from now on."""
        told = []
        for action in self.core.step():
            if isinstance(action, Append):
                self.in_flight.append(action.raw)
                record = decode(self.core.own.shape.tag, action.raw)
                told.append(f"append {in_words(self.plan, record)}")
            elif isinstance(action, SaveCheckpoint):
                named = self.cluster.control().naming(action.checkpoint, self.cluster.now)
                if named is not None:
                    self.cluster.log.write(COLLECTORS, named[1], key=named[0])
                told.append(f"save the checkpoint at offset {action.checkpoint.offset}")
            else:
                told.append(f"fill {self.plan.logs[action.log].name} below {action.below}")
        return told

    def store(self, count=None):
        """Store the first appends in flight (default: all) in the stream; say what they order."""
        landing = self.in_flight[:count]
        del self.in_flight[:count]
        told = []
        for raw in landing:
            reader = self.cluster.stream(self.plan, self.name)
            offset = self.cluster.log.write(self.partition, raw)
            judged = reader.read(offset, raw)
            is_void = isinstance(judged, NotCounted)
            says = f"is void: {judged.value}" if is_void else f"orders {runs_of(self.plan, judged)}"
            told.append(f"{offset} {says}")
        return told

    def lose(self):
        """Lose the first append in flight; its writer learns that the outcome is unknown."""
        del self.in_flight[0]
        self.core.append_failed()


class OneConsumer:
    """One instance of a consumer."""

    def __init__(self, cluster, name, interest, cursor):
        self.cluster = cluster
        state = cluster.control()
        self.wanted = SubscriptionRequest.of(None if interest else name.split(".")[0], interest)
        if cursor is None:
            cursor = chain_back(state, self.wanted, state.epoch)[0][-1].start
        self._take(resume(state, self.wanted, Cursor.of(cursor), bounds=cluster.bounds))
        self.delivered = []

    def _take(self, delivery):
        self.delivery = delivery
        self.positions = {}

    def read_order(self):
        order = self.delivery.order
        if order is None:
            return
        at = stream_partition(self.delivery.plan, order.collector)
        fetched = self.cluster.log.read(at, order.offset_next, ALL)
        if fetched:
            for record in fetched.records:
                self.delivery.order_read(record)
            self.delivery.order_passed(fetched.position)

    def read_payloads(self, *logs):
        delivery = self.delivery
        if delivery.payload_starts is None:
            return
        paused = delivery.paused()
        for number, start in delivery.payload_starts.items():
            log = delivery.logs[number]
            if number in paused or (logs and log.name not in logs):
                continue
            position = self.positions.get(number, start)
            fetched = self.cluster.log.read(log_partition(log), position, ALL)
            if fetched:
                delivery.payload_read(number, fetched.records, fetched.position)
                self.positions[number] = fetched.position

    def deliver(self, most=ALL):
        """Deliver what is ready; give the IDs."""
        told = [
            f"{batch.log.label}:{record.offset}"
            for batch in self.delivery.deliver(most)
            for record in batch.records
        ]
        self.delivered += told
        return told

    def turn_epoch(self):
        """Note where a single log ends, or begin the next epoch; whether it did either."""
        delivery, state = self.delivery, self.cluster.control()
        if delivery.order is None and not delivery.ended:
            epoch = delivery.plan.epoch
            if delivery.marker is None or epoch not in state.ends:
                return False
            (log,) = delivery.logs.values()
            delivery.end_log_at(state.single_log_end(epoch, log.name))
            return True
        if not delivery.ended:
            return False
        following = follow(state, self.wanted, delivery, bounds=self.cluster.bounds)
        if following is None:
            return False
        self._take(following)
        return True

    def drain(self):
        """Read, deliver and turn epochs until nothing more comes; give all that was delivered."""
        told = []
        while True:
            self.read_order()
            self.read_payloads()
            new = self.deliver()
            told += new
            if not new and not self.turn_epoch():
                return told

    @property
    def cursor(self):
        return self.delivery.position


def runs_of(plan, runs: tuple[Run, ...]):
    """Spell runs as LOG[first,next)."""
    return (
        " ".join(f"{plan.logs[log].name}[{first},{end})" for log, first, end in runs) or "nothing"
    )


def in_words(plan, record):
    """Spell an order record: its kind, and each entry as LOG<upto."""

    def upto(log, end):
        return f"{plan.logs[log].name}<{end}"

    match record:
        case OwnRecord(tickets, corrections):
            said = [upto(each.log, each.upto) for each in tickets]
            said += [f"correct {plan.logs[each.log].name} by {each.amount}" for each in corrections]
            return f"own {' '.join(said)}"
        case RelayRecord(first, end, entries):
            said = " ".join(upto(*entry) for entry in entries)
            return f"relay of {first} to {end}: {said}"
        case FreezeRecord():
            return "freeze"
        case CheckpointRecord(mark):
            return f"checkpoint of {mark}"
