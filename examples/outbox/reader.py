"""A reader: keeps stock and revenue, each message applied exactly once, in the agreed order.

    python examples/outbox/reader.py --bootstrap HOST:PORT --topic shop --interest stock,billing \
        --database books.db --until-end

One transaction of its database holds three things: the effect of a message, the reader's position
in the order (the cursor), and the number of the last row from each source and destination set. So
a reader that is killed continues after its last effect, and a row that the relay stored twice has
one effect.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
from contextlib import closing

from multicast import AmcastError, Consumer, Message

_SCHEMA = """
CREATE TABLE IF NOT EXISTS position (only INTEGER PRIMARY KEY CHECK (only = 1), cursor TEXT);
CREATE TABLE IF NOT EXISTS seen (source TEXT, destinations TEXT, number INT,
                                 PRIMARY KEY (source, destinations));
CREATE TABLE IF NOT EXISTS stock (item TEXT PRIMARY KEY, quantity INT);
CREATE TABLE IF NOT EXISTS revenue (item TEXT PRIMARY KEY, amount INT);
CREATE TABLE IF NOT EXISTS applied (step INTEGER PRIMARY KEY, source TEXT, number INT);
"""


def open_books(path: str) -> sqlite3.Connection:
    """Open the reader's database; make its tables if they are missing."""
    database = sqlite3.connect(path, timeout=30)
    database.executescript(_SCHEMA)
    return database


def position(database: sqlite3.Connection) -> str | None:
    """Give the cursor after the last message that was applied; None at first."""
    row = database.execute("SELECT cursor FROM position").fetchone()
    return None if row is None else str(row[0])


def handle(database: sqlite3.Connection, message: Message, interest: set[str]) -> bool:
    """Apply a message and store the position, in one transaction; False: a copy, no effect."""
    headers = dict(message.headers)
    source, number = headers["source"].decode(), int(headers["number"])
    destinations = "+".join(message.to)
    with database:
        database.execute(
            "INSERT OR REPLACE INTO position (only, cursor) VALUES (1, ?)", (str(message.cursor),)
        )
        row = database.execute(
            "SELECT number FROM seen WHERE source = ? AND destinations = ?", (source, destinations)
        ).fetchone()
        if row is not None and number <= row[0]:
            return False
        database.execute(
            "INSERT OR REPLACE INTO seen VALUES (?, ?, ?)", (source, destinations, number)
        )
        database.execute("INSERT INTO applied (source, number) VALUES (?, ?)", (source, number))
        apply(database, json.loads(message.payload or b"null"), interest)
    return True


def apply(database: sqlite3.Connection, event: dict[str, object], interest: set[str]) -> None:
    """Change stock and revenue, as far as this reader is interested in them."""
    match event:
        case {"kind": "order", "item": item, "quantity": int(quantity), "price": int(price)}:
            changes = {"stock": ("stock", -quantity), "billing": ("revenue", quantity * price)}
        case {"kind": "delivery", "item": item, "quantity": int(quantity)}:
            changes = {"stock": ("stock", quantity)}
        case _:
            raise ValueError(f"{event} is neither an order nor a delivery")
    for partition in sorted(interest & changes.keys()):
        table, amount = changes[partition]
        column = "quantity" if table == "stock" else "amount"
        database.execute(  # the names come from the two lines above
            f"INSERT INTO {table} VALUES (?, ?) "  # noqa: S608
            f"ON CONFLICT DO UPDATE SET {column} = {column} + excluded.{column}",
            (item, amount),
        )


def main() -> None:
    """Read until the process is ended, or until the end as it is now."""
    parser = argparse.ArgumentParser(description="Stock and revenue from the shop's messages")
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--interest", default="stock,billing", help="partitions, with commas")
    parser.add_argument("--database", required=True)
    parser.add_argument("--until-end", action="store_true")
    options = parser.parse_args()
    interest = set(options.interest.split(","))
    try:
        with (
            closing(open_books(options.database)) as database,
            Consumer(
                options.bootstrap,
                topic=options.topic,
                interest=interest,
                committed=False,  # the position is in the database, beside the effects
                start=position(database) or "earliest",
            ) as consumer,
        ):
            for batch in consumer.until_end() if options.until_end else consumer.batches():
                for record in batch.records:
                    message = Message(batch, record)
                    what = "applied" if handle(database, message, interest) else "dropped"
                    number = dict(message.headers)["number"].decode()
                    sys.stdout.write(f"{what} {number}\n")
                    sys.stdout.flush()
            rows = database.execute("SELECT * FROM stock ORDER BY item").fetchall()
            sys.stdout.write(f"stock {json.dumps(dict(rows))}\n")
    except KeyboardInterrupt:
        return
    except AmcastError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
