"""`amcast receive`: prints the messages of an interest, in the agreed order, to a pipe."""

from __future__ import annotations

import base64
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Annotated, Any

import typer

from multicast import history
from multicast.cli.options import (
    Bootstrap,
    DriverName,
    EndTimeout,
    HistoryFile,
    Interest,
    Topic,
    partitions_of,
    start_of,
)
from multicast.cli.progress import CountShown
from multicast.consuming.batches import Batch, Message
from multicast.consuming.consumer import Consumer
from multicast.consuming.cursor import Cursor
from multicast.producing.receipts import FAILOVER_S
from multicast.settings import settings
from multicast.verification.recorder import HistoryWriter, stored_in

app = typer.Typer()
_COMMIT_EVERY_S = 1.0  # after a crash the messages of so many seconds are received again

InstanceName = Annotated[
    str, typer.Option("--instance", help="This process's name in the history.")
]


@app.command()
def receive(
    name: Annotated[
        str | None, typer.Option("--name", "-n", help="A consumer of the plan, like C1.")
    ] = None,
    *,
    interest: Interest = None,
    bootstrap: Bootstrap = None,
    topic: Topic = None,
    driver: DriverName = None,
    start: Annotated[
        str, typer.Option("--from", help="earliest, latest, a cursor, or a time (ISO 8601).")
    ] = "earliest",
    group: Annotated[
        str | None,
        typer.Option("--group", "-g", help="Resume from this group's position, and commit to it."),
    ] = None,
    exclusive: Annotated[
        bool, typer.Option("--exclusive", help="Stand by while another one of the group receives.")
    ] = False,
    until_end: Annotated[
        bool, typer.Option("--until-end", "-e", help="Stop at the present end of the logs.")
    ] = False,
    messages_max: Annotated[
        int | None, typer.Option("--max", "-c", min=1, help="Stop after this number of messages.")
    ] = None,
    instance: InstanceName = "a",
    history_file: HistoryFile = None,
    timeout: EndTimeout = FAILOVER_S,
) -> None:
    """Print the messages of an interest, in the agreed order, as JSON lines.

    Each line has "message_id", "to", "payload" (or "payload_base64" if it is not UTF-8), "key",
    (and "key_base64" if that is not UTF-8), "headers" (of a name that occurs several times, a list
    of the values), "timestamp_ms" and "cursor", the position after the message, for --from. Like
    kafka-console-consumer, but over several partitions, in an order common to all consumers.
    """
    chosen = settings(bootstrap=bootstrap, topic=topic, driver=driver)
    commits = exclusive or group is not None
    with ExitStack() as opened:
        writer = None
        if history_file is not None:
            writer = HistoryWriter(history_file)
            opened.callback(writer.close)
        consumer = opened.enter_context(
            Consumer(
                chosen.bootstrap,
                topic=chosen.topic,
                name=name,
                interest=None if interest is None else partitions_of(interest),
                group=group,
                start=start_of(start),
                committed=commits,
                exclusive=exclusive,
                driver=chosen.driver,
                client=chosen.client,
            )
        )
        label = name or interest or ""
        printer = _Printer(consumer, label, instance, writer, commits=commits)
        polls: Iterator[Sequence[Batch]] = iter(consumer.poll, None)
        if until_end:
            polls = ([batch] for batch in consumer.until_end(timeout=timeout))
        try:
            with CountShown("received") as progress:
                ended = printer.all(polls, messages_max, progress)
        finally:
            printer.leave()
        if ended:
            printer.end(late=start == "latest" or bool(consumer.omitted))
    sys.stderr.write(f"received {printer.count}{_entries_of(consumer)}\n")


def _entries_of(consumer: Consumer) -> str:
    """Say how many order entries were read for the messages; nothing for a single log."""
    entries = consumer.entries()
    if entries.genuineness is None:
        return ""
    read, dropped = sum(entries.read.values()), sum(entries.dropped.values())
    return f"; {read} order entries read, {dropped} dropped ({entries.genuineness:.1%} genuine)"


