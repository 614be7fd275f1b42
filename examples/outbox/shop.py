"""The shop: writes business rows, and what others shall learn of them, in one transaction.

    python examples/outbox/shop.py --database shop.db --orders 100

It never talks to Kafka. A row of `outbox` exists if and only if its business row does.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
from contextlib import closing

# AUTOINCREMENT: no number is used twice, also after rows were deleted. SQLite has one writer at a
# time, so the order of the numbers is the order of the commits. README.md says what differs in
# PostgreSQL.
_SCHEMA = """
CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, item TEXT, quantity INT, price INT);
CREATE TABLE IF NOT EXISTS deliveries (id INTEGER PRIMARY KEY, item TEXT, quantity INT);
CREATE TABLE IF NOT EXISTS outbox (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    partitions TEXT NOT NULL,         -- the destination set, as JSON
    payload TEXT NOT NULL,
    sent INT NOT NULL DEFAULT 0);
CREATE INDEX IF NOT EXISTS unsent ON outbox (id) WHERE sent = 0;
CREATE TABLE IF NOT EXISTS source (only INTEGER PRIMARY KEY CHECK (only = 1), name TEXT NOT NULL);
INSERT OR IGNORE INTO source VALUES (1, 'shop-' || lower(hex(randomblob(8))));
"""


def open_shop(path: str) -> sqlite3.Connection:
    """Open the shop's database; make its tables if they are missing."""
    database = sqlite3.connect(path, timeout=30)
    database.execute("PRAGMA journal_mode = WAL")  # the relay reads while the shop writes
    database.executescript(_SCHEMA)
    return database


def source_of(database: sqlite3.Connection) -> str:
    """Give the name of this outbox, which no other one has: another one begins with row 1, too."""
    return str(database.execute("SELECT name FROM source").fetchone()[0])


def place_order(database: sqlite3.Connection, item: str, quantity: int, price: int) -> None:
    """Store an order, and tell stock and billing."""
    with database:  # one transaction
        database.execute(
            "INSERT INTO orders (item, quantity, price) VALUES (?, ?, ?)", (item, quantity, price)
        )
        event = {"kind": "order", "item": item, "quantity": quantity, "price": price}
        _tell(database, ["stock", "billing"], event)


def take_delivery(database: sqlite3.Connection, item: str, quantity: int) -> None:
    """Store a delivery of goods, and tell stock."""
    with database:
        database.execute("INSERT INTO deliveries (item, quantity) VALUES (?, ?)", (item, quantity))
        _tell(database, ["stock"], {"kind": "delivery", "item": item, "quantity": quantity})


def _tell(database: sqlite3.Connection, partitions: list[str], event: dict[str, object]) -> None:
    database.execute(
        "INSERT INTO outbox (partitions, payload) VALUES (?, ?)",
        (json.dumps(partitions), json.dumps(event)),
    )


def main() -> None:
    """Take some orders, and a delivery for every third."""
    parser = argparse.ArgumentParser(description="A shop with an outbox")
    parser.add_argument("--database", required=True)
    parser.add_argument("--orders", type=int, default=100)
    options = parser.parse_args()
    try:
        with closing(open_shop(options.database)) as database:
            for number in range(options.orders):
                item = ("apple", "pear", "plum")[number % 3]
                if number % 3 == 0:
                    take_delivery(database, item, 10)
                place_order(database, item, 1 + number % 4, 5)
    except KeyboardInterrupt:
        sys.exit(130)
    except sqlite3.Error as error:
        sys.stderr.write(f"{options.database}: {error}\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
