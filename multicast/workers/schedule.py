"""Which messages may be handled now, and up to where all are done: the core of all workers.

No I/O, no thread, no clock: `now` is an argument. Messages queue for their keys in the order of
delivery, as deterministic databases take locks, so two can never wait for each other.

taken     numbered 0, 1, 2 … in the order of delivery, and in the queue of each of its keys
free      first in the queues of all its keys
in hand   a free one that was begun and has not ended
waits     failed, and is tried again later; it stays first in its queues
done      left its queues
passed    the low watermark: all numbers below it are done

Invariants: passed <= every number that is not done; two in hand have no key in common, and one is
begun after all earlier ones with its keys are done; taken - passed <= open_max (the caller takes
only while there is `room`); the oldest that is not done is free, in hand, or waits, so that no
limit can stop it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from heapq import heappop, heappush

from multicast.consuming.batches import Message
from multicast.consuming.cursor import Cursor

_RETRY_S = 0.1  # a lock that is taken, a database that fails over; twice as long each time
BYTES_MAX = 64 << 20  # of what is taken and not passed: as much as the buffers of four logs


@dataclass(slots=True)
class _Open:
    message: Message
    keys: tuple[Hashable, ...]
    size: int
    behind: int  # in how many of its queues it is not the first
    failures: int = 0
    is_done: bool = False


class WorkSchedule:
    """The messages that are taken and not passed: `in_hand_max` at most are begun at a time."""

    def __init__(self, *, in_hand_max: int, open_max: int, attempts_max: int) -> None:
        self.passed = 0
        self._last: Message | None = None  # below `passed`
        self.in_hand_max, self._open_max, self._attempts_max = in_hand_max, open_max, attempts_max
        self._taken = self._bytes = 0
        self._open: dict[int, _Open] = {}
        self._queues: dict[Hashable, deque[int]] = {}
        self._free: list[int] = []  # a heap: the oldest is begun first
        self._waits: list[tuple[float, int]] = []  # a heap of when, and which
        self._in_hand: set[int] = set()
        self._begun = 0  # all that were ever begun are below it
        self._until: float = math.inf  # nothing from this number on is begun

    @property
    def cursor(self) -> Cursor | None:
        """The position behind the last message below the watermark; None: there is none."""
        return None if self._last is None else self._last.cursor

    @property
    def room(self) -> bool:
        """Whether another message may be taken."""
        return self._taken - self.passed < self._open_max and self._bytes < BYTES_MAX

    @property
    def busy(self) -> bool:
        """Whether something is in hand, or is still to be begun."""
        return bool(self._in_hand) or self.passed < min(self._until, self._taken)

    @property
    def next_try(self) -> float:
        """When the next one that waits is tried again; infinite: none waits."""
        return self._waits[0][0] if self._waits else math.inf

    def take(self, message: Message, keys: Iterable[Hashable], size: int) -> None:
        """Take the next message in the order of delivery; raises `TypeError` for no such keys."""
        number, keys = self._taken, tuple(dict.fromkeys(keys))
        behind = 0
        for key in keys:
            queue = self._queues.setdefault(key, deque())
            behind += bool(queue)
            queue.append(number)
        self._open[number] = _Open(message, keys, size, behind)
        self._taken += 1
        self._bytes += size
        if not behind:
            heappush(self._free, number)

    def begin(self, now: float) -> list[tuple[int, Message]]:
        """Give the messages to handle now, the oldest first; they are in hand from here on."""
        while self._waits and self._waits[0][0] <= now:
            heappush(self._free, heappop(self._waits)[1])
        begun = []
        while self._free and self._free[0] < self._until and len(self._in_hand) < self.in_hand_max:
            number = heappop(self._free)
            self._in_hand.add(number)
            self._begun = max(self._begun, number + 1)
            begun.append((number, self._open[number].message))
        return begun

    def done(self, number: int) -> None:
        """End a message, handled or given up; its keys pass to those that come next."""
        ended = self._open[number]
        ended.is_done = True
        self._in_hand.discard(number)
        for key in ended.keys:
            queue = self._queues[key]
            first = queue.popleft()
            assert first == number
            if not queue:
                del self._queues[key]
                continue
            following = self._open[queue[0]]
            following.behind -= 1
            if not following.behind:
                heappush(self._free, queue[0])
        while self.passed < self._taken and self._open[self.passed].is_done:
            passed = self._open.pop(self.passed)
            self._last = passed.message
            self._bytes -= passed.size
            self.passed += 1

    def failed(self, number: int, now: float) -> int:
        """Note a failed attempt; give the attempts that are left.

        With none left the message keeps its keys until the caller calls `done`, or `halt`.
        """
        again = self._open[number]
        self._in_hand.remove(number)
        again.failures += 1
        left = self._attempts_max - again.failures
        if left > 0:
            heappush(self._waits, (now + _RETRY_S * 2 ** (again.failures - 1), number))
        return left

    def drain(self) -> None:
        """Begin only what is older than something that was begun.

        Once this is no longer `busy`, exactly the messages below the watermark are done.
        """
        self._until = min(self._until, self._begun)

    def halt(self) -> None:
        """Begin nothing any more; what is in hand may end."""
        self._until = 0
