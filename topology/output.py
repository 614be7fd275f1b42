"""The option `--output` of all commands: a table for people, or JSON for programs."""

from __future__ import annotations

import enum
from typing import Annotated

import typer


class Output(enum.StrEnum):
    """How a command prints its result."""

    TABLE = "table"
    JSON = "json"


OutputOption = Annotated[Output, typer.Option("-o", "--output", help="table or json")]
