"""Options that commands share: `--output` of all, and of `amcast topology` what plans are for."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from topology.interests import NUMBER_MAX
from topology.tree import EPOCH_MAX

# A week, for all durations: Kafka's clients count milliseconds in 31 bits, 24 days.
SECONDS_MAX = 7 * 24 * 3600.0
_EFFORT_MAX = 1e6  # a search of a second at effort 1 would take days


class Output(enum.StrEnum):
    """How a command prints its result."""

    TABLE = "table"
    JSON = "json"


OutputOption = Annotated[Output, typer.Option("-o", "--output", help="table or json")]

FromClusterOption = Annotated[
    bool,
    typer.Option("--from-cluster", help="Compare with the running epoch, and use measured rates."),
]
WindowOption = Annotated[
    float,
    typer.Option(
        help="With --from-cluster: seconds to measure the rates for.",
        min=0.1,
        max=SECONDS_MAX,
    ),
]
BootstrapOption = Annotated[
    str | None,
    typer.Option("--bootstrap", "-b", help="With --from-cluster: the brokers' addresses."),
]
ClusterIdOption = Annotated[str, typer.Option(help="ID of the cluster that the plan is for.")]
BaseEpochOption = Annotated[
    int | None, typer.Option(help="Epoch that the plan replaces.", min=0, max=EPOCH_MAX - 1)
]
ShownFromClusterOption = Annotated[
    bool, typer.Option("--from-cluster", help="Show the plan in force, instead of a file.")
]
TopicOption = Annotated[
    str | None,
    typer.Option("--topic", "-t", help="With --from-cluster: the topic [A; AMCAST_TOPIC]"),
]
DotOption = Annotated[
    Path | None, typer.Option("--dot", help="Write a drawing to this file (Graphviz).")
]
ForceOption = Annotated[bool, typer.Option("--force", help="Overwrite existing files.")]

OutOption = Annotated[
    Path | None, typer.Option("--out", help="Write the plan to this file (JSON).")
]
PhiOption = Annotated[
    float,
    typer.Option(
        help="Price of one foreign message, in hops; 0.1: as few hops as can be.",
        min=0,
        max=NUMBER_MAX,
    ),
]
EffortOption = Annotated[
    float,
    typer.Option(
        help="Factor for the steps of large searches: 5 takes five times as long.",
        min=0.01,
        max=_EFFORT_MAX,
    ),
]
ProveOption = Annotated[
    bool,
    typer.Option("--prove", help="Prove a lower bound of the cost of all trees."),
]
AgainstOption = Annotated[
    Path | None,
    typer.Option("--against", help="Compare with this plan, that of the running epoch (JSON)."),
]
TicketsOption = Annotated[
    bool | None,
    typer.Option(
        "--tickets/--no-tickets",
        help="Whether producers write the order of their messages (docs/protocol.md). Default: "
        "as in the running epoch, else yes.",
    ),
]
