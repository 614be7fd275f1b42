"""A projection: the state as SQLite tables, always that of one position in the order.

    python examples/event_sourcing/projection.py --bootstrap HOST:PORT --topic event_sourcing \
        --name both --database both.db --until-end

The tables and the position (the cursor) change in one transaction, so the projection may be killed
at any moment: it continues where its tables are. To rebuild it, delete the file. With `--up-to` it
stops at a cursor: so the state of any position can be looked at later.
"""

from __future__ import annotations

import argparse
import sqlite3
import sys
from contextlib import closing

from events import ShopState, event_of

from amcast import AmcastError, Consumer, Cursor, Message, UsageError

_SCHEMA = """
CREATE TABLE IF NOT EXISTS position (only INTEGER PRIMARY KEY CHECK (only = 1), cursor TEXT,
                                     name TEXT);
CREATE TABLE IF NOT EXISTS stock (item TEXT PRIMARY KEY, quantity INT CHECK (quantity >= 0));
CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, state TEXT);
"""
_HAS_NAME = "SELECT 1 FROM pragma_table_info('position') WHERE name = 'name'"


class Projection:
    """The tables of a database, as far as they concern the interest of a consumer."""

    def __init__(self, database: sqlite3.Connection, name: str) -> None:
        self._database = database
        self._name = name
        self._interest = {"sales": {"orders"}, "warehouse": {"stock"}}.get(
            name, {"orders", "stock"}
        )
        database.executescript(_SCHEMA)
        if not database.execute(_HAS_NAME).fetchone():
            raise UsageError("an earlier version made the tables; name another file")
        self.position = self._stored()  # the cursor of the tables; None: nothing is applied

    def apply(self, message: Message) -> None:
        """Apply an event and note the position, in one transaction."""
        event = event_of(message)
        with self._database:
            self._database.execute("BEGIN IMMEDIATE")
            if self._stored() != self.position:
                raise AmcastError("another projection fills these tables; end one of both")
            if event is not None:
                try:
                    self._change(event)
                except (sqlite3.IntegrityError, OverflowError, UnicodeError) as error:
                    raise AmcastError(
                        f"the tables cannot take {message.message_id}: {error}"
                    ) from error
            position = str(message.cursor)
            self._database.execute(
                "INSERT OR REPLACE INTO position VALUES (1, ?, ?)", (position, self._name)
            )
        self.position = position

    def _change(self, event: dict[str, str | int]) -> None:
        item, order = str(event.get("item")), str(event.get("order"))
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

    def _stored(self) -> str | None:
        row = self._database.execute("SELECT cursor, name FROM position").fetchone()
        if row is not None and row[1] != self._name:
            raise UsageError(f"the tables are those of {row[1]}; name another file")
        return None if row is None else str(row[0])

    def _rows(self, query: str, key: str) -> list[tuple[str, int]]:
        return self._database.execute(query, (key,)).fetchall()


def is_past(cursor: Cursor, up_to: Cursor) -> bool:
    """Whether a cursor is after another one; raises `UsageError` if they cannot be compared.

    Cursors of one source grow from message to message.
    """
    if cursor.epoch == up_to.epoch and cursor.source != up_to.source:
        raise UsageError(f"{up_to} is no cursor of this projection; its cursors are like {cursor}")
    both = [(each.epoch, each.record, each.run, each.next) for each in (cursor, up_to)]
    return both[0] > both[1]


def project(projection: Projection, consumer: Consumer, options: argparse.Namespace) -> None:
    """Apply what the consumer delivers, and print each position."""
    up_to = Cursor.parse(options.up_to) if options.up_to else None
    if projection.position is not None and up_to is not None:
        here = Cursor.parse(projection.position)
        if is_past(here, up_to):
            raise UsageError(f"the tables are at {here} already; name another file")
        if here == up_to:
            return
    for batch in consumer.until_end() if options.until_end else consumer.batches():
        for record in batch.records:
            message = Message(batch, record)
            if up_to is not None and is_past(message.cursor, up_to):
                return
            projection.apply(message)
            sys.stdout.write(f"{message.cursor}\n")
            sys.stdout.flush()
            if message.cursor == up_to:
                return


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
    try:
        with closing(sqlite3.connect(options.database)) as database:
            projection = Projection(database, options.name)
            with Consumer(
                options.bootstrap,
                topic=options.topic,
                name=options.name,
                committed=False,  # the position is in the database, beside the tables
                start=projection.position or "earliest",
            ) as consumer:
                project(projection, consumer, options)
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
