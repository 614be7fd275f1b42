"""What an agent was given, and how far it has processed that.

    given       handed to the agent, in the order of delivery
    acked       Faust says that the agent is done with it
    processed   the cursor up to which everything given is acked: what may be committed

Faust acks a message also when it closes the stream of an agent that failed at it. So a failure
first takes what is processed, then forgets the rest: an ack that comes later changes nothing.

Invariant: processed never passes a message that is given and not acked.
"""

from __future__ import annotations

from collections import deque

from multicast.consuming.batches import Message
from multicast.consuming.cursor import Cursor
from topology import extra

with extra("collectors"):
    from faust.types.tuples import TP
    from faust.types.tuples import Message as FaustMessage

# Of a table's changelog: an ordered stream is one sequence, as the messages of one partition are.
PARTITION = 0


class Given(FaustMessage):
    """A message as Faust sees it, in one of its streams and of one generation of its workers."""

    __slots__ = ("cursor",)

    def __init__(self, stream: str, message: Message, generation: int) -> None:
        super().__init__(
            topic=stream,
            partition=PARTITION,
            offset=message.message_id.offset,
            timestamp=message.timestamp_ms / 1000,  # seconds: the time of Faust's windows
            timestamp_type=0,
            headers=[(name, value or b"") for name, value in message.headers],
            key=message.key,
            value=message.payload,
            checksum=None,
            tp=TP(stream, PARTITION),
            generation_id=generation,
        )
        self.cursor = message.cursor


class AgentProgress:
    """The messages that an agent was given and has not processed, and the cursor before them."""

    def __init__(self, start: Cursor) -> None:
        self._processed = start
        self._given: deque[Given] = deque()

    def give(self, given: Given) -> None:
        """Take note of a message that is handed to the agent now."""
        self._settle()
        self._given.append(given)

    @property
    def processed(self) -> Cursor:
        """The cursor up to which the agent has processed everything."""
        self._settle()
        return self._processed

    @property
    def idle(self) -> bool:
        """Whether the agent has processed all that it was given."""
        self._settle()
        return not self._given

    def forget(self) -> Cursor:
        """Forget what is not processed; give the cursor from which to give messages again."""
        self._settle()
        self._given.clear()
        return self._processed

    def _settle(self) -> None:
        given = self._given
        while given and given[0].acked:
            self._processed = given.popleft().cursor
