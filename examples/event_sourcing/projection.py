"""A projection: the state as SQLite tables, always that of one position in the order.

    python examples/event_sourcing/projection.py --bootstrap HOST:PORT --topic A --name both \
        --database both.db --until-end

The tables and the position (the cursor) change in one transaction, so the projection may be killed
at any moment: it continues where its tables are. To rebuild it, delete the file. With `--up-to` it
stops at a cursor: so the state of any position can be looked at later.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
from contextlib import closing

from events import ShopState

from multicast import AmcastError, Consumer, Message

_SCHEMA = """
CREATE TABLE IF NOT EXISTS position (only INTEGER PRIMARY KEY CHECK (only = 1), cursor TEXT);
CREATE TABLE IF NOT EXISTS stock (item TEXT PRIMARY KEY, quantity INT CHECK (quantity >= 0));
CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, state TEXT);
"""


class Projection:
    """The tables of a database, as far as they concern an interest."""

    def __init__(self, database: sqlite3.Connection, interest: set[str]) -> None:
        self._database = database
        self._interest = interest
        database.executescript(_SCHEMA)

    def position(self) -> str | None:
        """Give the cursor of the tables; None: nothing is applied."""
        row = self._database.execute("SELECT cursor FROM position").fetchone()
        return None if row is None else str(row[0])

    def apply(self, message: Message) -> None:
        """Apply an event and note the position, in one transaction."""
        event = json.loads(message.payload or b"null")
        item, order = str(event.get("item")), str(event.get("order"))
        with self._database:
            state = ShopState(
                dict(self._rows("SELECT item, quantity FROM stock WHERE item = ?", item)),
                dict(self._rows("SELECT id, state FROM orders WHERE id = ?", order)),
            )
            state.apply(event)
            if "stock" in self._interest:
                self._database.executemany(
                    "INSERT OR REPLACE INTO stock VALUES (?, ?)", state.stock.items()
                )
            if "orders" in self._interest:
                self._database.executemany(
                    "INSERT OR REPLACE INTO orders VALUES (?, ?)", state.orders.items()
                )
            self._database.execute(
                "INSERT OR REPLACE INTO position VALUES (1, ?)", (str(message.cursor),)
            )

    def _rows(self, query: str, key: str) -> list[tuple[str, int]]:
        return self._database.execute(query, (key,)).fetchall()


def main() -> None:
    """Project until the process is ended, until the end as it is now, or up to a cursor."""
    parser = argparse.ArgumentParser(description="Tables from the events")
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--name", required=True, help="sales, warehouse or both")
    parser.add_argument("--database", required=True)
    parser.add_argument("--until-end", action="store_true")
    parser.add_argument("--up-to", default="", help="a cursor")
    options = parser.parse_args()
    interest = {"sales": {"orders"}, "warehouse": {"stock"}}.get(options.name, {"orders", "stock"})
    try:
        with closing(sqlite3.connect(options.database)) as database:
            projection = Projection(database, interest)
            with Consumer(
                options.bootstrap,
                topic=options.topic,
                name=options.name,
                committed=False,  # the position is in the database, beside the tables
                start=projection.position() or "earliest",
            ) as consumer:
                for batch in consumer.until_end() if options.until_end else consumer.batches():
                    for record in batch.records:
                        message = Message(batch, record)
                        projection.apply(message)
                        sys.stdout.write(f"{message.cursor}\n")
                        sys.stdout.flush()
                        if str(message.cursor) == options.up_to:
                            return
    except KeyboardInterrupt:
        return
    except AmcastError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
