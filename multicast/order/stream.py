"""A stream as readers open it: by plan and collector, at a checkpoint or its start. No I/O.

    named      a checkpoint that the control topic names: its record's offset, and a copy of the
               record, so that a stream can be opened without a read of that offset
    proven     the reader has met the record itself at that offset, and it counted

Invariant: a stream that was opened at a checkpoint orders nothing for its reader before it is
proven, if the reader needs only what lies behind the checkpoint's record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from multicast.errors import ProtocolViolation
from multicast.order.records import CheckpointRecord, SightRecord, decode, tag_of
from multicast.order.rule import NotCounted, RecordStream, StreamShape
from multicast.order.runs import Run, anchor
from topology.tree import Plan

_NOTHING = SightRecord()


@dataclass(frozen=True, slots=True)
class StreamCheckpoint:
    """The checkpoint record at `offset` of a collector's stream; it has counted.

    `raw` are its bytes: clients hold many, and open few.
    """

    epoch: int
    collector: str
    offset: int
    raw: bytes

    @property
    def record(self) -> CheckpointRecord:
        """The record."""
        record = decode(tag_of(self.raw) or b"", self.raw)
        assert isinstance(record, CheckpointRecord), "its bytes are checked before"
        return record

    @property
    def read_from(self) -> int:
        """The offset at which a reader begins that opens the stream here: the mark."""
        return self.record.mark

    @property
    def positions(self) -> Mapping[int, int]:
        """By log number, the position at the mark."""
        record = self.record
        return {**{log.log: log.position for log in record.own}, **dict(record.inherited)}


def shape_of(
    plan: Plan,
    collector: str,
    starts: Mapping[str, int],
    *,
    began: bytes,
    owed: int = 0,
    sight: SightRecord = _NOTHING,
) -> StreamShape:
    """Describe a collector's stream of a plan's epoch; `starts` are its logs' first offsets.

    `began` is the digest of the statement with which the epoch began, `owed` the number of runs
    that a recovery restores at the stream's beginning, and `sight` what was seen of the logs
    before.
    """
    spec = plan.collector(collector)
    own = set(plan.own_logs(collector))
    return StreamShape(
        tag=anchor(plan.epoch, collector, began),
        own={plan.number(name): starts[name] for name in spec.bag if name in own},
        inherited={plan.number(name): starts[name] for name in spec.bag if name not in own},
        first=spec.stream_first,
        parent_first=None if spec.parent is None else plan.collector(spec.parent).stream_first,
        owed=owed,
        sight=sight,
    )


class OrderStream(RecordStream):
    """One collector's stream in one epoch, read record by record.

    `starts` gives, by log name, the first offset of the epoch. With a `checkpoint` reading begins
    at its mark. After a recovery `resumed` gives other starts for some logs. `began`, `owed` and
    `sight` are as in `shape_of`. `count` is the number of records that have counted since
    reading began. `proven` becomes True once the checkpoint's record has counted at its offset;
    `disproven` is this offset once it has not.
    """

    def __init__(
        self,
        plan: Plan,
        collector: str,
        starts: Mapping[str, int],
        checkpoint: StreamCheckpoint | None = None,
        *,
        began: bytes,
        resumed: Mapping[str, int] | None = None,
        owed: int = 0,
        sight: SightRecord = _NOTHING,
    ) -> None:
        starts = {**starts, **(resumed or {})}
        shape = shape_of(plan, collector, starts, began=began, owed=owed, sight=sight)
        super().__init__(shape, None if checkpoint is None else checkpoint.record)
        self.plan = plan
        self.collector = collector
        self.own = frozenset(shape.own)
        self.inherited = frozenset(shape.inherited)
        self.starts: Mapping[int, int] = {**shape.own, **shape.inherited}
        self.offset_first = shape.first
        self.count = 0
        self.proven = checkpoint is None
        self.disproven: int | None = None
        self._proof_at = -1 if checkpoint is None else checkpoint.offset

    def read(
        self, offset: int, raw: bytes | None, checksum: int = 0
    ) -> tuple[Run, ...] | NotCounted:
        """Read the record at `offset`, as `RecordStream.read` does.

        Raises `ProtocolViolation` if the checkpoint's record does not count at its offset.
        """
        judged = super().read(offset, raw, checksum)
        if not isinstance(judged, NotCounted):
            self.count += 1
        self._prove()
        return judged

    def passed(self, position: int) -> None:
        """Report that the reader has passed every offset below `position`; raises as `read`."""
        self.offset_next = max(self.offset_next, position)
        self._prove()

    def _prove(self) -> None:
        if self.proven or self.offset_next <= self._proof_at:
            return
        self.proven = self.checkpoint_at == self._proof_at
        if not self.proven:
            self.disproven = self._proof_at
            raise ProtocolViolation(
                f"the checkpoint of collector {self.collector} that the control topic names at "
                f"offset {self._proof_at} of its stream does not match the stream"
            )
