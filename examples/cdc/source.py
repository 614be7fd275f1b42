"""Writes a stream as Debezium does with `provide.transaction.metadata=true`, for made-up changes.

    python examples/cdc/source.py --bootstrap HOST:PORT --transactions 100 --truth truth.json

No database and no Debezium run here. The records have Debezium's form (its documentation,
"Transaction metadata"): each table's topic holds change events with a `transaction` block, and the
transaction topic holds BEGIN and END, with the number of events. As in the real thing, nothing is
ordered between topics, and a connector that restarts sends some records again.

    customers  id, orders: the number of the customer's orders
    orders     id, customer, total: the sum of its lines
    lines      id, order, amount
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import deque
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

TABLES = ("customers", "orders", "lines")
SERVER = "shop"  # the connector's topic.prefix
PREFIX = f"{SERVER}.public."
TRANSACTIONS = f"{SERVER}.transaction"
_REPEATED = 5  # transactions that a restarted connector sends again
_FLUSH_S = 60.0  # for the brokers to store what was sent

Row = dict[str, Any]
Sent = tuple[str, str, dict[str, Any]]  # topic, key, value


class SourceTables:
    """The rows of the made-up database, and what its last transaction changed."""

    def __init__(self, rng: random.Random) -> None:
        self.rows: dict[str, dict[str, Row]] = {table: {} for table in TABLES}
        self._rng = rng
        self._changes: list[tuple[str, Row | None, Row | None]] = []

    def transaction(self, number: int) -> list[tuple[str, Row | None, Row | None]]:
        """Place an order, or delete one; give the changes as (table, before, after)."""
        self._changes = []
        if number % 7 == 6 and self.rows["orders"]:
            self._delete(self._rng.choice(sorted(self.rows["orders"])))
        else:
            self._place(number)
        return self._changes

    def _place(self, number: int) -> None:
        customer = f"c{self._rng.randint(1, 5)}"
        known = self.rows["customers"].get(customer, {"id": customer, "orders": 0})
        amounts = [self._rng.randint(1, 9) for _ in range(self._rng.randint(1, 4))]
        order = {"id": f"o{number}", "customer": customer, "total": sum(amounts)}
        self._set("orders", order)
        for index, amount in enumerate(amounts):
            line = {"id": f"l{number}.{index}", "order": order["id"], "amount": amount}
            self._set("lines", line)
        self._set("customers", {**known, "orders": known["orders"] + 1})

    def _delete(self, order: str) -> None:
        for line in [row for row in self.rows["lines"].values() if row["order"] == order]:
            self._remove("lines", line["id"])
        customer = self.rows["customers"][self.rows["orders"][order]["customer"]]
        self._remove("orders", order)
        self._set("customers", {**customer, "orders": customer["orders"] - 1})

    def _set(self, table: str, row: Row) -> None:
        self._changes.append((table, self.rows[table].get(row["id"]), row))
        self.rows[table][row["id"]] = row

    def _remove(self, table: str, key: str) -> None:
        self._changes.append((table, self.rows[table].pop(key), None))


def records(tables: SourceTables, number: int) -> list[Sent]:
    """Give the records of one transaction in Debezium's form: BEGIN, the changes, END."""
    changes = tables.transaction(number)
    position = 10_000 + 1000 * number

    def named(place: int) -> str:
        """Give a record's ID, as for PostgreSQL: the transaction, and the record's own position."""
        return f"{500 + number}:{position + 10 * place}"

    counts: dict[str, int] = {}
    made: list[Sent] = [_boundary(named(0), "BEGIN", None, None)]
    for total_order, (table, before, after) in enumerate(changes, start=1):
        counts[table] = counts.get(table, 0) + 1
        operation = "c" if before is None else "d" if after is None else "u"
        change = {
            "op": operation,
            "before": before,
            "after": after,
            "source": {"connector": "postgresql", "name": "shop", "table": table},
            "transaction": {
                "id": named(total_order),
                "total_order": total_order,
                "data_collection_order": counts[table],
            },
        }
        made.append((PREFIX + table, (after or before or {})["id"], change))
    collections = [
        {"data_collection": f"public.{table}", "event_count": count}
        for table, count in counts.items()
    ]
    return [*made, _boundary(named(len(changes) + 1), "END", len(changes), collections)]


def _boundary(
    name: str, status: str, count: int | None, collections: list[dict[str, Any]] | None
) -> Sent:
    value = {"status": status, "id": name, "event_count": count, "data_collections": collections}
    return TRANSACTIONS, name, value


def shuffled(made: list[Sent], rng: random.Random) -> list[Sent]:
    """Mix the topics' records at random; each topic keeps its own order."""
    queues: dict[str, deque[Sent]] = {}
    for record in made:
        queues.setdefault(record[0], deque()).append(record)
    mixed = []
    while queues:
        topic = rng.choice(sorted(queues))
        mixed.append(queues[topic].popleft())
        if not queues[topic]:
            del queues[topic]
    return mixed


def main() -> None:
    """Write the stream, and the rows as they are at its end."""
    parser = argparse.ArgumentParser(description="A stream in Debezium's form")
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--transactions", type=int, default=100)
    parser.add_argument("--truth", type=Path, help="write the final rows to this file")
    options = parser.parse_args()
    rng = random.Random(1)  # noqa: S311 -- a simulation
    tables = SourceTables(rng)
    made = [records(tables, number) for number in range(options.transactions)]
    middle = len(made) // 2
    again = made[max(0, middle - _REPEATED) : middle]  # the connector restarts here
    try:
        admin = AdminClient({"bootstrap.servers": options.bootstrap})
        topics = [NewTopic(name, 1) for name in (TRANSACTIONS, *(PREFIX + t for t in TABLES))]
        for created in admin.create_topics(topics).values():
            failed = created.exception(_FLUSH_S)
            if failed and failed.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise failed
        # As Debezium's does: without it a batch that is sent again may come after later ones.
        producer = Producer({"bootstrap.servers": options.bootstrap, "enable.idempotence": True})
        for part in (made[:middle], again, made[middle:]):
            for topic, key, value in shuffled([record for one in part for record in one], rng):
                producer.produce(topic, json.dumps(value), key)
                producer.poll(0)
        if producer.flush(_FLUSH_S):
            sys.exit("the brokers did not store all records in time")
    except KafkaException as error:
        sys.exit(str(error))
    if options.truth:
        options.truth.write_text(json.dumps(tables.rows), encoding="utf-8")


if __name__ == "__main__":
    main()
