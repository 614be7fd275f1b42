"""`amcast send`: multicasts lines from a file or a pipe."""

from __future__ import annotations

import json
import os
import time
from contextlib import closing, nullcontext, suppress
from pathlib import Path
from typing import Annotated

import typer

from multicast import history
from multicast.cli.lines import Fixed, lines
from multicast.cli.options import (
    WAIT_RANGE,
    Bootstrap,
    DriverName,
    Fifo,
    HistoryFile,
    KeysOfSet,
    PartitionerName,
    RecordKey,
    Through,
    To,
    Topic,
    partitions_of,
)
from multicast.cli.progress import CountShown
from multicast.drivers.protocol import Appended, AppendFailed
from multicast.errors import AmcastError, AppendUnknown, TimedOut
from multicast.producing.producer import Producer
from multicast.producing.receipts import FAILOVER_S, Receipt
from multicast.settings import settings
from multicast.verification.recorder import HistoryWriter
from topology.output import Output, OutputOption

app = typer.Typer()
_REQUEST_S_MAX = 10.0  # `Producer`'s default: a long --timeout waits for outcomes, not for requests
_ORDERED_S_MIN = 0.1  # the order of a message may be known already when the time is over

ProducerName = Annotated[
    str, typer.Option("--producer", help="This producer's name in the history.")
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
    fifo: Fifo = False,
    through: Through = None,
    history_file: HistoryFile = None,
    producer_name: ProducerName = "send",
    timeout: Annotated[
        float, typer.Option("--timeout", help="Seconds to wait for outcomes.", **WAIT_RANGE)
    ] = FAILOVER_S,
    output: OutputOption = Output.TABLE,
) -> None:
    r"""Multicast lines to sets of partitions.

    With --to, --key or --keys each input line is one message. Else each line is JSON:
    {"to": ["P1", "P3"], "payload": "text"}, with "payload_base64" for bytes, and optionally
    "key" and "headers" (an object of strings). Instead of "to", "keys" may hold a list of keys;
    without both, a message goes where its "key" is.

    Like kafka-console-producer, but a message may go to several partitions, at one place in the
    order of all. Exit code 0: all are acknowledged, 1: Kafka refused one, 4: one is unknown.
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
            fifo=fifo,
            through=None if through is None else partitions_of(through),
        ) as producer,
    ):
        try:
            # `extend` keeps the receipts of the messages before a malformed line.
            with CountShown("sent") as progress:
                receipts.extend(
                    producer.multicast(line.payload, to=line.to, key=line.key, headers=line.headers)
                    for line in progress.over(lines(file, fixed))
                )
        except AmcastError as error:  # the messages before it still get their outcomes
            problem = error
        unordered = _settle(producer, receipts, timeout, ordered=ordered)
        counts = _counts(receipts)
        unwritten = _write_acknowledgements(writer, producer_name, receipts, fifo=fifo)
        problem = problem or unordered or unwritten
    _show_counts(len(receipts), counts, output)
    if problem := problem or _failure(receipts, counts):
        raise problem


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
    outcomes = [_outcome(receipt) for receipt in receipts]
    return {name: outcomes.count(name) for name in ("accepted", "failed", "unknown")}


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
    writer: HistoryWriter | None, producer: str, receipts: list[Receipt], *, fifo: bool
) -> AmcastError | None:
    """Append the outcomes to the history, if there is one; give the error instead of raising it.

    The caller prints the counts before it raises.
    """
    if writer is None:
        return None
    if fifo:  # a producer that begins anew is another one, with an order of its own
        producer = f"{producer}/{os.urandom(4).hex()}"
    for place, receipt in enumerate(receipts):
        offset = receipt.outcome.offset if isinstance(receipt.outcome, Appended) else None
        name = f"{receipt.log.label}:{offset}" if offset is not None else None
        writer.note(
            history.acknowledgement_line(
                producer=producer,
                message_id=name,
                to=receipt.to,
                outcome=_outcome(receipt),
                sent=place if fifo else None,
            )
        )
    try:
        writer.store()
    except AmcastError as error:
        return error
    return None
