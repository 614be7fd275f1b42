"""The relay: makes one multicast of each transaction of the source, in the order of its commits.

    python examples/cdc/relay.py --bootstrap HOST:PORT --topic cdc --state relay.db

It reads the tables' topics and the transaction topic. A transaction is complete when the events
that its END counts, of the tables that are read here, have come. It is sent to the partitions of
its tables and to `source`, when all transactions that ended before it are sent and stored. Then its
ID is noted in the database, and what comes of it again, from a connector that restarted, is
ignored.

It may be killed at any moment: it commits offsets from which every transaction that is not noted
can be put together again. One that was stored and not noted is stored twice; readers drop the copy.
"""

from __future__ import annotations

import argparse
import json
import re
import sqlite3
import sys
from collections import deque
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition
from source import PREFIX, SERVER, TABLES, TRANSACTIONS

from amcast import AmcastError, Producer

SOURCE = "source"
_POLL_S = 0.5  # one wait for records
_COMMIT_EVERY = 20  # transactions; after a crash the records of so many are read again
_REQUEST_S = 30.0  # for one answer of a broker
_STANDS_S = 30.0  # without a record: then it is said what is lacking
_POSTGRESQL = re.compile(r"(\d+):(\d+)")  # transaction, and the position of this record in the WAL
_OPERATIONS = {"c", "u", "d", "t"}  # create, update, delete, truncate

Place = tuple[str, int]  # topic, Kafka partition
Change = tuple[Place, int, dict[str, Any]]  # with its offset


class SourcePlace(NamedTuple):
    """Which transaction a record is of, and where it stands in the source.

    PostgreSQL's connector gives each record of a transaction another ID, with the record's own
    position. Numbers of transactions come again after some 4 billion; positions only rise. The
    other connectors' IDs are the same in all records.
    """

    transaction: str
    position: int

    @classmethod
    def of(cls, name: str) -> SourcePlace:
        """Read an ID."""
        parts = _POSTGRESQL.fullmatch(name)
        return cls(name, 0) if parts is None else cls(parts[1], int(parts[2]))


@dataclass(frozen=True)
class EndRecord:
    """The END of a transaction: its offset in the transaction topic, and how many events it has.

    Only those of the tables that are read here count.
    """

    name: str
    offset: int
    count: int

    @property
    def transaction(self) -> str:
        """Name the transaction as its events do."""
        return SourcePlace.of(self.name).transaction


class Assembly:
    """Puts transactions together.

    `is_sent` tells of a record whether its transaction is noted as sent.
    """

    def __init__(self, is_sent: Callable[[SourcePlace], bool]) -> None:
        self._is_sent = is_sent
        self._changes: dict[str, dict[int, Change]] = {}  # of transactions that are not sent
        self._ends: deque[EndRecord] = deque()
        self._next: dict[Place, int] = {}

    def take(self, place: Place, offset: int, value: dict[str, Any]) -> None:
        """Take the next record of a topic."""
        self._next[place] = offset + 1
        is_boundary = place[0] == TRANSACTIONS
        name = value["id"] if is_boundary else value["transaction"]["id"]
        identity = SourcePlace.of(name)
        if self._is_sent(identity):
            return
        if not is_boundary:
            # An event that comes again changes nothing: the first one stays, with its offset.
            changes = self._changes.setdefault(identity.transaction, {})
            changes.setdefault(int(value["transaction"]["total_order"]), (place, offset, value))
        elif value["status"] == "END":
            counts = {
                f"{SERVER}.{each['data_collection']}": int(each["event_count"])
                for each in value["data_collections"] or ()
            }
            count = sum(counts.get(PREFIX + table, 0) for table in TABLES)
            self._ends.append(EndRecord(name, offset, count))

    def complete(self) -> tuple[str, list[dict[str, Any]]] | None:
        """Give the next transaction to send, with its events in their order, if it is whole."""
        while self._ends and self._is_sent(SourcePlace.of(self._ends[0].name)):
            self._ends.popleft()
        if not self._ends:
            return None
        end = self._ends[0]
        changes = self._changes.get(end.transaction, {})
        if len(changes) < end.count:
            return None
        return end.name, [changes[number][2] for number in sorted(changes)]

    def sent(self) -> None:
        """Forget the transaction that `complete` gave: it is stored and noted."""
        self._changes.pop(self._ends.popleft().transaction, None)

    def pending(self) -> str | None:
        """Say what is lacking before all that was read can be sent; None: nothing."""
        if self._ends:
            end = self._ends[0]
            come = len(self._changes.get(end.transaction, {}))
            return (
                f"transaction {end.name}, whose END is at {TRANSACTIONS}:{end.offset}, lacks "
                f"{end.count - come} of its {end.count} events; if they do not come, a filter or a "
                f"transform of the connector drops them: let it drop none of "
                f"{', '.join(PREFIX + table for table in TABLES)}"
            )
        begun = sorted(self._changes)
        return f"transaction {begun[0]} has events, but no END in {TRANSACTIONS}" if begun else None

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
        database.execute(
            "CREATE TABLE IF NOT EXISTS sent (id TEXT, position INTEGER, UNIQUE (id, position))"
        )

    def note(self, name: str) -> None:
        """Note an ID."""
        with self._database:
            self._database.execute("INSERT OR IGNORE INTO sent VALUES (?, ?)", SourcePlace.of(name))

    def is_noted(self, record: SourcePlace) -> bool:
        """Whether a transaction is noted that ends at this record or behind it."""
        query = "SELECT 1 FROM sent WHERE id = ? AND position >= ?"
        return self._database.execute(query, record).fetchone() is not None


