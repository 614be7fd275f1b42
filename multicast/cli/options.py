"""Options of commands on a cluster: brokers, topic and driver; where a message goes."""

from __future__ import annotations

from typing import Annotated

import typer

Bootstrap = Annotated[
    str | None, typer.Option("--bootstrap", "-b", help="Brokers, host:port,… [AMCAST_BOOTSTRAP]")
]
Topic = Annotated[
    str | None, typer.Option("--topic", "-t", help="The topic to multicast on [A; AMCAST_TOPIC]")
]
DriverName = Annotated[
    str | None, typer.Option("--driver", help="librdkafka or kafka-python [AMCAST_DRIVER]")
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
