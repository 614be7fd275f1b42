"""The transactions of a copier: copies and the group's cursor are stored together, or not at all.

    fenced     no earlier holder of the transactional ID can write any more, and its transaction
               has ended
    committed  the group's cursor, once nobody's commit of it is on its way (Kafka: stable)

Invariant: `committed` is read after `fence`. The other way round an earlier holder may commit in
between: its copies would be made once more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from multicast.drivers.protocol import Driver, Headers, Record, TopicPartition

Offsets = Mapping[TopicPartition, tuple[int, str]]


class Transactions(Protocol):
    """A transactional producer that writes to one topic, for one thread.

    Each call waits for the transaction time-out, or 30 s, at most. All raise `Fenced` once another
    one has fenced it, `AccessDenied`, and `ClusterUnreachable` if the brokers do not answer.
    """

    def fence(self) -> None:
        """Fence all earlier holders of the transactional ID; call it before anything else."""

    def committed(
        self, group: str, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, tuple[int, str]]:
        """Give the stable offsets and texts of the group; leave out what it has not committed."""

    def begin(self) -> None:
        """Begin a transaction."""

    def copy(self, records: Sequence[Record], headers: Iterable[Headers]) -> None:
        """Add the records' values, keys and times, with these headers, one list for each."""

    def stored(self) -> int:
        """Wait until the brokers hold all copies of the transaction; give the first one's offset.

        They follow each other from there on, as one partition is written to, and then the
        transaction's end follows: any other place of the next first copy is another writer's doing.
        """

    def commit(self, group: str, offsets: Offsets) -> None:
        """Commit the transaction, and the group's offsets with it."""

    def abort(self) -> None:
        """Abort the transaction, if one is open; else nothing. Raises nothing."""

    def close(self) -> None:
        """Abort what is open, and release everything."""


class CommittingDriver:
    """A driver whose commits end the transaction: a `Consumer` with it commits with its copies.

    All other calls are those of the driver.
    """

    def __init__(self, driver: Driver, transactions: Transactions) -> None:
        self._driver = driver
        self.commit = transactions.commit
        self.committed = transactions.committed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)
