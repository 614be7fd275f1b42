"""The relay: multicasts the rows of the outbox in the order of their numbers, and marks them.

    python examples/outbox/relay.py --bootstrap HOST:PORT --topic outbox --database shop.db

It may be killed at any moment, and two may run by mistake. A row is marked after Kafka has stored
it, so a row that was stored but not yet marked is stored again: the reader drops that copy.

One row after the other: the next row is sent only once Kafka holds the one before. So, in the log
of each destination set, the *first* copies are in the order of their numbers, and a reader may
drop whatever does not exceed the last number that it has seen from there.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
import threading
from contextlib import closing

from shop import open_shop, source_of

from amcast import AmcastError, Producer

_ROWS_MAX = 500  # rows in memory
_PAUSE_S = 0.1  # between two looks at an outbox that was empty


def relay(database: sqlite3.Connection, producer: Producer) -> int:
    """Multicast the rows that are not marked yet; return how many there were."""
    source = source_of(database).encode()
    rows = database.execute(
        "SELECT id, partitions, payload FROM outbox WHERE sent = 0 ORDER BY id LIMIT ?",
        (_ROWS_MAX,),
    ).fetchall()
    for number, partitions, payload in rows:
        headers = {"source": source, "number": str(number).encode()}
        receipt = producer.multicast(
            payload.encode(), to=set(json.loads(partitions)), headers=headers
        )
        receipt.accepted()  # an error ends the relay before any later row is sent
        with database:
            database.execute("UPDATE outbox SET sent = 1 WHERE id = ?", (number,))
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()
    return len(rows)


def main() -> None:
    """Relay until the process is ended, or until the outbox is empty."""
    parser = argparse.ArgumentParser(description="From an outbox to Kafka")
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--database", required=True)
    parser.add_argument("--until-empty", action="store_true")
    options = parser.parse_args()
    pause = threading.Event()
    try:
        with (
            closing(open_shop(options.database)) as database,
            Producer(options.bootstrap, topic=options.topic) as producer,
        ):
            while relay(database, producer) or not options.until_empty:
                pause.wait(0 if options.until_empty else _PAUSE_S)
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
