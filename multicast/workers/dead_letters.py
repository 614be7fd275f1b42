"""Dead letters: messages that no attempt could handle, in partition 0 of a topic of their own."""

from __future__ import annotations

from multicast.consuming.batches import Message
from multicast.drivers.protocol import Appender, AppendFailed, AppendOutcome, Driver, TopicPartition
from multicast.errors import TimedOut

_STORED_S = 30.0  # a broker's failure must not end the work: Kafka elects others after 9 s
_ERROR_CHARACTERS_MAX = 1000  # of the header: enough for a sentence, and no dump


class DeadLetters:
    """Stores dead letters; raises `TopicMissing` if the topic does not exist."""

    def __init__(self, driver: Driver, topic: str) -> None:
        self._partition = TopicPartition(topic, 0)
        driver.last_stable_offsets([self._partition])
        self._driver = driver
        self._appender: Appender | None = None  # opened by the first letter

    def store(self, message: Message, error: BaseException) -> None:
        """Store a message, its ID, and the error; blocks. After a crash it may be stored again."""
        why = f"{type(error).__name__}: {error}"[:_ERROR_CHARACTERS_MAX]
        said = {"id": str(message.message_id), "to": ",".join(message.to), "error": why}
        added = [(f"amcast.{name}", text.encode("utf-8", "replace")) for name, text in said.items()]
        outcomes: list[AppendOutcome] = []
        if self._appender is None:
            self._appender = self._driver.appender()
        headers, key = [*message.headers, *added], message.key
        record = self._partition, message.payload
        self._appender.append(*record, key=key, headers=headers, done=outcomes.append)
        if not self._appender.flush(_STORED_S):
            raise TimedOut(f"message {message.message_id} was not stored as a dead letter in time")
        if isinstance(outcomes[0], AppendFailed):
            raise outcomes[0].error

    def close(self) -> None:
        """Release what the letters needed."""
        if self._appender is not None:
            self._appender.close()
