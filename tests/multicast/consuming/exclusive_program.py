"""Takes effects into a database as one of several exclusive consumers, until SIGTERM.

python -m tests.multicast.consuming.exclusive_program BOOTSTRAP TOPIC DATABASE

Each effect is taken in the order of delivery, under a fence that is not below the database's.
"""

import os
import signal
import sqlite3
import sys
import threading
from contextlib import closing
from time import monotonic

from multicast import AmcastError, Consumer

GROUP = "exclusive"
SESSION_S = 10.0
TABLES = """
PRAGMA journal_mode = WAL;
CREATE TABLE IF NOT EXISTS effects (place INTEGER PRIMARY KEY, message TEXT UNIQUE);
CREATE TABLE IF NOT EXISTS fences (fence INTEGER);
CREATE TABLE IF NOT EXISTS events (kind TEXT, fence INTEGER, began REAL, process INTEGER);
"""


def opened(file):
    database = sqlite3.connect(file, timeout=120, isolation_level=None)
    database.execute("PRAGMA synchronous = OFF")
    return database


def take(database, message):
    """Take an effect, unless a later fence has been seen; give whether that was so."""
    database.execute("BEGIN IMMEDIATE")
    (latest,) = database.execute("SELECT max(fence) FROM fences").fetchone()
    if message.fence < (latest or 0):
        database.execute("ROLLBACK")
        return False
    if message.fence > (latest or 0):
        database.execute("INSERT INTO fences VALUES (?)", (message.fence,))
    named = (str(message.message_id),)
    database.execute("INSERT OR IGNORE INTO effects (message) VALUES (?)", named)
    database.execute("COMMIT")
    return True


def main(bootstrap, topic, file):
    ends = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ends.set())
    known = {"topic": topic, "name": "C1", "group": GROUP, "exclusive": True}
    settings = {"session.timeout.ms": str(int(1000 * SESSION_S))}
    with closing(opened(file)) as database, Consumer(bootstrap, client=settings, **known) as member:

        def note(kind, fence, began):
            event = kind, fence, began, os.getpid()
            database.execute("INSERT INTO events VALUES (?, ?, ?, ?)", event)

        fence = 0

        def turn():
            nonlocal fence
            batches = member.poll(0.2, messages_max=20)
            if fence != member.fence:
                fence = member.fence
                note("active", fence, monotonic())
            for batch in batches:
                note("delivered", batch.fence, monotonic())
                for record in batch.records:
                    if not take(database, batch.alone(record)):
                        note("refused", batch.fence, monotonic())
            if batches:
                began = monotonic()
                member.commit()
                note("committed", fence, began)

        while not ends.is_set():
            try:
                turn()
            except AmcastError as error:  # no broker answers, say
                if not error.retriable:
                    raise


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except AmcastError as error:  # fenced, or no broker answered while it began
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)
