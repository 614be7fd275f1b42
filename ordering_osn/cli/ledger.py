"""`amcast osn inspect|prune|snapshot|restore`: a node's ledgers, without the node."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from multicast.errors import AmcastError, UsageError
from ordering_osn.cli.inspection import describe, opened, verify
from ordering_osn.ledger.ledger import Ledger, LedgerDamaged
from ordering_osn.ledger.snapshots import restore as restore_ledger
from ordering_osn.ledger.snapshots import snapshot as take_snapshot
from ordering_osn.node.joining import joined, ledger_folder
from topology.output import Output, OutputOption

app = typer.Typer()
_TOLD_MAX = 50
_COLUMNS = (
    "channel",
    "base",
    "height",
    "transactions",
    "last_config",
    "position",
    "sound",
)


Folder = Annotated[
    Path, typer.Option("--folder", envvar="AMCAST_OSN_FOLDER", help="Where the node's chains are.")
]
Channel = Annotated[str, typer.Option("--channel", "-c", help="The channel.")]


class Unsound(AmcastError):
    """A ledger's blocks are not the chain that they say they are."""


@app.command()
def inspect(
    path: Annotated[
        Path | None, typer.Argument(help="A ledger's folder or a .block file, without a node.")
    ] = None,
    *,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--folder", envvar="AMCAST_OSN_FOLDER", help="Or a node's folder: its chains."
        ),
    ] = None,
    channel: Annotated[
        str | None, typer.Option("--channel", "-c", help="Only this channel; default: all.")
    ] = None,
    block: Annotated[
        int | None, typer.Option("--block", help="Print this block, as JSON, and check nothing.")
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Check a node's blocks, each with its checksum, hashes, signatures and config.

    Changes nothing; the node may run. Ends with 1 where a block is not what it must be, and says
    on stderr which and why.
    """
    ledgers = _ledgers(path, folder, channel)
    if block is not None:
        if len(ledgers) != 1:
            raise UsageError("--block needs --channel")
        typer.echo(json.dumps(describe(opened(ledgers[0][1]).read(block))))
        return
    rows = []
    problems = []
    for name, place in ledgers:
        row, found = _checked(name, place)
        rows.append(row)
        problems += [f"{name}: {problem}" for problem in found]
    if output is Output.JSON:
        document = {"schema_version": 1, "channels": rows, "problems": problems}
        typer.echo(json.dumps(document))
    else:
        _print(rows)
        for problem in problems[:_TOLD_MAX]:
            typer.echo(problem, err=True)
    if problems:
        raise Unsound(f"{len(problems)} problems in {len(rows)} ledgers; first: {problems[0]}")


def _ledgers(path: Path | None, folder: Path | None, channel: str | None) -> list[tuple[str, Path]]:
    """Give the ledgers that are asked for, by name."""
    if path is not None:
        return [(path.name, path)]
    if folder is None:
        raise UsageError("give a node's --folder, or the path of a ledger or a block")
    names = joined(folder)
    if channel is not None and channel not in names:
        raise UsageError(f"{folder} has no channel {channel}")
    if not names:
        raise UsageError(f"{folder} has no channels; 'amcast osn join' puts one there")
    return [(name, ledger_folder(folder, name)) for name in names if channel in (None, name)]


@app.command()
def prune(
    *,
    folder: Folder,
    channel: Channel,
    below: Annotated[int, typer.Option("--below", help="The oldest block to keep.")],
) -> None:
    """Forget a chain's oldest blocks, but the config block in force; the node must not run.

    A node starts again from its newest 100,000 transactions: keep as many.
    """
    if not ledger_folder(folder, channel).is_dir():
        raise UsageError(f"{folder} holds no blocks of channel {channel}")
    with Ledger.open(ledger_folder(folder, channel)) as ledger:
        ledger.prune(below)
        typer.echo(f"{channel} begins with block {ledger.base}", err=True)


@app.command()
def snapshot(
    *,
    folder: Folder,
    channel: Channel,
    base: Annotated[int, typer.Option("--base", help="The snapshot's oldest block.")],
    to: Annotated[Path, typer.Option("--to", help="A folder that is not there yet.")],
) -> None:
    """Copy a chain's newest blocks for another node ('amcast osn restore'); the node may run."""
    take_snapshot(Ledger.open(ledger_folder(folder, channel), read_only=True), to, base=base)


@app.command()
def restore(
    *,
    folder: Folder,
    channel: Channel,
    taken: Annotated[Path, typer.Option("--from", help="The snapshot.")],
) -> None:
    """Give a node that joined a channel, and has not run it, the blocks of a snapshot."""
    if channel not in joined(folder):
        raise UsageError(f"{folder} has no channel {channel}; join it first")
    restore_ledger(taken, ledger_folder(folder, channel))


def _checked(name: str, place: Path) -> tuple[dict[str, Any], list[str]]:
    """Read a whole ledger; give its row and what is wrong with it."""
    row: dict[str, Any] = dict.fromkeys(_COLUMNS, 0)
    newest: list[Any] = []

    def seen(block: Any) -> None:
        row["transactions"] += len(block.data.data)
        newest[:] = [block]

    try:
        ledger = opened(place)
        problems = list(verify(ledger, seen=seen))
    except (LedgerDamaged, UsageError) as error:
        return {**row, "channel": name, "sound": False}, [str(error)]
    row |= {"channel": name, "base": ledger.base, "height": ledger.height, "sound": not problems}
    if newest:
        metadata = describe(newest[0].SerializeToString())["metadata"]
        row |= {"last_config": metadata["last_config"], "position": metadata["position"]}
    return row, problems


def _print(rows: list[dict[str, Any]]) -> None:
    table = Table()
    for column in _COLUMNS:
        aligned: Any = "left" if column in ("channel", "sound") else "right"
        table.add_column(column.replace("_", " "), justify=aligned)
    for row in rows:
        table.add_row(*[str(row[column]) for column in _COLUMNS])
    Console().print(table)
