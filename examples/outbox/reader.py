"""A reader: keeps stock and revenue, each message applied exactly once, in the agreed order.

    python examples/outbox/reader.py --bootstrap HOST:PORT --topic outbox --interest stock,billing \
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

from amcast import AmcastError, Consumer, Message, UsageError

_DIGITS_MAX = 18  # of a row's number: SQLite's are below 2^63
_SCHEMA = """
CREATE TABLE IF NOT EXISTS position (only INTEGER PRIMARY KEY CHECK (only = 1), cursor TEXT,
                                     interest TEXT);
CREATE TABLE IF NOT EXISTS seen (source TEXT, destinations TEXT, number INT,
                                 PRIMARY KEY (source, destinations));
CREATE TABLE IF NOT EXISTS stock (item TEXT PRIMARY KEY, quantity INT);
CREATE TABLE IF NOT EXISTS revenue (item TEXT PRIMARY KEY, amount INT);
CREATE TABLE IF NOT EXISTS applied (step INTEGER PRIMARY KEY, source TEXT, number INT);
"""
_HAS_INTEREST = "SELECT 1 FROM pragma_table_info('position') WHERE name = 'interest'"


def open_books(path: str) -> sqlite3.Connection:
    """Open the reader's database; make its tables if they are missing."""
    database = sqlite3.connect(path, timeout=30)
    database.executescript(_SCHEMA)
    return database


class UnreadableRow(AmcastError):
    """A relay's message that this reader cannot apply; to pass over it would lose a row."""


class TakenOver(AmcastError):
    """Another reader writes to the same books: nothing was applied."""


def position(database: sqlite3.Connection, interest: set[str]) -> str | None:
    """Give the cursor after the last message that was applied; None at first.

    Raises `UsageError` for the books of another interest: they would lack what this one reads.
    """
    if not database.execute(_HAS_INTEREST).fetchone():
        raise UsageError("an earlier version made the books; name another file")
    row = database.execute("SELECT cursor, interest FROM position").fetchone()
    if row is not None and row[1] != name_of(interest):
        raise UsageError(f"the books are those of {row[1]}; name another file")
    return None if row is None else str(row[0])


def name_of(interest: set[str]) -> str:
    """Name an interest in the database."""
    return ",".join(sorted(interest))


def row_of(message: Message) -> tuple[str, int] | None:
    """Give the source and the number of a relay's row; None: no relay has sent the message."""
    headers = dict(message.headers)
    source, number = headers.get("source"), headers.get("number")
    if not source or not number or not number.isdigit() or len(number) > _DIGITS_MAX:
        return None
    return source.decode(errors="backslashreplace"), int(number)


def handle(
    database: sqlite3.Connection, message: Message, interest: set[str], before: str | None
) -> str:
    """Apply a message and store the position, in one transaction; say what was done.

    A copy, and a message that no relay has sent, have no effect. `before` is the position that this
    reader knows: raises `TakenOver` if another reader has changed it.
    """
    row = row_of(message)
    with database:
        changed = database.execute(
            "INSERT INTO position VALUES (1, ?, ?) ON CONFLICT DO UPDATE "
            "SET cursor = excluded.cursor WHERE cursor IS ?",
            (str(message.cursor), name_of(interest), before),
        )
        if not changed.rowcount:
            raise TakenOver("another reader has applied messages to these books")
        if row is None:
            return f"skipped {message.message_id}: no relay has sent it"
        is_new = apply_once(database, message, row, interest)
    return f"{'applied' if is_new else 'dropped'} {row[1]}"


def apply_once(
    database: sqlite3.Connection, message: Message, row: tuple[str, int], interest: set[str]
) -> bool:
    """Apply a row; False: it is a copy. Raises `UnreadableRow`."""
    source, number = row
    destinations = "+".join(message.to)
    last = database.execute(
        "SELECT number FROM seen WHERE source = ? AND destinations = ?", (source, destinations)
    ).fetchone()
    if last is not None and number <= last[0]:
        return False
    database.execute("INSERT OR REPLACE INTO seen VALUES (?, ?, ?)", (source, destinations, number))
    database.execute("INSERT INTO applied (source, number) VALUES (?, ?)", (source, number))
    try:
        apply(database, json.loads(message.payload or b"null"), interest)
    except (ValueError, RecursionError, OverflowError) as error:
        raise UnreadableRow(
            f"{message.message_id}, row {number} of {source}, cannot be applied; a newer relay may "
            "have sent it: upgrade this reader, and start it again"
        ) from error
    return True


def apply(database: sqlite3.Connection, event: dict[str, object], interest: set[str]) -> None:
    """Change stock and revenue, as far as this reader is interested in them."""
    match event:
        case {"kind": "order", "item": str(item), "quantity": int(quantity), "price": int(price)}:
            changes = {"stock": ("stock", -quantity), "billing": ("revenue", quantity * price)}
        case {"kind": "delivery", "item": str(item), "quantity": int(quantity)}:
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
    parser.add_argument("--exclusive", action="store_true", help="stand by while another one reads")
    options = parser.parse_args()
    interest = set(options.interest.split(","))
    before: str | None = None

    def start() -> str:
        """Give the position in the database: an exclusive reader asks when its turn has come."""
        nonlocal before
        before = position(database, interest)
        return before or "earliest"

    try:
        with (
            closing(open_books(options.database)) as database,
            Consumer(
                options.bootstrap,
                topic=options.topic,
                interest=interest,
                committed=False,  # the position is in the database, beside the effects
                start=start,
                exclusive=options.exclusive,
            ) as consumer,
        ):
            for batch in consumer.until_end() if options.until_end else consumer.batches():
                for record in batch.records:
                    message = Message(batch, record)
                    done = handle(database, message, interest, before)
                    before = str(message.cursor)
                    sys.stdout.write(f"{done}\n")
                    sys.stdout.flush()
            rows = database.execute("SELECT * FROM stock ORDER BY item").fetchall()
            sys.stdout.write(f"stock {json.dumps(dict(rows))}\n")
    except KeyboardInterrupt:
        sys.exit(130)
    except sqlite3.Error as error:
        sys.stderr.write(f"{options.database}: {error}\n")
        sys.exit(1)
    except AmcastError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
