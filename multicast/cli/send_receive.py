"""`amcast send` and `amcast receive`: multicast from and to pipes."""

from __future__ import annotations

import base64
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, nullcontext, suppress
from pathlib import Path
from typing import Annotated, Any, Self

import typer

from multicast import history
from multicast.cli.export import export_command
from multicast.cli.lines import Fixed, Line, lines
from multicast.cli.options import (
    WAIT_RANGE,
    Bootstrap,
    DriverName,
    KeysOfSet,
    PartitionerName,
    RecordKey,
    To,
    Topic,
    partitions_of,
    start_of,
)
from multicast.consuming.batches import Batch, Message
from multicast.consuming.consumer import Consumer
from multicast.consuming.cursor import Cursor
from multicast.drivers.protocol import Appended, AppendFailed
from multicast.errors import AmcastError, AppendUnknown, TimedOut
from multicast.producing.producer import Producer
from multicast.producing.receipts import FAILOVER_S, Receipt
from multicast.settings import settings
from multicast.verification.recorder import HistoryWriter, stored_in
from topology.output import Output

app = typer.Typer()
app.command("export")(export_command)
_COMMIT_EVERY_S = 1.0  # after a crash the messages of so many seconds are received again
_PROGRESS_EVERY_S = 0.2  # a human notices a change after some 0.2 s
_REQUEST_S_MAX = 10.0  # `Producer`'s default: a long --timeout waits for outcomes, not for requests
_ORDERED_S_MIN = 0.1  # the order of a message may be known already when the time is over

HistoryFile = Annotated[
    Path | None,
    typer.Option("--history", help="Append a history for 'amcast verify' to this file."),
]
ProducerName = Annotated[
    str, typer.Option("--producer", help="This producer's name in the history.")
]
InstanceName = Annotated[
    str, typer.Option("--instance", help="This process's name in the history.")
]

EndTimeout = Annotated[
    float,
    typer.Option(
        "--timeout", help="With --until-end: seconds to wait for a message.", **WAIT_RANGE
    ),
]


@app.command()
def send(
    file: Annotated[
        Path | None, typer.Argument(help="The file to send; default: standard input.")
    ] = None,
    *,
    to: To = None,
    key: RecordKey = None,
    keys: KeysOfSet = None,
    partitioner: PartitionerName = "murmur2",
    bootstrap: Bootstrap = None,
    topic: Topic = None,
    driver: DriverName = None,
    ordered: Annotated[
        bool, typer.Option("--ordered", help="Also wait until all messages are ordered.")
    ] = False,
    history_file: HistoryFile = None,
    producer_name: ProducerName = "send",
    timeout: Annotated[
        float, typer.Option("--timeout", help="Seconds to wait for outcomes.", **WAIT_RANGE)
    ] = FAILOVER_S,
    output: Annotated[Output, typer.Option("-o", "--output")] = Output.TABLE,
) -> None:
    r"""Multicast lines to sets of partitions.

    With --to, --key or --keys each input line is one message. Else each line is JSON:
    {"to": ["P1", "P3"], "payload": "text"}, with "payload_base64" for bytes, and optionally
    "key" and "headers" (an object of strings). Instead of "to", "keys" may hold a list of keys;
    without both, a message goes where its "key" is.

    Like kafka-console-producer, but a message may go to several partitions, and all consumers
    deliver it at the same place in one order. Exit code 0 if all messages are acknowledged, 1 if
    Kafka refused one, 4 if the outcome of one is unknown.
    """
    chosen = settings(bootstrap=bootstrap, topic=topic, driver=driver)
    fixed = Fixed.of(to=to, key=key, keys=keys)
    receipts: list[Receipt] = []
    problem: AmcastError | None = None
    with (
        nullcontext() if history_file is None else closing(HistoryWriter(history_file)) as writer,
        Producer(
            chosen.bootstrap,
            topic=chosen.topic,
            driver=chosen.driver,
            client=chosen.client,
            block_s=timeout,
            delivery_timeout_s=timeout,
            request_timeout_s=min(timeout, _REQUEST_S_MAX),
            tickets=chosen.tickets,
            partitioner=partitioner,
        ) as producer,
    ):
        try:
            # `extend` keeps the receipts of the messages before a malformed line.
            with _Progress("sent") as progress:
                receipts.extend(
                    _multicast(producer, line) for line in progress.over(lines(file, fixed))
                )
        except AmcastError as error:  # the messages before it still get their outcomes
            problem = error
        unordered = _settle(producer, receipts, timeout, ordered=ordered)
        counts = _counts(receipts)
        unwritten = _write_acknowledgements(writer, producer_name, receipts)
        problem = problem or unordered or unwritten
    _show_counts(len(receipts), counts, output)
    problem = problem or _failure(receipts, counts)
    if problem is not None:
        raise problem


class _Progress:
    """Shows a count on stderr if that is a terminal; a context manager that clears its line."""

    def __init__(self, verb: str) -> None:
        self._verb = verb
        self._shows = sys.stderr.isatty()
        self._shown_at = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown_at:
            sys.stderr.write("\r\x1b[K")

    def over(self, lines: Iterator[Line]) -> Iterator[Line]:
        """Give the lines one by one, and show their count."""
        for count, line in enumerate(lines):
            self.show(count)
            yield line

    def show(self, count: int) -> None:
        """Show a count, a few times a second at most."""
        if self._shows and time.monotonic() - self._shown_at > _PROGRESS_EVERY_S:
            self._shown_at = time.monotonic()
            sys.stderr.write(f"\r{self._verb} {count}")
            sys.stderr.flush()


