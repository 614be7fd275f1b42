"""Order records: their bytes, and the rule by which they count.

Goes in: raw records of one Kafka partition of the order topic, in offset order. Comes out: for each
of them the order record that counted, or why it is void. No I/O, no clock, no randomness; nobody
else decides what counts. The byte layout is specified in `docs/protocol.md`.

    counts      its `previous` is the digest of the last record that counted, and it is possible
    void        everything else: stale writers' records, foreign bytes, impossible contents
    anchor      stands for "the last record that counted" before the first one of an epoch
    run         (log, first, next): the consecutive offsets first … next-1 of one log
    positions   for each log of the bag the first offset that is not ordered yet
    parent_next how far the parent's stream is relayed: records that counted, and the next offset
    owed        after a recovery: per inherited log, up to which offset the epoch before ordered it
                in the parent's stream and not in this one; only `topology recover` orders these

Invariants:
    a record that counts orders at most ORDERED_MAX offsets, over all its runs;
    of two records with the same `previous` at most one counts, the one at the lower offset;
    the runs of one log follow each other without a gap: run.first = positions[run.log];
    state is a function of the plan and of the raw bytes read, of nothing else.
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
VERSION = 1
RUNS_MAX = 0xFFFF
OFFSET_MAX = 2**63 - 1
# Offsets that one record may order. A collector's own record orders at most 512 runs of 1,000
# (`collectors.collector.Limits`), and who relays joins records up to this bound. What lies between
# a forged record's position and its log's end is filled by `topology recover`, skip by skip.
ORDERED_MAX = 2**24

# magic, version and previous keep their places in every version to come.
_HEAD = struct.Struct(f">2sB{DIGEST_BYTES}sBQQQQH")
_RUN = struct.Struct(">IQI")
_PREVIOUS = slice(3, 3 + DIGEST_BYTES)
LENGTH_MAX = 2**32 - 1


class RecordKind(enum.IntEnum):
    """What an order record does."""

    OWN = 1  # orders logs whose top is its collector
    PARENT = 2  # relays the parent's order, filtered to the bag
    FREEZE = 3  # ends the epoch: nothing counts after it


class Run(NamedTuple):
    """Consecutive message IDs first … next-1 of log number `log` of the plan."""

    log: int
    first: int
    next: int


class ParentNext(NamedTuple):
    """How far the parent's stream is relayed: how many records that counted, and up to where."""

    records: int
    offset: int


@dataclass(frozen=True, slots=True)
class OrderRecord:
    """One record of the order topic. `writer` and `time_ms` are for people, never for decisions."""

    kind: RecordKind
    previous: bytes
    parent_next: ParentNext
    runs: tuple[Run, ...]
    writer: int = 0
    time_ms: int = 0


class UndecodableRecord(ValueError):
    """The bytes are not an order record of this version."""


def digest_of(raw: bytes) -> bytes:
    """BLAKE2b of a raw record, 16 bytes: what the next record's `previous` must be."""
    return hashlib.blake2b(raw, digest_size=DIGEST_BYTES).digest()


def anchor(plan: Plan, collector: str) -> bytes:
    """Give the digest that the first record of a collector's epoch extends.

    It holds the plan's digest, so no record of another plan, epoch or collector can extend it.
    """
    text = b"amcast anchor\0%d\0%s\0%s" % (plan.epoch, plan.digest, collector.encode())
    return digest_of(text)


def encode(record: OrderRecord) -> bytes:
    """Write an order record; `decode` reads back an equal one. No two encodings are equal."""
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
    """Read an order record; raises `UndecodableRecord` for anything that `encode` never writes."""
    if len(raw) < _HEAD.size:
        raise UndecodableRecord("shorter than the head")
    magic, version, previous, kind, writer, time_ms, count, offset, runs = _HEAD.unpack_from(raw)
    if magic != MAGIC or version != VERSION:
        raise UndecodableRecord("no order record of this version")
    if len(raw) != _HEAD.size + runs * _RUN.size:
        raise UndecodableRecord("its length does not fit its number of runs")
    if not RecordKind.OWN <= kind <= RecordKind.FREEZE:
        raise UndecodableRecord("unknown kind")
    if count > OFFSET_MAX or offset > OFFSET_MAX:
        raise UndecodableRecord("parent_next is out of range")
    found = []
    body = memoryview(raw)[_HEAD.size :]
    for log, first, length in _RUN.iter_unpack(body):
        end = first + length
        if not length or end > OFFSET_MAX:
            raise UndecodableRecord("a run is empty or out of range")
        found.append(Run(log, first, end))
    return OrderRecord(
        RecordKind(kind), previous, ParentNext(count, offset), tuple(found), writer, time_ms
    )


