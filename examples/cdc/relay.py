"""The relay: makes one multicast of each transaction of the source, in the order of its commits.

    python examples/cdc/relay.py --bootstrap HOST:PORT --topic cdc --state relay.db

It reads the tables' topics and the transaction topic. A transaction is complete when the events
that its END counts have come. It is sent to the partitions of its tables and to `source`, when all
transactions that ended before it are sent and stored. Then its ID is noted in the database, and
what comes of it again, from a connector that restarted, is ignored.

It may be killed at any moment: it commits offsets from which every transaction that is not noted
can be put together again. One that was stored and not noted is stored twice; readers drop the copy.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
from collections import deque
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition
from source import PREFIX, TABLES, TRANSACTIONS

from multicast import AmcastError, Producer

SOURCE = "source"
_POLL_S = 0.5  # one wait for records
_COMMIT_EVERY = 20  # transactions; after a crash the records of so many are read again
_REQUEST_S = 30.0  # for one answer of a broker

Place = tuple[str, int]  # topic, Kafka partition
Change = tuple[Place, int, dict[str, Any]]  # with its offset


@dataclass(frozen=True)
class EndRecord:
    """The END of a transaction: its offset in the transaction topic, and how many events it has."""

    name: str
    offset: int
    count: int


class Assembly:
    """Puts transactions together; `is_sent` tells of an ID whether it is noted as sent."""

    def __init__(self, is_sent: Callable[[str], bool]) -> None:
        self._is_sent = is_sent
        self._changes: dict[str, dict[int, Change]] = {}  # of transactions that are not sent
        self._ends: deque[EndRecord] = deque()
        self._next: dict[Place, int] = {}

    def take(self, place: Place, offset: int, value: dict[str, Any]) -> None:
        """Take the next record of a topic."""
        self._next[place] = offset + 1
        is_boundary = place[0] == TRANSACTIONS
        name = value["id"] if is_boundary else value["transaction"]["id"]
        if self._is_sent(name):
            return
        if not is_boundary:
            # An event that comes again changes nothing: the first one stays, with its offset.
            changes = self._changes.setdefault(name, {})
            changes.setdefault(int(value["transaction"]["total_order"]), (place, offset, value))
        elif value["status"] == "END":
            self._ends.append(EndRecord(name, offset, int(value["event_count"])))

    def complete(self) -> tuple[str, list[dict[str, Any]]] | None:
        """Give the next transaction to send, with its events in their order, if it is whole."""
        while self._ends and self._is_sent(self._ends[0].name):
            self._ends.popleft()
        if not self._ends:
            return None
        end = self._ends[0]
        changes = self._changes.get(end.name, {})
        if len(changes) < end.count:
            return None
        return end.name, [changes[number][2] for number in sorted(changes)]

    def sent(self) -> None:
        """Forget the transaction that `complete` gave: it is stored and noted."""
        self._changes.pop(self._ends.popleft().name, None)

    def next_offsets(self) -> dict[Place, int]:
        """Give for each topic the offset from which all that is not sent can be read again."""
        offsets = dict(self._next)
        for changes in self._changes.values():
            for place, offset, _ in changes.values():
                offsets[place] = min(offset, offsets[place])
        if self._ends:
            offsets[TRANSACTIONS, 0] = self._ends[0].offset
        return offsets


class SentIDs:
    """The IDs of the transactions that are stored, in a database."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        database.execute("CREATE TABLE IF NOT EXISTS sent (id TEXT PRIMARY KEY)")

    def note(self, name: str) -> None:
        """Note an ID."""
        with self._database:
            self._database.execute("INSERT OR IGNORE INTO sent VALUES (?)", (name,))

    def is_noted(self, name: str) -> bool:
        """Whether an ID is noted."""
        query = "SELECT 1 FROM sent WHERE id = ?"
        return self._database.execute(query, (name,)).fetchone() is not None


def message_of(name: str, changes: list[dict[str, Any]]) -> tuple[bytes, set[str]]:
    """Make a transaction's message, and say to which partitions it goes."""
    rows = [
        {key: change[key] for key in ("op", "before", "after")}
        | {"table": change["source"]["table"]}
        for change in changes
    ]
    value = {"transaction": name, "changes": rows}
    return json.dumps(value).encode(), {SOURCE, *(row["table"] for row in rows)}


def relay(consumer: Consumer, producer: Producer, noted: SentIDs, *, quiet_s: float | None) -> None:
    """Relay until the process is ended, or until nothing has come for `quiet_s` seconds."""
    assembly, uncommitted, quiet = Assembly(noted.is_noted), 0, 0.0
    while quiet_s is None or quiet < quiet_s:
        record = consumer.poll(_POLL_S)
        quiet = quiet + _POLL_S if record is None else 0.0
        if record is not None:
            take(assembly, record)
        while (whole := assembly.complete()) is not None:
            payload, to = message_of(*whole)
            # Stored before the next one is sent: so the log has the source's order.
            producer.multicast(payload, to=to).accepted()
            noted.note(whole[0])
            assembly.sent()
            uncommitted += 1
            sys.stdout.write(f"{whole[0]}\n")
            sys.stdout.flush()
        if uncommitted >= _COMMIT_EVERY or (record is None and uncommitted):
            commit(consumer, assembly)
            uncommitted = 0


def take(assembly: Assembly, record: Message) -> None:
    """Give a record to the assembly; a table's tombstone (for compaction) says nothing new."""
    error, value = record.error(), record.value()
    if error is not None:
        raise KafkaException(error)
    topic, partition, offset = record.topic(), record.partition(), record.offset()
    if value is None or topic is None or partition is None or offset is None:
        return
    document = json.loads(value)
    document = document.get("payload", document)  # with or without Kafka Connect's schema
    if topic != TRANSACTIONS and document.get("transaction") is None:
        raise ValueError(
            f"{topic}:{offset} belongs to no transaction: it is of a snapshot, or the connector "
            f"runs without provide.transaction.metadata=true"
        )
    assembly.take((topic, partition), offset, document)


def commit(consumer: Consumer, assembly: Assembly) -> None:
    """Store where to read after a crash, for all topics in one request."""
    offsets = assembly.next_offsets()
    consumer.commit(
        offsets=[TopicPartition(*place, offset) for place, offset in offsets.items()],
        asynchronous=False,
    )


def main() -> None:
    """Relay."""
    parser = argparse.ArgumentParser(description="From Debezium's topics to multicasts")
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--state", required=True, help="a database of the relay's own")
    parser.add_argument("--quiet", type=float, help="end after so many seconds without a record")
    options = parser.parse_args()
    # Not `subscribe`: there is one relay, and it reads all topics.
    consumer = Consumer(
        {
            "bootstrap.servers": options.bootstrap,
            "group.id": f"cdc-relay-{options.topic}",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    try:
        topics = [TRANSACTIONS, *(PREFIX + table for table in TABLES)]
        places = [TopicPartition(topic, 0) for topic in topics]
        consumer.assign(consumer.committed(places, timeout=_REQUEST_S))
        with (
            closing(sqlite3.connect(options.state)) as database,
            Producer(options.bootstrap, topic=options.topic) as producer,
        ):
            relay(consumer, producer, SentIDs(database), quiet_s=options.quiet)
    except KeyboardInterrupt:
        return
    except (KafkaException, ValueError) as error:
        sys.exit(str(error))
    except AmcastError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)
    finally:
        consumer.close()


if __name__ == "__main__":
    main()
