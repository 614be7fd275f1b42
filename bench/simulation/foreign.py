"""Foreign writers: transactions, foreign records, retention, compaction, wrong checkpoints.

Each turn makes one event that no process of ours causes; none of them may change an order. Leaders
of Kafka partitions that do not answer for a while are such events, too.
"""

from __future__ import annotations

import json
from dataclasses import replace

from bench.simulation.judge import Judge
from bench.simulation.trees import STREAMS, TOPIC
from bench.simulation.world import COLLECTORS, CONTROL, World
from multicast.control import (
    ends_record,
    log_partition,
    markers_record,
    order_topic,
    stream_partition,
)
from multicast.control.checkpoints import LEVELS, SLOTS
from multicast.control.codecs import named_record
from multicast.drivers.protocol import Headers, TopicPartition
from multicast.messages import EPOCH, SKIP, TO
from multicast.order.records import (
    CheckpointRecord,
    Correction,
    FreezeRecord,
    OwnRecord,
    Position,
    RelayRecord,
    RestoredRecord,
    Ticket,
    encode,
)
from multicast.order.stream import StreamCheckpoint
from topology.tree import Log

_TAG = slice(3, 19)  # of an order record: docs/protocol.md
OPEN_MAX = 2  # open transactions: two are enough to overlap
# Of a leader that is away: longer than a producer's time-outs, than those of an instance, a minute.
_AWAY_MS = (300, 2000, 2000, 10_000, 10_000, 30_000, 40_000, 60_000)