def _multicast(producer: Producer, line: Line) -> Receipt:
    return producer.multicast(line.payload, to=line.to, key=line.key, headers=line.headers)


def _settle(
    producer: Producer, receipts: list[Receipt], timeout: float, *, ordered: bool
) -> AmcastError | None:
    """Wait for every outcome, and for the order; give why that is not known, instead of raising it.

    The caller writes and prints first which messages are accepted.
    """
    deadline = time.monotonic() + timeout
    with suppress(TimedOut):  # outcomes that are missing then are unknown
        producer.flush(timeout)
    if not ordered:
        return None
    last = {r.log.name: r for r in receipts if isinstance(r.outcome, Appended)}
    try:
        for receipt in last.values():
            receipt.ordered(max(_ORDERED_S_MIN, deadline - time.monotonic()))
    except AmcastError as error:
        return error
    return None


def _counts(receipts: list[Receipt]) -> dict[str, int]:
    counts = {"accepted": 0, "failed": 0, "unknown": 0}
    for receipt in receipts:
        counts[_outcome(receipt)] += 1
    return counts


def _show_counts(sent: int, counts: dict[str, int], output: Output) -> None:
    if output is Output.JSON:
        typer.echo(json.dumps({"schema_version": 1, "sent": sent, **counts}))
    else:
        summary = ", ".join(f"{count} {name}" for name, count in counts.items())
        typer.echo(f"sent {sent}: {summary}", err=True)


def _failure(receipts: list[Receipt], counts: dict[str, int]) -> AmcastError | None:
    """Give the error of the first message that has one; None if all messages are accepted."""
    for receipt in receipts:
        if isinstance(receipt.outcome, AppendFailed):
            return receipt.outcome.error
    if counts["unknown"]:
        return AppendUnknown(f"the outcome of {counts['unknown']} messages is unknown")
    return None


def _outcome(receipt: Receipt) -> str:
    match receipt.outcome:
        case Appended():
            return "accepted"
        case AppendFailed(error) if error.definite:
            return "failed"
        case _:
            return "unknown"


def _write_acknowledgements(
    writer: HistoryWriter | None, producer: str, receipts: list[Receipt]
) -> AmcastError | None:
    """Append the outcomes to the history, if there is one; give the error instead of raising it.

    The caller prints the counts before it raises.
    """
    if writer is None:
        return None
    for receipt in receipts:
        offset = receipt.outcome.offset if isinstance(receipt.outcome, Appended) else None
        name = f"{receipt.log.label}:{offset}" if offset is not None else None
        writer.note(
            history.acknowledgement_line(
                producer=producer, message_id=name, to=receipt.to, outcome=_outcome(receipt)
            )
        )
    try:
        writer.store()
    except AmcastError as error:
        return error
    return None


@app.command()
def receive(
    name: Annotated[
        str | None, typer.Option("--name", "-n", help="A consumer of the plan, like C1.")
    ] = None,
    *,
    interest: Annotated[
        str | None,
        typer.Option("--interest", "-i", help="Instead of a name, the partitions: P1,P3."),
    ] = None,
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
                committed=group is not None,
                driver=chosen.driver,
                client=chosen.client,
            )
        )
        printer = _Printer(consumer, name or interest or "", instance, writer)
        polls: Iterator[Sequence[Batch]] = iter(consumer.poll, None)
        if until_end:
            polls = ([batch] for batch in consumer.until_end(timeout=timeout))
        try:
            with _Progress("received") as progress:
                ended = printer.all(polls, messages_max, progress, commits=group is not None)
        finally:
            printer.leave(commits=group is not None)
        if ended:
            printer.end(late=start == "latest")
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
        self, consumer: Consumer, label: str, instance: str, writer: HistoryWriter | None
    ) -> None:
        self.count = 0
        self._consumer = consumer
        self._label = label
        self._instance = instance
        self._writer = writer
        self._last: Cursor | None = None
        self._stored: Cursor | None = None
        self._committed: Cursor | None = None
        self._committed_at = time.monotonic()
        self._epoch = 0
        self._note_interest(consumer.position.epoch)

    def all(
        self,
        polls: Iterator[Sequence[Batch]],
        messages_max: int | None,
        progress: _Progress,
        *,
        commits: bool,
    ) -> bool:
        """Print until the polls end (True) or `messages_max` are printed (False).

        A poll without messages counts, too: what was printed before it is committed in time.
        """
        for batches in polls:
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
                self._commit_if_due(commits=commits)
                if self.count == messages_max:
                    return False
            self._commit_if_due(commits=commits)
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

    def _commit_if_due(self, *, commits: bool) -> None:
        if commits and time.monotonic() - self._committed_at > _COMMIT_EVERY_S:
            self.commit()

    def leave(self, *, commits: bool) -> None:
        """Flush, and commit what was flushed."""
        try:
            self.store()
        finally:
            if commits:
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
