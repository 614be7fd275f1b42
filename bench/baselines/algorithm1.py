"""The poster's Algorithm 1, line by line: a baseline, and the object of `tests/test_poster.py`.

It merges the messages of N input streams, as they arrive, into one stream. The numbers in the
comments are the printed line numbers. Its defects are kept; where the text leaves a choice, the
code takes the most literal reading.

    shared      S: the partitions that all inputs have in common (by line 12: for all i)
    counted     s_i,count: the number of shared messages received from stream i
    passed      S_count: the number of shared messages sent
    queues      q_s_i: the waiting messages of stream i

It is correct without crashes, from a common start, and if all inputs carry the same messages of the
shared partitions in the same order. `tests/test_poster.py` shows what happens otherwise.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Tagged(NamedTuple):
    """A message ID and the partition that it came from; prints as "a@2"."""

    message_id: str
    partition: str

    def __str__(self) -> str:
        """Return the form in which the counter-examples are written."""
        return f"{self.message_id}@{self.partition}"


class Merge:
    """Merges the streams of several collectors at a collector above them."""

    def __init__(self, streams: int, shared: Iterable[str]) -> None:
        self.shared = frozenset(shared)
        self.passed = 0  # 1
        self.counted = [0] * streams  # 2
        self.queues: list[deque[Tagged]] = [deque() for _ in range(streams)]  # 3

    def take(self, stream: int, message: Tagged) -> list[Tagged]:
        """Take the next message of a stream; return the messages to send now."""  # 4, 5
        if self.counted[stream] == self.passed and message.partition not in self.shared:  # 6
            return [message]  # 7
        self.queues[stream].append(message)  # 9
        if message.partition in self.shared:  # 10
            self.counted[stream] += 1  # 11
        sent: list[Tagged] = []
        if all(counted > self.passed for counted in self.counted):  # 12
            sent += self._until_shared()  # 13
            sent += self._shared()  # 14, 15
            self.passed += 1  # 16
            sent += self._until_shared()  # 17
        return sent

    def _until_shared(self) -> list[Tagged]:
        sent = []
        for queue in self.queues:
            while queue and queue[0].partition not in self.shared:
                sent.append(queue.popleft())
        return sent

    def _shared(self) -> list[Tagged]:
        """Send the shared message at the head, and delete it from all other queues."""
        message = self.queues[0][0]
        for queue in self.queues:
            if message in queue:
                queue.remove(message)
        return [message]


def merge(
    streams: Sequence[Sequence[Tagged]], shared: Iterable[str], arrivals: Sequence[int]
) -> list[Tagged]:
    """Merge whole streams; `arrivals` lists the stream of each arriving message in turn."""
    merging = Merge(len(streams), shared)
    places = [0] * len(streams)
    sent: list[Tagged] = []
    for stream in arrivals:
        sent += merging.take(stream, streams[stream][places[stream]])
        places[stream] += 1
    return sent


def tagged(text: str) -> list[Tagged]:
    """Read a stream as the counter-examples are written: "a@2 s@3"."""
    return [Tagged(*entry.split("@")) for entry in text.split()]
