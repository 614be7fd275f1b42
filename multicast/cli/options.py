"""The options that every command on a cluster has: its brokers, the topic and the driver."""

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
