"""What a collector relays of its parent's stream. No I/O, no clock.

It also compares: after `parent_next` is relayed, our positions of inherited logs are the parent's
at that offset, and the parent's last record below it has the checksum that the relay named. If not,
some record, in this stream or in another, is wrong, or the parent's stream has lost its tail: the
stream has strayed, and relays no more; `amcast topology recover` mends it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from multicast.order.records import Position, RelayRecord
from multicast.order.rule import NotCounted, RecordStream
from multicast.order.runs import ORDERED_MAX, Run

CHECKSUMS_MAX = 1024  # of the parent's last records: what others have relayed is compared with them
RELAYS_MAX = 2  # in flight: what comes meanwhile goes into the next one
ENTRIES_MAX = 512  # of a relay: 6 kB
WAITING_MAX = 4096  # runs of the parent that are kept; bounds memory


class Relay:
    """The parent's order on its way into our own stream.

    `parent` is the parent's stream, opened at or before `own.state.parent_next`.
    """

    def __init__(self, own: RecordStream, parent: RecordStream) -> None:
        assert parent.offset_next <= own.state.parent_next
        self._own = own
        self.parent = parent
        self._next = own.state.parent_next  # handed out up to here
        self._before = own.state.parent_last  # the checksum of the parent's last record below
        # Of the parent: the record's offset, what it ordered of our bag, how many offsets, and the
        # checksum of the record before it.
        self._waiting: deque[tuple[int, Position, int, int]] = deque()
        self._checksums: deque[tuple[int, int]] = deque(maxlen=CHECKSUMS_MAX)  # by offset
        self._in_flight: deque[tuple[int, int]] = deque()  # `first` and `next` of each relay
        inherited = own.shape.inherited
        # The parent's positions at own.state.parent_next, once it is read so far.
        self._positions = {log: parent.state.positions[log] for log in inherited}
        self.strayed = False
        self.parent_lost = False  # and that is why: another record is where the last one was
        # Behind the last run that a recovery restores to the parent. Until it is relayed, our
        # positions may be ahead: we have restored the same runs.
        self._restored_at: int | None = None
        self._compared: tuple[int, int] | None = None  # `parent_next` and `restored` at the time
        self._note_restored()

    @property
    def full(self) -> bool:
        """Whether the parent should not be read on, because our own stream lags behind it."""
        return len(self._waiting) >= WAITING_MAX

    @property
    def done(self) -> bool:
        """Whether all that the parent ordered before its freeze is relayed."""
        parent = self.parent
        return parent.state.frozen and self._own.state.parent_next >= parent.relevant_next

    def parent_read(
        self, offset: int, raw: bytes | None, checksum: int = 0
    ) -> tuple[Run, ...] | NotCounted:
        """Read the next record of the parent's stream; give its verdict."""
        before = self.parent.checksum
        judged = self.parent.read(offset, raw, checksum)
        self._checksums.append((offset, checksum))
        self._note_restored()
        if not isinstance(judged, NotCounted):
            for log, first, end in judged:
                if log in self._own.shape.inherited:
                    self._waiting.append((offset, Position(log, end), end - first, before))
        self.own_moved()
        return judged

    def own_moved(self) -> None:
        """Note that our own stream was read: forget what it has, and compare."""
        state = self._own.state
        known = state.parent_next
        while self._in_flight and self._in_flight[0][1] <= known:
            self._in_flight.popleft()
        while self._waiting and self._waiting[0][0] < known:
            _, (log, upto), _, _ = self._waiting.popleft()
            self._positions[log] = upto
        # What others have relayed ends within what is in flight, which therefore will not count.
        if self._next < known or (self._in_flight and self._in_flight[0][0] < known):
            self.restart()
        begun = self._restored_at is not None and self._restored_at <= known
        if not begun or known > self.parent.offset_next or state.restored < self._own.shape.owed:
            return
        # Most of our records are tickets, which leave inherited logs as they are.
        if self._compared != (known, state.restored):
            self._compared = (known, state.restored)
            others = any(state.positions[log] != upto for log, upto in self._positions.items())
            if self._read_below(known) not in (None, state.parent_last):
                self.parent_lost = True
            self.strayed = self.strayed or others or self.parent_lost

    def _note_restored(self) -> None:
        parent = self.parent
        if self._restored_at is None and parent.state.restored == parent.shape.owed:
            self._restored_at = parent.offset_next if parent.shape.owed else parent.shape.first

    def _read_below(self, known: int) -> int | None:
        """Give the checksum of the parent's last record below an offset; None: not known here."""
        for offset, checksum in reversed(self._checksums):
            if offset < known:
                return checksum
        return None

    def restart(self) -> None:
        """Hand all out again that our own stream does not have."""
        self._in_flight.clear()
        self._next, self._before = self._own.state.parent_next, self._own.state.parent_last

    def due(self, *, even_empty: bool = False) -> RelayRecord | None:
        """Give the next relay, if there is one and not too many are in flight.

        What orders nothing of our bag waits for the next relay that does, unless `even_empty`: a
        restart needs the parent's records from `parent_next` on, which retention removes.
        """
        first = self._next
        if self.strayed or len(self._in_flight) >= RELAYS_MAX or self.parent.relevant_next <= first:
            return None
        entries, end, end_at = self._fitting()
        if not (entries or even_empty or self.parent.state.frozen):
            return None
        relay = RelayRecord(first, end, joined(entries), self._before, end_at)
        self._in_flight.append((first, end))
        self._next, self._before = end, end_at
        return relay

    def _fitting(self) -> tuple[list[Position], int, int]:
        """Give the entries of the next relay, where it ends, and the checksum of the record there.

        It has whole records of the parent, each of which is within the limits.
        """
        entries: list[Position] = []
        border, last, ordered = (0, self._next, 0), -1, 0
        for offset, entry, length, before in self._waiting:
            if offset < self._next:
                continue
            if offset > last:
                border, last = (len(entries), offset, before), offset
            entries.append(entry)
            ordered += length
            if border[0] and (len(entries) > ENTRIES_MAX or ordered > ORDERED_MAX):
                return entries[: border[0]], *border[1:]
        return entries, self.parent.relevant_next, self.parent.relevant_checksum


def joined(entries: Sequence[Position]) -> tuple[Position, ...]:
    """Leave out what the next entry repeats: of neighbours of one log only the last counts."""
    last = len(entries) - 1
    return tuple(
        [
            entry
            for place, entry in enumerate(entries)
            if place == last or entries[place + 1].log != entry.log
        ]
    )
