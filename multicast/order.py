"""Order records: their bytes, and the acceptance rule.

An order stream is one Kafka partition of the order topic. Several writers may append to it, so each
reader decides for each record, in offset order, whether it is accepted or void. All readers apply
the rule in this file, and so all agree. No I/O, no clock, no randomness; no other code decides what
is accepted. docs/protocol.md specifies the bytes, `topology.tree` explains bag, top and parent.

    accepted    `previous` is the digest of the last accepted record, and the content is possible
    void        everything else: stale writers' records, foreign bytes, impossible contents
    anchor      in place of that digest before the first accepted record of an epoch
    run         (log, first, next): the consecutive offsets first … next-1 of one log
    positions   for each log of the bag the first offset that is not ordered yet
    parent_next how far the parent's stream is relayed: the number of its accepted records, and the
                offset after the last of them
    inherited   of a log of the bag: its top is another collector, so its order comes from the
                parent (else the log is the collector's own)
    owed        after a recovery: for each inherited log the offset up to which the previous epoch
                ordered it in the parent's stream, but not in this one; only `amcast topology
                recover` appends these runs

Invariants:
    an accepted record orders at most ORDERED_MAX offsets, over all its runs;
    of all records with the same `previous` at most one is accepted: the first that is possible;
    the runs of one log continue each other without a gap: run.first = positions[run.log];
    the state is a function of the control topic (the plan, and where the stream's epoch starts and
    stops) and of the raw bytes read, and of nothing else.
"""

from __future__ import annotations

import enum
import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from multicast.errors import ProtocolViolation, UnknownVersion
from topology.tree import DIGEST_BYTES, Plan

MAGIC = b"TO"
VERSION = 1  # of an order record's layout
OFFSET_MAX = 2**63 - 1  # Kafka's offsets are signed 64-bit numbers
# The offsets that one record may order. An `OWN` record has at most 512 runs of 1,000 by default
# (`collectors.collector.CollectorLimits`); a collector that relays joins records up to this bound.
# Where a wrong record orders offsets beyond its log's end, `amcast topology recover` must append
# one skip for each: the bound limits the damage that one record can do.
ORDERED_MAX = 2**24

# Magic, version and previous keep their places in every later version.
_HEAD = struct.Struct(f">2sB{DIGEST_BYTES}sBQQQQH")
_RUN = struct.Struct(">IQI")
_PREVIOUS = slice(3, 3 + DIGEST_BYTES)


class RecordKind(enum.IntEnum):
    """What an order record does."""

    OWN = 1  # orders logs whose top is its collector
    PARENT = 2  # relays the parent's order of the logs in the bag
    FREEZE = 3  # ends the epoch in this stream: no record is accepted after it


class Run(NamedTuple):
    """The offsets first … next-1 of a log; `log` is its number in the plan."""

    log: int
    first: int
    next: int


class ParentNext(NamedTuple):
    """How far the parent's stream is relayed: its accepted records, and the offset after them."""

    records: int
    offset: int


@dataclass(frozen=True, slots=True)
class OrderRecord:
    """One record of the order topic. `writer` and `time_ms` inform people; nothing depends on them.

    `time_ms` is in milliseconds since 1970.
    """

    kind: RecordKind
    previous: bytes
    parent_next: ParentNext
    runs: tuple[Run, ...]
    writer: int = 0
    time_ms: int = 0


class UndecodableRecord(ValueError):
    """The bytes are not an order record of this version."""


def digest_of(raw: bytes) -> bytes:
    """BLAKE2b of a raw record, 16 bytes: the next record's `previous` must equal it."""
    return hashlib.blake2b(raw, digest_size=DIGEST_BYTES).digest()


def anchor(plan: Plan, collector: str) -> bytes:
    """Give the `previous` of the first record that a collector appends in the plan's epoch.

    It contains the plan's digest, so no record of another plan, epoch or collector extends it.
    """
    text = b"amcast anchor\0%d\0%s\0%s" % (plan.epoch, plan.digest, collector.encode())
    return digest_of(text)


def encode(record: OrderRecord) -> bytes:
    """Encode an order record; `decode` gives back an equal one. A record has one encoding."""
    head = _HEAD.pack(
        MAGIC,
        VERSION,
        record.previous,
        record.kind,
        record.writer,
        record.time_ms,
        record.parent_next.records,
        record.parent_next.offset,
        len(record.runs),
    )
    pack = _RUN.pack
    return head + b"".join([pack(log, first, end - first) for log, first, end in record.runs])