class Void(enum.Enum):
    """Why a record does not count."""

    FOREIGN = "not an order record"
    STALE = "it extends a record that is not the last that counted"
    FROZEN = "the epoch is over"
    MALFORMED = "its bytes do not parse"
    IMPOSSIBLE = "it says what no state allows"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state right after the record at `offset` counted. `digest` is that record's."""

    epoch: int
    collector: str
    offset: int
    digest: bytes
    count: int
    positions: Mapping[int, int]
    parent_next: ParentNext


class Resumed(NamedTuple):
    """Where a stream begins in a log after a recovery, and up to where it is owed there.

    `position` is where the same collector's stream of the epoch before stood; `owed` where its
    parent's stood, or `position` where that is no more.
    """

    position: int
    owed: int


@dataclass(slots=True)
class StreamState:
    """What the records that counted so far amount to."""

    digest: bytes
    count: int
    positions: dict[int, int]
    parent_next: ParentNext
    frozen: bool = False

    def copy(self) -> StreamState:
        """Give a state that can run ahead without touching this one."""
        return replace(self, positions=dict(self.positions))


class OrderStream:
    """One collector's stream in one epoch, read record by record: the acceptance rule.

    `plan` and `collector` name the stream, `starts` gives each log's first offset of the epoch by
    log name. With a `checkpoint` reading begins at that record, whose bytes must hash to the
    checkpoint's digest; until then `proven` is False. After a recovery `resumed` says in which logs
    this stream begins elsewhere. At offset `stop` the stream is over, whatever stands there.
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
        node = plan.collector(collector)
        self.plan = plan
        self.collector = collector
        own = set(plan.own_logs(collector))
        self.own = frozenset(plan.number(name) for name in own)
        self.inherited = frozenset(plan.number(name) for name in node.bag if name not in own)
        parent = None if node.parent is None else plan.collector(node.parent)
        self.offset_next = node.stream_first
        self.offset_first = node.stream_first
        self.proven = True
        self.stop = stop
        resumed = resumed or {}
        self.owed = {plan.number(name): begin.owed for name, begin in resumed.items()}
        self.state = StreamState(
            digest=anchor(plan, collector),
            count=0,
            positions={
                plan.number(name): resumed[name].position if name in resumed else starts[name]
                for name in node.bag
            },
            parent_next=ParentNext(0, 0 if parent is None else parent.stream_first),
        )
        self.starts: Mapping[int, int] = dict(self.state.positions)
        self._proof = b""
        self._has_parent = parent is not None
        if checkpoint is not None:
            assert (checkpoint.epoch, checkpoint.collector) == (plan.epoch, collector)
            assert checkpoint.positions.keys() == self.state.positions.keys()  # `control/` looks
            self.proven = False
            self._proof = checkpoint.digest
            self.offset_next = checkpoint.offset
            self.state.digest = checkpoint.digest
            self.state.count = checkpoint.count
            self.state.positions = dict(checkpoint.positions)
            self.state.parent_next = checkpoint.parent_next

    def read(self, offset: int, raw: bytes | None) -> OrderRecord | Void | None:
        """Judge the record at `offset`: the record if it counts, else why it is void.

        None for the one record that proves the checkpoint, whose effect the state has already.
        Offsets must rise from call to call. Raises `UnknownVersion` for a record that extends the
        stream in a version this program does not know, `ProtocolViolation` for a checkpoint that
        the log belies.
        """
        assert offset >= self.offset_next, "records are read in offset order, each once"
        raw = raw or b""
        if not self.proven:
            if offset != self.offset_next or digest_of(raw) != self._proof:
                raise ProtocolViolation(
                    f"the checkpoint of collector {self.collector} at offset {self.offset_next} "
                    f"of its stream does not match the record that stands there"
                )
            self.proven = True
            self._move(offset + 1)
            return None
        if self.stop is not None and offset >= self.stop:
            self._move(offset + 1)
            return Void.FROZEN
        judged = self._judge(offset, raw)
        self._move(offset + 1)
        return judged

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
        """Note that the reader has passed every offset below `position`."""
        if self.proven:
            self._move(position)

    def possible(self, state: StreamState, record: OrderRecord) -> bool:
        """Whether a record of this collector may extend that state (its `previous` aside)."""
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
        """Give a checkpoint of the last record read, which must have counted."""
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
    """Carry a possible record into the state it extends."""
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
    """Join neighbours that continue each other in one log; the order of IDs stays the same."""
    joined: list[Run] = []
    for run in runs:
        if joined and joined[-1].log == run.log and joined[-1].next == run.first:
            joined[-1] = Run(run.log, joined[-1].first, run.next)
        else:
            joined.append(run)
    return tuple(joined)
