"""Options of commands on a cluster: brokers, topic and driver; where a message goes."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from multicast.consuming.cursor import Cursor
from multicast.errors import UsageError
from topology.output import SECONDS_MAX

Bootstrap = Annotated[
    str | None, typer.Option("--bootstrap", "-b", help="Brokers, host:port,… [AMCAST_BOOTSTRAP]")
]
Topic = Annotated[
    str | None, typer.Option("--topic", "-t", help="The topic to multicast on [A; AMCAST_TOPIC]")
]
Interest = Annotated[
    str | None, typer.Option("--interest", "-i", help="Instead of a name, the partitions: P1,P3.")
]
DriverName = Annotated[
    str | None,
    typer.Option("--driver", help="Kafka's client: librdkafka or kafka-python [AMCAST_DRIVER]"),
]
To = Annotated[str | None, typer.Option("--to", help="P1,P3: each line is a payload for this set.")]
RecordKey = Annotated[
    str | None,
    typer.Option("--key", help="The record's key; without a set, each line goes where it is."),
]
KeysOfSet = Annotated[
    str | None,
    typer.Option("--keys", help="a,b: each line is a payload for the partitions of these keys."),
]
PartitionerName = Annotated[
    str, typer.Option("--partitioner", help="murmur2, or crc32 (confluent-kafka's default).")
]
Fifo = Annotated[
    bool, typer.Option("--fifo", help="Consumers deliver the messages in the order of the lines.")
]
Through = Annotated[
    str | None,
    typer.Option("--through", help="P1,P2,P3: store all messages in the log of this declared set."),
]
HistoryFile = Annotated[
    Path | None,
    typer.Option(
        "--history", readable=False, help="Append a history for 'amcast verify' to this file."
    ),
]

WAIT_RANGE: dict[str, Any] = {"min": 0, "max": SECONDS_MAX}  # of an option: seconds of a wait
EndTimeout = Annotated[
    float,
    typer.Option(
        "--timeout", help="With --until-end: seconds to wait for a message.", **WAIT_RANGE
    ),
]


def partitions_of(text: str) -> list[str]:
    """Read partitions, "P1,P3" or "P1, P3", in the order given; unknown names are left in."""
    return [name.strip() for name in text.split(",")]


def start_of(text: str) -> Literal["earliest", "latest"] | Cursor | datetime:
    """Read the text of --from; raises `UsageError`."""
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    if "/" in text:
        return Cursor.parse(text)
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError as error:
        raise UsageError(
            f"{text!r} is not earliest, latest, a cursor or a time like 2026-01-31T12:00"
        ) from error
