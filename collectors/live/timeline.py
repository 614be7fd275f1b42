"""The merged timeline: the last messages of an interest in their one order, as a consumer has them.

A thread reads as a consumer without a group and keeps a window. It reads a bounded number of
messages a second; where more come, it skips to the end and shows the gap.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from collectors.live.observer import LOOKBACK_RECORDS, Observer
from multicast.consuming.batches import Batch
from multicast.consuming.consumer import Consumer
from multicast.consuming.cursor import Cursor
from multicast.consuming.subscription import SubscriptionRequest
from multicast.control import SINGLE_LOG, ControlState, log_partition, stream_partition
from multicast.drivers.protocol import Record
from multicast.errors import AmcastError

WINDOW_ROWS = 2_000  # what is kept and searched: some 5 MB at most
_ROWS_PER_S = 2_000  # nobody reads more; a busy topic would take a processor
_ROWS_AT_ONCE = 200  # of one poll, so that the bound above is kept
_TEXT_SEARCHED = 2_000  # characters of a payload that are kept
_TEXT_SHOWN = 300  # of them on the page: a row is a line
_KEY_SHOWN = 200  # characters
# A row is held back so long at most until the stream of the log's top has been read, too.
_ORDERED_S = 2.0
_POLL_S = 0.25  # one wait for messages; `close` takes so long
_JOIN_S = 15.0  # the thread may be in a request to a cluster that does not answer


@dataclass(slots=True)
class TimelineRow:
    """One delivered message; `number` counts from the start of the window.

    `document` is what the page gets of it, but for who has ordered it.
    """

    number: int
    log: str
    offset: int
    read_from: str
    taken: float
    text: str
    document: dict[str, Any]

    def matches(self, words: str) -> bool:
        """Whether its ID, destination set, key or text has these words, in any case."""
        parts = (self.document["id"], self.document["to"], self.document["key"], self.text)
        return words in "\n".join(parts).casefold()


class Timeline:
    """Reads one interest until it is closed."""

    def __init__(self, observer: Observer, interest: str, *, payloads: bool) -> None:
        self.interest = interest
        self.error = ""
        self._driver = observer.driver
        self._observer = observer
        self._payloads = payloads
        self._rows: deque[TimelineRow] = deque(maxlen=WINDOW_ROWS)
        self._gap = 0  # the number of the first row after the last gap
        self.count = 0  # the number of the next row
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._listeners: dict[Callable[[], None], None] = {}
        self._thread = threading.Thread(target=self._run, name="amcast-timeline", daemon=True)
        self._thread.start()

    def listen(self, moved: Callable[[], None]) -> None:
        """Have `moved` called when rows have come, in the timeline's thread."""
        self._listeners[moved] = None

    def ignore(self, moved: Callable[[], None]) -> None:
        """Call it no more; the timeline may be closed if nobody listens."""
        self._listeners.pop(moved, None)

    @property
    def watched(self) -> bool:
        """Whether anybody listens."""
        return bool(self._listeners)

    def since(self, number: int, words: str, rows_max: int) -> tuple[list[dict[str, Any]], int]:
        """Give the newest rows with these words from a number on, and the number to go on with.

        It ends before a row of which is not known yet who ordered it.
        """
        with self._lock:
            rows = [row for row in self._rows if row.number >= number]
        now, words = time.monotonic(), words.casefold()
        for place, row in enumerate(rows):
            is_log = row.read_from.startswith(SINGLE_LOG)
            is_late = now - row.taken >= _ORDERED_S
            if not (is_late or is_log or self._observer.runs.of(row.log, row.offset)):
                rows = rows[:place]
                break
        following = rows[-1].number + 1 if rows else number
        chosen = [row for row in rows if not words or row.matches(words)]
        return [self._shown(row) for row in chosen[-rows_max:]], following

    def close(self) -> None:
        """End the thread."""
        self._stop.set()
        self._thread.join(_JOIN_S)

    def _shown(self, row: TimelineRow) -> dict[str, Any]:
        run = self._observer.runs.of(row.log, row.offset)
        return {
            **row.document,
            "by": run.collector if run else "",
            "ordered": run.time_ms if run else None,
            "gap": row.number == self._gap and row.number > 0,
        }

    # -- inside -------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            state = self._observer.state
            assert state is not None
            name, interest = _requested(state, self.interest)
            with Consumer(
                topic=state.topic,
                name=name,
                interest=interest,
                start=self._start(state, name, interest),
                committed=False,
                void="mark",
                driver=self._driver,
            ) as consumer:
                while not self._stop.is_set():
                    self._read_second(consumer, name, interest)
        except AmcastError as error:
            self.error = str(error)
        except Exception as error:  # noqa: BLE001 - a defect here must be seen on the page
            self.error = f"the timeline has failed: {error!r}"
        self._tell()

    def _read_second(
        self, consumer: Consumer, name: str | None, interest: tuple[str, ...] | None
    ) -> None:
        """Read for a second, or until the bound; then skip what has come meanwhile."""
        until, left = time.monotonic() + 1.0, _ROWS_PER_S
        while (wait := until - time.monotonic()) > 0 and not self._stop.is_set():
            if left <= 0:
                self._stop.wait(wait)
                state = self._observer.state
                assert state is not None
                consumer.seek(self._start(state, name, interest))
                self._gap = self.count
                return
            batches = consumer.poll(min(wait, _POLL_S), messages_max=min(left, _ROWS_AT_ONCE))
            for batch in batches:
                left -= len(batch.records)
                self._take(batch)
            if batches:
                self._tell()

    def _start(
        self, state: ControlState, name: str | None, interest: tuple[str, ...] | None
    ) -> Cursor:
        """Give the cursor some records before the present end of the interest's source."""
        begun = state.begun_epoch
        _, source = SubscriptionRequest.of(name, interest).resolve_at(state, begun)
        epoch = state.first_epoch(begun, source)
        plan = state.plan(epoch)
        if source.startswith(SINGLE_LOG):
            log = plan.log(source.removeprefix(SINGLE_LOG))
            first = max(self._first(log_partition(log), WINDOW_ROWS // 2), log.first)
            return Cursor(epoch, source, 0, 0, first)
        record = self._first(stream_partition(plan, source), LOOKBACK_RECORDS)
        return Cursor(epoch, source, max(record, plan.collector(source).stream_first), 0, 0)

    def _first(self, partition: Any, back: int) -> int:
        end: int = self._driver.last_stable_offsets([partition])[partition]
        begin: int = self._driver.log_start_offsets([partition])[partition]
        return max(begin, end - back)

    def _take(self, batch: Batch) -> None:
        with self._lock:
            for record in batch.records:
                self._rows.append(self._row(batch, record))
                self.count += 1

    def _row(self, batch: Batch, record: Record) -> TimelineRow:
        value, place = record.value or b"", (batch.log.name, record.offset, batch.source)
        text = _text(value, _TEXT_SEARCHED) if self._payloads else ""
        document = {
            "n": self.count,
            "id": f"{batch.log.label}:{record.offset}",
            "to": "+".join(batch.to),
            "key": _text(record.key or b"", _KEY_SHOWN) if self._payloads else "",
            "text": text[:_TEXT_SHOWN],
            "size": len(value),
            "stored": record.timestamp_ms,
            "epoch": batch.epoch,
            "from": batch.source,
            "record": batch.record,
            "decision": "" if batch.decision.takes_effect else str(batch.decision),
        }
        return TimelineRow(self.count, *place, time.monotonic(), text, document)

    def _tell(self) -> None:
        for moved in list(self._listeners):
            moved()


def _requested(state: ControlState, interest: str) -> tuple[str | None, tuple[str, ...] | None]:
    """Read a consumer's name, or a set of partitions as "P1+P3"."""
    plan = state.plan(state.begun_epoch)
    if plan.subscription(interest) is not None:
        return interest, None
    return None, tuple(sorted(set(interest.split("+"))))


def _text(raw: bytes, characters_max: int) -> str:
    """Show bytes: as text if they are UTF-8, else in hexadecimal."""
    part = raw[: 4 * characters_max]  # a character of UTF-8 has 4 bytes at most
    for cut in range(4 if len(part) < len(raw) else 1):  # the last character may be in two
        try:
            return part[: len(part) - cut].decode()[:characters_max]
        except UnicodeDecodeError:
            continue
    return "0x" + part[: characters_max // 2].hex()
