"""Options that commands of several rooms share."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

# A week, for all durations: Kafka's clients count milliseconds in 31 bits, 24 days.
SECONDS_MAX = 7 * 24 * 3600.0


class Output(enum.StrEnum):
    """How a command prints its result."""

    TABLE = "table"
    JSON = "json"


OutputOption = Annotated[Output, typer.Option("-o", "--output", help="table or json")]

ForceOption = Annotated[bool, typer.Option("--force", help="Overwrite existing files.")]
