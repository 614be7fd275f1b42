"""The option `--output` of every command: a table for people, JSON for programs."""

from __future__ import annotations

import enum
from typing import Annotated

import typer


class Output(enum.StrEnum):
    """How a command prints its result."""

    TABLE = "table"
    JSON = "json"


OutputOption = Annotated[Output, typer.Option("-o", "--output", help="table or json")]
