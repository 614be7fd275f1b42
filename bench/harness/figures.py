"""The command line and the result document of the small benchmarks.

A benchmark passes its named figures; `document` adds the command, the machine, the versions and the
state of the source, and `show` prints a table or JSON.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import typer

from bench.harness import facts

SCHEMA_VERSION = 1


def parser(module: str, description: str | None) -> argparse.ArgumentParser:
    """Make the parser of `python -m MODULE`, with `-o table|json`."""
    facts.at_start()
    made = argparse.ArgumentParser(
        prog=f"python -m {module}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("-o", "--output", choices=("table", "json"), default="table")
    return made


def document(
    module: str, figures: Mapping[str, Any], *, kafka: str, arguments: Sequence[str]
) -> dict[str, Any]:
    """Make the document of one run of a module; `kafka` is the brokers' version, or "none"."""
    return {
        "schema_version": SCHEMA_VERSION,
        "benchmark": module.rpartition(".")[2].replace("_", "-"),
        "figures": dict(figures),
        "command": shlex.join(["python", "-m", module, *arguments]),
        "versions": facts.versions(kafka),
        **facts.at_start(),
    }


def show(document: Mapping[str, Any], output: str) -> None:
    """Print a document as "json" or "table"."""
    if output == "json":
        typer.echo(json.dumps(document, indent=1))
        return
    for name, value in document["figures"].items():
        values = value if isinstance(value, list) else [value]
        typer.echo(f"{name:32} {' '.join(map(spelled, values))}")


def spelled(value: float) -> str:
    """Write four significant digits; from 1,000 on, all digits before the point."""
    return f"{value:,.4g}" if value < 1000 else f"{value:,.0f}"


def progress(what: str) -> None:
    """Report the current step on stderr."""
    sys.stderr.write(f"{what} …\n")