def decode(raw: bytes) -> OrderRecord:
    """Decode an order record; raises `UndecodableRecord` for what `encode` never gives."""
    if len(raw) < _HEAD.size:
        raise UndecodableRecord("it is shorter than the header")
    magic, version, previous, kind, writer, time_ms, count, offset, run_count = _HEAD.unpack_from(
        raw
    )
    if magic != MAGIC or version != VERSION:
        raise UndecodableRecord("it is not an order record of this version")
    if len(raw) != _HEAD.size + run_count * _RUN.size:
        raise UndecodableRecord("its length does not match its number of runs")
    if not RecordKind.OWN <= kind <= RecordKind.FREEZE:
        raise UndecodableRecord("its kind is unknown")
    if count > OFFSET_MAX or offset > OFFSET_MAX:
        raise UndecodableRecord("its parent_next is out of range")
    runs = []
    body = memoryview(raw)[_HEAD.size :]
    for log, first, length in _RUN.iter_unpack(body):
        end = first + length
        if not length or end > OFFSET_MAX:
            raise UndecodableRecord("one of its runs is empty or out of range")
        runs.append(Run(log, first, end))
    return OrderRecord(
        RecordKind(kind), previous, ParentNext(count, offset), tuple(runs), writer, time_ms
    )


class Void(enum.Enum):
    """Why a record is not accepted."""

    FOREIGN = "it is not an order record"
    STALE = "it does not extend the last accepted record"
    FROZEN = "the epoch is over"
    MALFORMED = "its bytes are malformed"
    IMPOSSIBLE = "its content is impossible in this state"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state of a stream after the record at `offset`, whose digest is `digest`.

    `count` is the number of accepted records, `positions` is by the plan's numbers of logs.
    """

    epoch: int
    collector: str
    offset: int
    digest: bytes
    count: int
    positions: Mapping[int, int]
    parent_next: ParentNext

    @property
    def read_from(self) -> int:
        """The offset at which a reader begins that opens the stream here."""
        return self.offset


class Resumed(NamedTuple):
    """Where a stream begins in a log after a recovery, and up to which offset it is owed.

    `position` is the position of the same collector's stream in the previous epoch; `owed` is the
    higher one of it and the position of the parent's stream; only version 1 needs that.
    """

    position: int
    owed: int


@dataclass(slots=True)
class StreamState:
    """The effect of all records that were accepted so far; `count` is their number."""

    digest: bytes
    count: int
    positions: dict[int, int]
    parent_next: ParentNext
    frozen: bool = False

    def copy(self) -> StreamState:
        """Give a copy, which can run ahead without changing this state."""
        return replace(self, positions=dict(self.positions))


class OrderStream:
    """One collector's stream in one epoch, read record by record under the acceptance rule.

    `plan` and `collector` name the stream; `starts` gives, by log name, the first offset of the
    epoch. With a `checkpoint` reading begins at that record, whose digest must be the checkpoint's;
    until it is read, `proven` is False. After a recovery `resumed` gives other starts for some
    logs, and `stop` is the offset at which the stream is over, whatever follows.
    """

    def __init__(
        self,
        plan: Plan,
        collector: str,
        starts: Mapping[str, int],
        checkpoint: Checkpoint | None = None,
        *,
        resumed: Mapping[str, Resumed] | None = None,
        stop: int | None = None,
    ) -> None:
        spec = plan.collector(collector)
        self.plan = plan
        self.collector = collector
        own = set(plan.own_logs(collector))
        self.own = frozenset(plan.number(name) for name in own)
        self.inherited = frozenset(plan.number(name) for name in spec.bag if name not in own)
        parent = None if spec.parent is None else plan.collector(spec.parent)
        self.offset_next = spec.stream_first
        self.offset_first = spec.stream_first
        self.proven = True
        self.stop = stop
        resumed = resumed or {}
        self.owed = {plan.number(name): begin.owed for name, begin in resumed.items()}
        self.state = StreamState(
            digest=anchor(plan, collector),
            count=0,
            positions={
                plan.number(name): resumed[name].position if name in resumed else starts[name]
                for name in spec.bag
            },
            parent_next=ParentNext(0, 0 if parent is None else parent.stream_first),
        )
        self.starts: Mapping[int, int] = dict(self.state.positions)
        self._proof = b""
        self._has_parent = parent is not None
        if checkpoint is not None:
            assert (checkpoint.epoch, checkpoint.collector) == (plan.epoch, collector)
            # `ControlState` accepts no other checkpoint.
            assert checkpoint.positions.keys() == self.state.positions.keys()
            self.proven = False
            self._proof = checkpoint.digest
            self.offset_next = checkpoint.offset
            self.state.digest = checkpoint.digest
            self.state.count = checkpoint.count
            self.state.positions = dict(checkpoint.positions)
            self.state.parent_next = checkpoint.parent_next

    def read(self, offset: int, raw: bytes | None) -> OrderRecord | Void | None:
        """Read the record at `offset`; give it if it is accepted, else the reason why it is void.

        Gives None for the record that proves the checkpoint: the state has its effect already.
        Offsets must rise from call to call. Raises `UnknownVersion` for a record that extends the
        stream in a version unknown to this program, and `ProtocolViolation` if the checkpoint does
        not match its record.
        """
        assert offset >= self.offset_next, "records are read in offset order, each once"
        raw = raw or b""
        if not self.proven:
            if offset != self.offset_next or digest_of(raw) != self._proof:
                raise ProtocolViolation(
                    f"the checkpoint of collector {self.collector} at offset {self.offset_next} "
                    f"of its stream does not match the record at that offset"
                )
            self.proven = True
            self._move(offset + 1)
            return None
        if self.stop is not None and offset >= self.stop:
            self._move(offset + 1)
            return Void.FROZEN
        result = self._judge(offset, raw)
        self._move(offset + 1)
        return result

    def runs(self, offset: int, raw: bytes | None) -> tuple[Run, ...] | Void | None:
        """Read a record as `read` does; of an accepted one, give only what it orders."""
        result = self.read(offset, raw)
        return result.runs if isinstance(result, OrderRecord) else result

    @property
    def count(self) -> int:
        """The number of records that were accepted since the stream began."""
        return self.state.count

    def _move(self, position: int) -> None:
        self.offset_next = max(self.offset_next, position)
        if self.stop is not None and self.offset_next >= self.stop:
            self.state.frozen = True

    def _judge(self, offset: int, raw: bytes) -> OrderRecord | Void:
        if len(raw) < _PREVIOUS.stop or raw[:2] != MAGIC:
            return Void.FOREIGN
        if self.state.frozen:
            return Void.FROZEN
        if raw[_PREVIOUS] != self.state.digest:
            return Void.STALE
        if raw[2] != VERSION:
            raise UnknownVersion(
                f"record {offset} of collector {self.collector}'s stream has version {raw[2]}; "
                f"this program reads version {VERSION}: upgrade it, or see 'amcast doctor'"
            )
        try:
            record = decode(raw)
        except UndecodableRecord:
            return Void.MALFORMED
        if not self.possible(self.state, record):
            return Void.IMPOSSIBLE
        extend(self.state, record, digest_of(raw))
        return record

    def passed(self, position: int) -> None:
        """Report that the reader has passed every offset below `position`."""
        if self.proven:
            self._move(position)

    def possible(self, state: StreamState, record: OrderRecord) -> bool:
        """Whether the record's content may follow this state; `previous` is not looked at."""
        allowed = self.own if record.kind is RecordKind.OWN else self.inherited
        relayed = record.parent_next.records - state.parent_next.records
        moved = record.parent_next.offset - state.parent_next.offset
        match record.kind:
            case RecordKind.OWN:
                fits = relayed == 0 and moved == 0 and bool(record.runs)
            case RecordKind.PARENT:
                owed = relayed == 0 and moved == 0 and bool(record.runs) and self._owes(record.runs)
                fits = self._has_parent and (owed or (relayed > 0 and moved >= relayed))
            case RecordKind.FREEZE:
                fits = not record.runs and relayed >= 0 and moved >= relayed
                fits = fits and (self._has_parent or moved == 0)
        if not fits:
            return False
        ahead: dict[int, int] = {}
        for log, first, end in record.runs:
            if log not in allowed or first != ahead.get(log, state.positions[log]):
                return False
            ahead[log] = end
        return ordered_by(record.runs) <= ORDERED_MAX

    def _owes(self, runs: Sequence[Run]) -> bool:
        return all(end <= self.owed.get(log, 0) for log, _, end in runs)

    def checkpoint(self) -> Checkpoint:
        """Give a checkpoint of the last record read, which must have been accepted."""
        return Checkpoint(
            epoch=self.plan.epoch,
            collector=self.collector,
            offset=self.offset_next - 1,
            digest=self.state.digest,
            count=self.state.count,
            positions=dict(self.state.positions),
            parent_next=self.state.parent_next,
        )


def extend(state: StreamState, record: OrderRecord, digest: bytes) -> None:
    """Apply a possible record to the state that it extends."""
    state.digest = digest
    state.count += 1
    state.parent_next = record.parent_next
    state.frozen = record.kind is RecordKind.FREEZE
    for log, _, end in record.runs:
        state.positions[log] = end


def ordered_by(runs: Sequence[Run]) -> int:
    """Count the offsets that these runs order."""
    return sum([end - first for _, first, end in runs])


def coalesce(runs: Sequence[Run]) -> tuple[Run, ...]:
    """Join neighbouring runs of one log that continue each other; the order stays the same."""
    joined: list[Run] = []
    for run in runs:
        if joined and joined[-1].log == run.log and joined[-1].next == run.first:
            joined[-1] = Run(run.log, joined[-1].first, run.next)
        else:
            joined.append(run)
    return tuple(joined)
