"""The clients that a test opens on one topic: all are checked and closed at the end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from types import TracebackType
from typing import Any, Self

from multicast.consuming.batches import Message
from multicast.consuming.consumer import Consumer
from multicast.drivers.protocol import Driver
from multicast.errors import UsageError
from multicast.producing.producer import Producer
from multicast.properties import Report


class TopicClients(ABC):
    """Opens producers and consumers of a topic through one driver.

    As a context manager it checks all guarantees at its end, unless the block raised, and closes.
    """

    closed = False

    def __init__(self, topic: str, driver: Driver) -> None:
        self.topic = topic
        self.driver = driver
        self._consumers: dict[Consumer, dict[str, Any]] = {}
        self._producers: list[Producer] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self.check()
        finally:
            self.close()

    @abstractmethod
    def check(self) -> Report:
        """Check all guarantees now; raises `OrderViolation` with the witness of a violation."""

    @abstractmethod
    def close(self) -> None:
        """Close everything, without a check."""

    def producer(self, **options: Any) -> Producer:
        """Open a producer, with the options of `Producer`; it is closed at the end."""
        producer = Producer(topic=self.topic, driver=self.driver, **options)
        self._producers.append(producer)
        return producer

    def consumer(self, name: str | None = None, **options: Any) -> Consumer:
        """Open a consumer, with the options of `Consumer`; it is closed at the end."""
        consumer = Consumer(topic=self.topic, name=name, driver=self.driver, **options)
        self._consumers[consumer] = {"name": name, **options}
        return consumer

    def drain(self, consumer: Consumer) -> list[Message]:
        """Deliver all that the consumer's logs contain now, in order; raises as `until_end`."""
        return [
            Message(batch, record) for batch in consumer.until_end() for record in batch.records
        ]

    def reopened(self, consumer: Consumer) -> Consumer:
        """Open a consumer with the options of an earlier one."""
        if consumer not in self._consumers:
            raise UsageError("this consumer is not one that `consumer` opened here")
        return self.consumer(**self._consumers[consumer])

    def close_clients(
        self, quietly: Callable[[], AbstractContextManager[object]] = nullcontext
    ) -> None:
        """Close all of them, each inside `quietly`; raises the first error after the last one."""
        with ExitStack() as closing:
            for close in [client.close for client in self._producers] + [
                client.close for client in self._consumers
            ]:
                closing.enter_context(quietly())
                closing.callback(close)
            self._producers = []
            self._consumers = {}