class ForeignWriters:
    """All writers to the cluster that are not part of the system."""

    def __init__(self, world: World, judge: Judge) -> None:
        self._world = world
        self._judge = judge
        self._view = world.view(is_told=False)
        self._lies: list[StreamCheckpoint] = []

    # -- transactions -----------------------------------------------------------------------

    def transaction(self, bits: int) -> None:
        """Begin a transaction in one or two logs, or end one; it holds their last stable offset."""
        world = self._world
        if world.transactions and (bits & 1 or len(world.transactions) >= OPEN_MAX):
            self._end_transaction(commit=bool(bits & 2))
            return
        logs = self._view.refresh().plan().logs
        transaction = world.log.transaction()
        written: list[tuple[Log, int]] = []
        for part in range(1 + (bits >> 2 & 1)):
            log = logs[(bits >> 8 * part + 4 & 0xFF) % len(logs)]
            written.append((log, transaction.append(log_partition(log), b"in a transaction")))
        world.transactions.append((transaction, written))
        world.fault("transaction")

    def _end_transaction(self, *, commit: bool) -> None:
        transaction, written = self._world.transactions.pop(0)
        if not commit:
            transaction.abort()
            return
        transaction.commit()
        for log, offset in written:
            if not self._world.same_topic(log.topic):
                continue
            self._judge.acknowledged("tx", log.to, "accepted", f"{log.name}:{offset}")

    # -- foreign records --------------------------------------------------------------------

    def garbage(self, bits: int) -> None:
        """Write a record that our processes never write, to a data, order or control topic."""
        self._world.fault("foreign record")
        which, bits = bits & 3, bits >> 2
        if which == 0:
            self._odd_message(bits)
        elif which == 1:
            self._statement(bits)
        else:
            self._order_garbage(bits)

    def _odd_message(self, bits: int) -> None:
        """Multicast with a plain client; the headers look like ours and are not."""
        logs = self._view.refresh().plan().logs
        log, other = logs[bits % len(logs)], logs[(bits >> 6) % len(logs)]
        name = log.name.encode()
        odd: tuple[Headers, ...] = (
            ((SKIP, b"elsewhere"),),
            ((EPOCH, name + b"|soon"),),
            ((EPOCH, name + b"|" + b"9" * 5000),),
            ((EPOCH, None), ("theirs", None)),
            ((TO, name + b"|P9,P1"),),
            ((TO, b"elsewhere|P1"),),
            (("amcast.unknown", b"\xff"),),
            (("\ufffd", b"not UTF-8"), (SKIP, name)),
            (("theirs", other.name.encode()),),
        )
        if not self._world.same_topic(log.topic):
            return
        partition = log_partition(log)
        if bits >> 16 & 1:
            # A record that looks like a marker is no message, and must not stop a reader.
            epoch = 1 + (bits >> 17) % (self._view.state.epoch + 2)
            self._world.put(partition, b"?", ((EPOCH, b"%s|%d" % (name, epoch)),))
            self._world.fault("foreign marker")
            return
        offset = self._world.put(partition, b"?", odd[(bits >> 12) % len(odd)])
        self._judge.acknowledged("plain", log.to, "accepted", f"{log.name}:{offset}")

    def _statement(self, bits: int) -> None:
        """Write a record to a control topic that no state of the system can mean.

        False but possible statements are out of scope: their writer is Byzantine.
        """
        state = self._view.refresh()
        ends = {log.name: log.first + 1000 for log in state.plan().logs}
        attempt = f"stranger {self._world.now}"
        # These follow the chain, so that what is wrong with them is what says so.
        follows = b'{"previous":"%s","positions":%%s}' % state.previous.hex().encode()
        web = {"host": "a" * 70, "port": 99999999999, "process": "00" * 8}
        page = json.dumps({"epoch": state.epoch, "web": web}).encode()
        node = state.plan().collectors[0].name if state.plan().collectors else ""
        odd = (
            (None, _GARBAGE[bits % len(_GARBAGE)]),
            (b"plan/2/x/y", b"{not JSON"),
            (b"ends/77/x/y", b"[" * 100_000),
            (b"ends/1/x/y", follows % b'{"P1":1e999}'),
            (b"markers/1/x/y", follows % b'{"P1":-1}'),
            (b"ends/1/x/y", follows % b"{}"),
            markers_record(state.previous, state.epoch, ends, attempt=attempt),
            ends_record(state.previous, state.epoch, ends, attempt=attempt),
            (f"running/{node}".encode(), page),
            (f"stranger/{node}".encode(), page),
            (f"checkpoint/{state.epoch}/{node}/0".encode(), b'{"positions":{"999":1}}'),
            # Early, in a slot that no checkpoint of such a short run has.
            (f"checkpoint/{node}/{LEVELS}/0".encode(), b'{"epoch":%d}' % (state.epoch + 1)),
        )
        key, value = odd[(bits >> 8) % len(odd)]
        self._world.log.write((CONTROL, COLLECTORS)[bits >> 6 & 1], value, key=key)
        self._world.fault("foreign statement")

    def _order_garbage(self, bits: int) -> None:
        """Write to a stream: noise, a copy of an old record, or one that no state allows."""
        world = self._world
        plan = self._view.refresh().plan()
        stream = bits % STREAMS
        if plan.collectors and bits >> 4 & 3:
            stream = plan.collectors[bits % len(plan.collectors)].stream
        partition = TopicPartition(order_topic(TOPIC), stream)
        begin, end = world.log.log_start_offsets([partition])[partition], world.end(partition)
        raw: bytes | None = _GARBAGE[(bits >> 8) % len(_GARBAGE)]
        choice = bits >> 12 & 3
        if choice and end > begin:
            back = 1 if choice == 1 else 1 + (bits >> 14) % (end - begin)
            fetched = world.log.read(partition, end - back, 1)
            old = fetched.records[0].value if fetched and fetched.records else None
            raw = old if choice == 2 else _impossible(old or b"", bits >> 20)
        world.put(partition, raw)

    # -- checkpoints, compaction, retention -----------------------------------------------------

    def poison(self, bits: int) -> None:
        """Name a false checkpoint: with another state, or at another offset."""
        world = self._world
        state = self._view.refresh()
        plan = state.plan(1 + bits % state.epoch)
        if not plan.collectors:
            return
        name = plan.collectors[(bits >> 4) % len(plan.collectors)].name
        keys = {
            key: point
            for key, point in state.checkpoint_keys.items()
            if isinstance(point, StreamCheckpoint)
            and (point.epoch, point.collector) == (plan.epoch, name)
            and point not in self._lies
        }
        if not keys:
            return
        point = list(keys.values())[(bits >> 10) % len(keys)]
        record = point.record
        beyond = world.end(stream_partition(plan, name)) + (bits >> 24 & 3)
        lies = (
            _copied(point, replace(record, parent_next=record.parent_next + 1)),
            _copied(point, replace(record, mark=max(0, record.mark - 1))),
            _copied(point, _moved(record, bits >> 26)),
            replace(point, offset=point.offset + 1),
            replace(point, offset=max(record.mark, point.offset - 1)),
            replace(_copied(point, _moved(record, bits >> 26)), offset=beyond),
        )
        lie = lies[(bits >> 16) % len(lies)]
        slot = bits >> 32 & 3, (bits >> 34) % SLOTS
        key, value = named_record(lie, world.stated_ms, slot)
        world.log.write(COLLECTORS, value, key=key)
        world.fault("poisoned checkpoint")
        self._lies.append(lie)

    def cure(self) -> None:
        """Delete every false checkpoint, as an operator does after reading the error."""
        for key, point in self._view.refresh().checkpoint_keys.items():
            if point in self._lies:
                self._world.log.write(COLLECTORS, None, key=key)

    def compaction(self, _: int) -> None:
        """Compact the control topics."""
        self._world.compact()
        self._world.fault("compaction")

    def outage(self, bits: int) -> None:
        """Let the leader of a log, of a stream, or of a control topic answer nothing for a time."""
        plan = self._world.view().state.plan()
        logs = [log_partition(log) for log in plan.logs]
        streams = [stream_partition(plan, node.name) for node in plan.collectors]
        drawn = (logs, logs, streams or logs, (CONTROL, COLLECTORS))[bits & 3]
        self._world.send_away(drawn[(bits >> 2 & 0xFF) % len(drawn)], _AWAY_MS[bits >> 10 & 7])

    def recreation(self, bits: int) -> None:
        """Delete and recreate a message topic."""
        world = self._world
        log = self._view.refresh().plan().logs[bits % len(self._view.state.plan().logs)]
        for transaction, _ in world.transactions:
            transaction.abort()
        world.transactions.clear()
        world.log.recreate(log.topic)
        world.fault("topic recreated")
        world.note("recreated", log.topic)

    def retention(self, bits: int) -> None:
        """Delete the older part of a log, or of an order stream if the schedule trims those."""
        world = self._world
        plan = self._view.refresh().plan()
        partition = log_partition(plan.logs[bits % len(plan.logs)])
        if world.schedule.trims_order and plan.collectors and bits >> 6 & 1:
            node = plan.collectors[(bits >> 7) % len(plan.collectors)]
            partition = stream_partition(plan, node.name)
        begin, end = world.log.log_start_offsets([partition])[partition], world.end(partition)
        world.trim(partition, begin + (end - begin) * (bits >> 12 & 3) // 4)


_GARBAGE = (
    b"",
    b"TO",
    b"\x00" * 80,
    b'{"schema_version": 1, "positions": []}',
    b"TO\x01" + b"\xff" * 90,
)


def _copied(point: StreamCheckpoint, record: CheckpointRecord) -> StreamCheckpoint:
    """Give the checkpoint with another copy of its record."""
    return replace(point, raw=encode(point.raw[_TAG], record))


def _moved(record: CheckpointRecord, bits: int) -> CheckpointRecord:
    """Give a checkpoint in which one log has another position."""
    if not record.own:
        return replace(record, parent_next=record.parent_next + 1)
    place = bits % len(record.own)
    log = record.own[place]
    moved = log._replace(position=log.position + 1, debt=log.debt + (bits >> 4 & 1))
    return replace(record, own=(*record.own[:place], moved, *record.own[place + 1 :]))


def _impossible(last: bytes, bits: int) -> bytes:
    """Make a record of the same stream that no state allows, or a truncated one."""
    nowhere = 1 << 20  # no plan has so many logs, and no schedule so many records
    records = (
        OwnRecord((Ticket(nowhere, 1, 0),)),
        OwnRecord((Ticket(0, nowhere, 0),)),
        OwnRecord((), (Correction(0, 0, 1),)),
        OwnRecord((), (Correction(0, nowhere, 1, held=True),)),
        RelayRecord(nowhere, nowhere + 1, ()),
        RelayRecord(0, 1, (Position(nowhere, 1),)),
        RestoredRecord(nowhere, nowhere + 1, (Position(0, 1),)),
        FreezeRecord(nowhere, ()),
        FreezeRecord(0, (Position(0, nowhere),)),
    )
    tag = last[_TAG] if len(last) > _TAG.stop else bytes(_TAG.stop - _TAG.start)
    raw = encode(tag, records[bits % len(records)])
    return raw[:-1] if bits >> 12 & 7 == 0 else raw