class _Printer:
    """Prints a consumer's messages, and writes its history."""

    def __init__(
        self,
        consumer: Consumer,
        label: str,
        instance: str,
        writer: HistoryWriter | None,
        *,
        commits: bool,
    ) -> None:
        self.count = 0
        self._commits = commits
        self._consumer = consumer
        self._label = label
        self._instance = instance
        self._writer = writer
        self._last: Cursor | None = None
        self._stored: Cursor | None = None
        self._committed: Cursor | None = None
        self._committed_at = time.monotonic()
        self._epoch = self._fence = 0
        self._note_interest(consumer.position.epoch)

    def all(
        self, polls: Iterator[Sequence[Batch]], messages_max: int | None, progress: CountShown
    ) -> bool:
        """Print until the polls end (True) or `messages_max` are printed (False).

        A poll without messages counts, too: what was printed before it is committed in time.
        """
        for batches in polls:
            if self._fence != self._consumer.fence:
                self._fence = self._consumer.fence
                sys.stderr.write(f"active, fence {self._fence}\n")
            for batch in batches:
                if batch.epoch != self._epoch:
                    self._note_interest(batch.epoch)
                for record in batch.records:
                    if self.count == messages_max:
                        return False
                    self._print(Message(batch, record))
                self.store()
                if not sys.stdout.isatty():
                    progress.show(self.count)
                self._commit_if_due()
                if self.count == messages_max:
                    return False
            self._commit_if_due()
        return True

    def store(self) -> None:
        """Flush stdout and the history; raises `AmcastError` if that fails."""
        with stored_in("standard output"):
            sys.stdout.flush()
        if self._writer is not None:
            self._writer.store()
        self._stored = self._last

    def commit(self) -> None:
        """Commit the position after the last flushed message; later ones are delivered again."""
        if self._stored is not None and self._stored != self._committed:
            self._consumer.commit(self._stored)
            self._committed = self._stored
        self._committed_at = time.monotonic()

    def _commit_if_due(self) -> None:
        if self._commits and time.monotonic() - self._committed_at > _COMMIT_EVERY_S:
            self.commit()

    def leave(self) -> None:
        """Flush, and commit what was flushed."""
        try:
            self.store()
        finally:
            if self._commits:
                self.commit()

    def end(self, *, late: bool) -> None:
        """Write the end line of the history."""
        self._note(history.end_line(consumer=self._label, instance=self._instance, late=late))
        self.store()

    def _print(self, message: Message) -> None:
        with stored_in("standard output"):
            sys.stdout.write(json.dumps(_document(message)) + "\n")
        self._note(
            history.delivery_line(
                consumer=self._label,
                instance=self._instance,
                sequence=self.count,
                message_id=str(message.message_id),
                to=message.to,
                cursor=str(message.cursor),
            )
        )
        self.count += 1
        self._last = message.cursor

    def _note_interest(self, epoch: int) -> None:
        """Write the consumer's interest in this epoch to the history."""
        self._epoch = epoch
        self._note(
            history.interest_line(
                consumer=self._label,
                interest=self._consumer.interest,
                epoch=epoch if epoch > 1 else None,
            )
        )

    def _note(self, line: str) -> None:
        if self._writer is not None:
            self._writer.note(line)


def _headers(message: Message) -> dict[str, Any]:
    values: dict[str, list[str | None]] = {}
    for name, value in message.headers:
        text = None if value is None else value.decode(errors="replace")
        values.setdefault(name, []).append(text)
    return {name: found[0] if len(found) == 1 else found for name, found in values.items()}


def _document(message: Message) -> dict[str, Any]:
    document: dict[str, Any] = {"message_id": str(message.message_id), "to": list(message.to)}
    payload = message.payload
    if payload is None:
        document["payload"] = None
    else:
        try:
            document["payload"] = payload.decode()
        except UnicodeDecodeError:
            document["payload_base64"] = base64.b64encode(payload).decode()
    key = message.key
    document["key"] = None if key is None else key.decode(errors="replace")
    if key is not None and document["key"].encode() != key:
        document["key_base64"] = base64.b64encode(key).decode()
    document["headers"] = _headers(message)
    document["timestamp_ms"] = message.timestamp_ms
    document["cursor"] = str(message.cursor)
    return document
