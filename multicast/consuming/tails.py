"""Which offsets of a delivery's logs are lost, or may be, as far as its reader knows. No I/O.

    seen     of a log: ends that collectors saw, each with the leader's epoch. A record below one,
             of a later leader, has replaced another, and so has another one right before it
    lost     of a log: the first offset that nobody delivers, as nobody has accepted its loss
    cut      of a log: the first offset whose loss an operator has accepted: it is dropped
    judged   of a log: a leader's epoch up to which all ends that are stated are known. The first
             record of a later leader waits until the shell has read what is stated by then
    stop     of a log: the first offset that is not handed out now, because of any of these

A record whose leader's epoch is not known is not judged, and one of epoch 0 has replaced nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from multicast.control import ControlState, log_partition
from multicast.drivers.protocol import Record
from multicast.errors import Truncated
from multicast.messages import message_checksum
from multicast.order.records import SeenEnd, SightRecord
from multicast.order.rule import undominated
from multicast.order.stream import OrderStream
from topology.tree import Log


class LogTails:
    """What is known of the ends of one reader's logs, by their numbers."""

    def __init__(self, logs: Mapping[int, Log]) -> None:
        self.stops: dict[int, int] = {}  # empty as a rule
        self._logs = logs
        self._seen: dict[int, tuple[SeenEnd, ...]] = {}
        self._lost: dict[int, int] = {}
        self._cut: dict[int, int] = {}
        self._judged: dict[int, int] = {}
        self._later: dict[int, int] = {}  # the newest leader's epoch at hand that is not judged

    def saw(
        self, sight: SightRecord, progress: Mapping[int, int], cuts: Mapping[int, int]
    ) -> list[int]:
        """Take what is stated of ends, and where operators have cut logs; give the logs.

        `progress` is what was handed out of them. Each is to be judged anew.
        """
        self._cut.update(cuts)
        for end in sight.seen:
            if (log := end.log) in self._logs:
                known = *self._seen.get(log, ()), end
                self._seen[log] = undominated(known, progress.get(log, -1))
                self._judged[log] = max(self._judged.get(log, 0), end.leader_epoch)
        for log, first in sight.lost:
            if log in self._logs:
                self._lost[log] = min(first, self._lost.get(log, first))
        named = [*cuts, *[each[0] for each in (*sight.seen, *sight.lost)]]
        return [log for log in dict.fromkeys(named) if log in self._logs]

    def seen(self, log: int) -> tuple[SeenEnd, ...]:
        """Give the ends of a log that were seen, as far as they say more than others."""
        return self._seen.get(log, ())

    def all_told(self) -> None:
        """Take it that all is known which is stated of the leaders that are at hand."""
        self._judged.update(self._later)
        self._later.clear()

    def judge(self, log: int, polls: Iterable[tuple[Sequence[Record], int]]) -> None:
        """Find a log's stop anew, with these records at hand: of each poll, those from an index."""
        bounds = [known[log] for known in (self._lost, self._cut) if log in known]
        self.stops.pop(log, None)
        if bounds:
            self.stops[log] = min(bounds)
        for records, start in polls:
            self.arrived(log, records, start)

    def arrived(self, log: int, records: Sequence[Record], start: int = 0) -> None:
        """Judge the records that came next, those from an index on."""
        first, newest = records[start], records[-1].leader_epoch
        seen, judged = self._seen.get(log, ()), self._judged.get(log, 0)
        if first.leader_epoch == newest <= judged and not any(
            first.offset < end.end and (end.checksum or end.leader_epoch < newest) for end in seen
        ):
            return
        for record in records[start:]:
            if record.leader_epoch > judged:
                self._later[log] = max(newest, record.leader_epoch)
            elif any(_has_replaced(record, end) for end in seen):
                self._lost[log] = min(record.offset, self._lost.get(log, record.offset))
            else:
                continue
            self.stops[log] = min(record.offset, self.stops.get(log, record.offset))
            return

    def drops(self, log: int, offset: int) -> bool:
        """Whether an operator has accepted that this offset is lost."""
        return log in self._cut and offset >= self._cut[log]

    def refuse_lost(self, log: int, offset: int) -> None:
        """Raise `Truncated` if this offset is lost, and nobody has accepted that."""
        first = self._lost.get(log)
        if first is not None and offset >= first and not self.drops(log, offset):
            raise lost_log(self._logs[log], first)


def _has_replaced(record: Record, end: SeenEnd) -> bool:
    """Whether a record stands where another one was when its log was seen to end there."""
    if record.offset < end.end and record.leader_epoch > end.leader_epoch:
        return True
    is_last = bool(end.checksum) and record.offset == end.end - 1
    return is_last and message_checksum(record) not in (0, end.checksum)


def lost_log(log: Log, first: int) -> Truncated:
    """Make the error of what a log has lost from an offset on."""
    return Truncated(
        f"log {log.name} has lost its messages from offset {first} on, after Kafka had "
        f"acknowledged them, and others may have their offsets: nobody delivers it from there on "
        f"until an operator accepts the loss with 'amcast topology recover --accept-loss'"
    ).about(log_partition(log))


class LostLogs:
    """What logs of the newest epoch have lost, for who waits for single messages.

    One thread at a time takes what is stated; any thread may ask. `moved` is called in that thread
    when the control topic has said more.
    """

    def __init__(self) -> None:
        self.moved: Callable[[], None] = lambda: None
        self._stated: dict[str, tuple[Log, int]] = {}
        self._seen: dict[str, tuple[Log, int]] = {}
        self._orders: dict[str, Truncated] = {}  # by log: what became of the stream of its top

    def learn(self, control: ControlState) -> None:
        """Take what the control topic states."""
        plan, before = control.plan(control.begun_epoch), self._stated
        logs = [plan.log(name) for name in control.losses.names() if plan.has_log(name)]
        firsts = [(log, control.loss_of(plan.epoch, log.name)) for log in logs]
        self._stated = {log.name: (log, first) for log, first in firsts if first is not None}
        if self._stated != before:
            self.moved()

    def begin(self) -> None:
        """Forget what streams say: those of another epoch are read now."""
        self._seen, self._orders = {}, {}

    def lost_order(self, logs: Iterable[str], error: Truncated) -> None:
        """Take it that the stream in which logs enter the order has lost its end."""
        if not self._orders.keys() >= set(logs):
            self._orders.update(dict.fromkeys(logs, error))
            self.moved()

    def read(self, stream: OrderStream) -> None:
        """Take what a stream says of its own logs."""
        for number, first in stream.state.lost.items():
            log = stream.plan.logs[number]
            self._seen[log.name] = log, first

    def refuse(self, log: str, offset: int) -> None:
        """Raise `Truncated` for an offset that is lost."""
        for known in (self._stated, self._seen):
            if log in known and offset >= known[log][1]:
                raise lost_log(*known[log])
        if log in self._orders:
            raise Truncated(str(self._orders[log])) from self._orders[log]
