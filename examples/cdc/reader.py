"""A reader: copies some tables into SQLite, transaction by transaction.

    python examples/cdc/reader.py --bootstrap HOST:PORT --topic cdc --name shipping \
        --tables orders,lines --database shipping.db --until-end

One transaction of its database holds the changes, the ID of the source's transaction and the
position in the order. So it may be killed at any moment, and a transaction that the relay has sent
twice has one effect.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
from contextlib import closing

from amcast import AmcastError, Consumer, Message

_SCHEMA = """
CREATE TABLE IF NOT EXISTS position (only INTEGER PRIMARY KEY CHECK (only = 1), cursor TEXT);
CREATE TABLE IF NOT EXISTS applied (step INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE);
CREATE TABLE IF NOT EXISTS rows (name TEXT, id TEXT, value TEXT, PRIMARY KEY (name, id));
"""


def position(database: sqlite3.Connection) -> str | None:
    """Give the cursor after the last transaction that was applied; None at first."""
    row = database.execute("SELECT cursor FROM position").fetchone()
    return None if row is None else str(row[0])


def apply(database: sqlite3.Connection, message: Message, tables: set[str]) -> bool:
    """Apply the source's transaction as one of this database; False: a copy, no effect."""
    transaction = json.loads(message.payload or b"null")
    with database:
        database.execute("INSERT OR REPLACE INTO position VALUES (1, ?)", (str(message.cursor),))
        known = "SELECT 1 FROM applied WHERE id = ?"
        if database.execute(known, (transaction["transaction"],)).fetchone():
            return False
        database.execute("INSERT INTO applied (id) VALUES (?)", (transaction["transaction"],))
        for change in transaction["changes"]:
            table, before, after = change["table"], change["before"], change["after"]
            if table not in tables:
                continue
            if change["op"] == "t":
                database.execute("DELETE FROM rows WHERE name = ?", (table,))
            elif after is None:
                database.execute(
                    "DELETE FROM rows WHERE name = ? AND id = ?", (table, before["id"])
                )
            else:
                database.execute(
                    "INSERT OR REPLACE INTO rows VALUES (?, ?, ?)",
                    (table, after["id"], json.dumps(after)),
                )
    return True


def main() -> None:
    """Read until the process is ended, or until the end as it is now."""
    parser = argparse.ArgumentParser(description="Tables from the source's transactions")
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--name", required=True, help="a consumer of the interest file")
    parser.add_argument("--tables", required=True, help="with commas")
    parser.add_argument("--database", required=True)
    parser.add_argument("--until-end", action="store_true")
    options = parser.parse_args()
    tables = set(options.tables.split(","))
    try:
        with closing(sqlite3.connect(options.database)) as database:
            database.executescript(_SCHEMA)
            with Consumer(
                options.bootstrap,
                topic=options.topic,
                name=options.name,
                committed=False,  # the position is in the database, beside the rows
                start=position(database) or "earliest",
            ) as consumer:
                for batch in consumer.until_end() if options.until_end else consumer.batches():
                    for record in batch.records:
                        what = apply(database, Message(batch, record), tables)
                        sys.stdout.write("applied\n" if what else "copy\n")
                        sys.stdout.flush()
    except KeyboardInterrupt:
        return
    except AmcastError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
