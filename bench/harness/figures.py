"""What the small benchmarks have in common: how they are asked, and the one document they give.

In go named figures; out comes a table or a JSON document that names the command, the machine, the
versions and the state of the source.
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


def parser(
    benchmark: str, description: str | None, *, room: str = "micro"
) -> argparse.ArgumentParser:
    """Make the parser of `python -m bench.…`, with `-o table|json`."""
    facts.at_start()
    made = argparse.ArgumentParser(
        prog=f"python -m bench.{room}.{benchmark}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("-o", "--output", choices=("table", "json"), default="table")
    return made


def document(
    benchmark: str,
    figures: Mapping[str, Any],
    *,
    kafka: str,
    arguments: Sequence[str],
    room: str = "micro",
) -> dict[str, Any]:
    """Put the figures of one run together; `kafka` is the brokers' version, or "none"."""
    module = benchmark.replace("-", "_")
    return {
        "schema_version": SCHEMA_VERSION,
        "benchmark": benchmark,
        "figures": dict(figures),
        "command": shlex.join(["python", "-m", f"bench.{room}.{module}", *arguments]),
        "versions": facts.versions(kafka),
        **facts.at_start(),
    }


def show(told: Mapping[str, Any], output: str) -> None:
    """Write a document as it was asked for."""
    if output == "json":
        typer.echo(json.dumps(told, indent=1))
        return
    for name, value in told["figures"].items():
        typer.echo(f"{name:32} {value:,.4g}" if value < 1000 else f"{name:32} {value:,.0f}")


def progress(what: str) -> None:
    """Say what is being done."""
    sys.stderr.write(f"{what} …\n")
