"""Values of the administration, read from the brokers' answers, and a call with a time limit.

Nothing here uses Kafka. The package's own calls may block without a limit, so each runs on a thread
of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from typing import Any

from multicast.drivers.protocol import TopicPartition
from multicast.errors import AmcastError

# Of one Kafka partition: its number, its leader (-1: none), its replicas, those in sync.
Holders = tuple[int, int, tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic to create: at least `partitions`; replication -1 is the cluster's default."""

    partitions: int
    replication: int = -1
    settings: Mapping[str, str] = field(default_factory=dict)

    def description(self) -> dict[str, object]:
        """Describe the topic in the package's words."""
        return {
            "num_partitions": self.partitions,
            "replication_factor": self.replication,
            "configs": dict(self.settings),
        }


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that is open in a Kafka partition from `first_offset` on.

    `since_ms` is the time at which it began, or if that is unknown, at which its producer last
    appended there. The transactional ID and the time-out are None if the cluster hides them.
    """

    producer_id: int
    producer_epoch: int
    first_offset: int
    since_ms: int
    transactional_id: str | None = None
    timeout_ms: int | None = None


def opened_by(producers: Iterable[Any]) -> list[OpenTransaction]:
    """Return the transactions that a Kafka partition's producers have open, by first offset."""
    transactions = [
        OpenTransaction(
            producer.producer_id,
            producer.producer_epoch,
            producer.current_transaction_start_offset,
            producer.last_timestamp,
        )
        for producer in producers
        if producer.current_transaction_start_offset >= 0
    ]
    return sorted(transactions, key=lambda transaction: transaction.first_offset)


def described(
    ask: Callable[[Callable[[], Any]], Any], admin: Any, transaction: OpenTransaction
) -> OpenTransaction:
    """Add what the transaction's coordinator reports, if this user may see it."""
    ids = [transaction.producer_id]
    try:
        listed = ask(lambda: admin.list_transactions(producer_id_filters=ids))
        names = [entry.transactional_id for entries in listed.values() for entry in entries]
        if not names:
            return transaction
        told = ask(lambda: admin.describe_transactions(names[:1]))[names[0]]
    except AmcastError:
        return transaction
    return replace(
        transaction,
        transactional_id=names[0],
        since_ms=told.transaction_start_time_ms,
        timeout_ms=told.transaction_timeout_ms,
    )


def holders_of(partition: Mapping[str, Any]) -> Holders:
    """Read who leads and stores a Kafka partition from its metadata."""
    return (
        int(partition["partition_index"]),
        int(partition["leader_id"]),
        tuple(partition["replica_nodes"]),
        tuple(partition["isr_nodes"]),
    )


def first_led(partitions: Iterable[Mapping[str, Any]]) -> dict[int, int]:
    """Return the lowest partition number that each leader has among a topic's partitions."""
    first: dict[int, int] = {}
    for partition in sorted(partitions, key=lambda entry: int(entry["partition_index"])):
        if partition["leader_id"] >= 0:
            first.setdefault(partition["leader_id"], partition["partition_index"])
    return first


def largest_replicas(folders: Iterable[Mapping[str, Any]]) -> dict[TopicPartition, int]:
    """Return the bytes of the largest replica of each Kafka partition in these log directories."""
    sizes: dict[TopicPartition, int] = {}
    for folder in folders:
        for topic in folder["topics"]:
            for replica in topic["partitions"]:
                partition = TopicPartition(topic["name"], replica["partition_index"])
                sizes[partition] = max(sizes.get(partition, 0), replica["partition_size"])
    return sizes


def called(call: Callable[[], Any], timeout_s: float) -> Future[Any]:
    """Make a call on its own (daemon) thread, which it keeps until it ends; wait so long for it."""
    result: Future[Any] = Future()

    def run() -> None:
        try:
            result.set_result(call())
        except Exception as error:  # noqa: BLE001 - handed to the waiting thread
            result.set_exception(error)

    threading.Thread(target=run, name="amcast-admin", daemon=True).start()
    wait([result], timeout_s)
    return result