def message_of(name: str, changes: list[dict[str, Any]]) -> tuple[bytes, set[str]]:
    """Make a transaction's message, and say to which partitions it goes."""
    rows = [
        {key: change.get(key) for key in ("op", "before", "after")}
        | {"table": change["source"]["table"]}
        for change in changes
    ]
    value = {"transaction": name, "changes": rows}
    return json.dumps(value).encode(), {SOURCE, *(row["table"] for row in rows)}


def relay(consumer: Consumer, producer: Producer, noted: SentIDs, *, quiet_s: float | None) -> None:
    """Relay until the process is ended, or until nothing has come for `quiet_s` seconds.

    Raises `ValueError` if it ends so, and a transaction is not whole.
    """
    assembly, uncommitted, quiet = Assembly(noted.is_noted), 0, 0.0
    while quiet_s is None or quiet < quiet_s:
        record = consumer.poll(_POLL_S)
        quiet = quiet + _POLL_S if record is None else 0.0
        if record is not None:
            take(assembly, record)
        while (whole := assembly.complete()) is not None:
            if whole[1]:  # else it changed no table that is read here
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
        if quiet == _STANDS_S and (lacking := assembly.pending()) is not None:
            sys.stderr.write(f"{lacking}\n")
    if (lacking := assembly.pending()) is not None:
        raise ValueError(lacking)


def take(assembly: Assembly, record: Message) -> None:
    """Give a record to the assembly; a table's tombstone (for compaction) says nothing new."""
    error, value = record.error(), record.value()
    if error is not None:
        raise KafkaException(error)
    topic, partition, offset = record.topic(), record.partition(), record.offset()
    if value is None or topic is None or partition is None or offset is None:
        return
    try:
        document = json.loads(value)
        document = document.get("payload", document)  # with or without Kafka Connect's schema
    except (ValueError, AttributeError) as error:
        raise ValueError(
            f"{topic}:{offset} is no JSON object: run the connector with "
            f"value.converter=org.apache.kafka.connect.json.JsonConverter"
        ) from error
    if topic != TRANSACTIONS:
        refuse_other(f"{topic}:{offset}", document)
    try:
        assembly.take((topic, partition), offset, document)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{topic}:{offset} is not in Debezium's form ({error!r})") from error


def refuse_other(where: str, change: dict[str, Any]) -> None:
    """Raise `ValueError`, with what to set, for a record that is no change of a row or table."""
    if change.get("transaction") is None:
        raise ValueError(
            f"{where} belongs to no transaction: it is of a snapshot, or the connector "
            f"runs without provide.transaction.metadata=true"
        )
    if change.get("op") not in _OPERATIONS or "table" not in (change.get("source") or {}):
        raise ValueError(
            f"{where} is of operation {change.get('op')!r}, no change of a table: take it out with "
            f"a filter of the connector, and its count in END with it, or do not write it"
        )
    if change["op"] == "d" and change.get("before") is None:
        raise ValueError(
            f"{where} deletes a row that it does not name: set REPLICA IDENTITY of the table"
        )


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
