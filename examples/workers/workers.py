"""One reader, several workers: the order is kept for each key, and no message is lost.

    python examples/workers/workers.py --bootstrap HOST:PORT --topic A --database done.db \
        --workers 4 --until-end

The reader gives each message to the worker of its key. A worker stores the effect of a message, and
with it the message's ID, so that a message that comes again has no second effect. The reader
commits the cursor up to which *all* messages are done; those behind it come again after a restart.
"""

from __future__ import annotations

import argparse
import queue
import sqlite3
import sys
import threading
import zlib
from collections import deque
from contextlib import closing

from multicast import AmcastError, Consumer, Cursor, Message

_SCHEMA = """
CREATE TABLE IF NOT EXISTS effects (
    step INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE, key BLOB, payload BLOB);
"""
_QUEUE_MAX = 100  # messages that wait for one worker; then the reader waits, too
_POLL_S = 0.2  # a commit for what the workers have done is at most this late


class OpenWork:
    """The messages that are handed to workers, in their order, and which of them are done."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handed: deque[tuple[Message, threading.Event]] = deque()

    def hand(self, message: Message) -> threading.Event:
        """Add the next message; the event is to be set once it is done."""
        done = threading.Event()
        with self._lock:
            self._handed.append((message, done))
        return done

    def finished(self) -> Cursor | None:
        """Give the cursor after the last message before which all are done; None: none is new."""
        cursor = None
        with self._lock:
            while self._handed and self._handed[0][1].is_set():
                cursor = self._handed.popleft()[0].cursor
        return cursor

    def all_done(self) -> bool:
        """Whether nothing is handed out and not done."""
        with self._lock:
            return all(done.is_set() for _, done in self._handed)


class KeyWorker(threading.Thread):
    """Stores the effects of the messages of its keys, one after the other."""

    def __init__(self, path: str) -> None:
        super().__init__(daemon=True)
        self.tasks: queue.Queue[tuple[Message, threading.Event] | None] = queue.Queue(_QUEUE_MAX)
        self.error: Exception | None = None
        self._path = path

    def run(self) -> None:
        """Work until None comes, or until an effect cannot be stored."""
        try:
            with closing(sqlite3.connect(self._path, timeout=30)) as database:
                while (task := self.tasks.get()) is not None:
                    message, done = task
                    with database:
                        database.execute(
                            "INSERT OR IGNORE INTO effects (id, key, payload) VALUES (?, ?, ?)",
                            (str(message.message_id), message.key, message.payload),
                        )
                    done.set()
        except Exception as error:  # noqa: BLE001 - whatever it is: the reader must not wait for us
            self.error = error


def work(consumer: Consumer, workers: list[KeyWorker], *, until_end: bool) -> int:
    """Hand out messages and commit what is done; give how many there were."""
    open_work, count = OpenWork(), 0
    end = consumer.end() if until_end else None
    while True:
        for batch in consumer.poll(_POLL_S, messages_max=_QUEUE_MAX):
            for record in batch.records:
                message = Message(batch, record)
                worker = workers[zlib.crc32(message.key or b"") % len(workers)]
                give(worker, message, open_work.hand(message))
                count += 1
        check(workers)
        is_end = end is not None and consumer.reached(end) and open_work.all_done()
        cursor = open_work.finished()
        if cursor is not None:
            consumer.commit(cursor)
        if is_end:
            return count


def give(worker: KeyWorker, message: Message, done: threading.Event) -> None:
    """Put a message into a worker's queue; wait for room as long as the worker lives."""
    while True:
        try:
            worker.tasks.put((message, done), timeout=1)
        except queue.Full:
            check([worker])
        else:
            return


def check(workers: list[KeyWorker]) -> None:
    """Raise the error that ended a worker: its messages are not done, and come again."""
    for worker in workers:
        if worker.error is not None:
            raise worker.error


def main() -> None:
    """Read until the process is ended, or until the end as it is now."""
    parser = argparse.ArgumentParser(description="One reader that feeds workers by key")
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--database", required=True)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--until-end", action="store_true")
    options = parser.parse_args()
    if options.workers < 1:
        parser.error(f"--workers must be 1 or more: {options.workers}")
    with closing(sqlite3.connect(options.database)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.executescript(_SCHEMA)
    workers = [KeyWorker(options.database) for _ in range(options.workers)]
    for worker in workers:
        worker.start()
    try:
        with Consumer(options.bootstrap, topic=options.topic, name="all") as consumer:
            count = work(consumer, workers, until_end=options.until_end)
        sys.stdout.write(f"{count} messages\n")
    except KeyboardInterrupt:
        return
    except AmcastError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
