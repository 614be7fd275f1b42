"""`amcast osn inspect|prune`: commands on a node's ledger files.

They read and write the folder itself and connect to no node.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from multicast.errors import AmcastError, UsageError
from ordering_osn.chain.state import state_from
from ordering_osn.cli.inspection import describe, open_blocks, verify
from ordering_osn.ledger.errors import LedgerDamaged
from ordering_osn.ledger.ledger import Ledger
from ordering_osn.ledger.windows import save_windows
from ordering_osn.node.joining import genesis_missing, joined, ledger_folder
from ordering_osn.protos import Block
from topology.output import Output, OutputOption
from topology.report import table

app = typer.Typer()
# A terminal shows about as many lines. `-o json` prints all; every damaged block makes a problem.
_PROBLEMS_PRINTED_MAX = 50
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
    Path,
    typer.Option(
        "--folder", envvar="AMCAST_OSN_FOLDER", help="The node's folder, which holds its chains."
    ),
]
Channel = Annotated[str, typer.Option("--channel", "-c", help="The channel's ID.")]


class Unsound(AmcastError):
    """A ledger does not hold a sound chain: the text names the first problem."""


@app.command()
def inspect(
    path: Annotated[
        Path | None, typer.Argument(help="A ledger's folder or a .block file, instead of --folder.")
    ] = None,
    *,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--folder", envvar="AMCAST_OSN_FOLDER", help="A node's folder: check its chains."
        ),
    ] = None,
    channel: Annotated[
        str | None,
        typer.Option("--channel", "-c", help="Check only this channel; default: all of --folder."),
    ] = None,
    block: Annotated[
        int | None, typer.Option("--block", help="Print this block as JSON; no check.")
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Check all blocks of a node: checksums, hashes, signatures and configs.

    Changes nothing; the node may run. Where a block is not what it must be, stderr names the block
    and the reason, and the exit code is 1.
    """
    ledgers = _ledgers(path, folder, channel)
    if block is not None:
        if len(ledgers) != 1:
            raise UsageError("--block needs one ledger: name it with --channel")
        typer.echo(json.dumps(describe(open_blocks(ledgers[0][1]).read(block))))
        return
    rows = []
    problems = []
    for name, ledger_path in ledgers:
        row, ledger_problems = _checked(name, ledger_path)
        missing = genesis_missing(folder, name) if folder is not None and path is None else None
        if missing is not None:
            row["sound"] = False
            ledger_problems.append(missing)
        rows.append(row)
        problems += [f"{name}: {problem}" for problem in ledger_problems]
    if output is Output.JSON:
        document = {"schema_version": 1, "channels": rows, "problems": problems}
        typer.echo(json.dumps(document))
    else:
        table(
            [column.replace("_", " ") for column in _COLUMNS],
            [[str(row[column]) for column in _COLUMNS] for row in rows],
        )
        for problem in problems[:_PROBLEMS_PRINTED_MAX]:
            typer.echo(problem, err=True)
    if problems:
        raise Unsound(f"{len(problems)} problems in {len(rows)} ledgers; the first: {problems[0]}")


def _ledgers(path: Path | None, folder: Path | None, channel: str | None) -> list[tuple[str, Path]]:
    """Return the name and the path of each ledger to check."""
    if path is not None:
        return [(path.name, path)]
    if folder is None:
        raise UsageError("give --folder, or the path of a ledger's folder or of a .block file")
    names = joined(folder)
    if channel is not None and channel not in names:
        raise UsageError(f"{folder} has no channel {channel}")
    if not names:
        raise UsageError(f"{folder} has no channels; add one with 'amcast osn join'")
    return [(name, ledger_folder(folder, name)) for name in names if channel in (None, name)]


@app.command()
def prune(
    *,
    folder: Folder,
    channel: Channel,
    below: Annotated[int, typer.Option("--below", help="The number of the oldest block to keep.")],
) -> None:
    """Remove a chain's oldest blocks. Stop the node first.

    The config block in force at the new oldest block stays. So do the newest 100,000 transactions:
    a restarted node reads them to refuse replays. What it needs of bundles in the removed blocks is
    written beside the others.
    """
    if not ledger_folder(folder, channel).is_dir():
        raise UsageError(f"{folder} holds no blocks of channel {channel}")
    with Ledger.open(ledger_folder(folder, channel)) as ledger:
        _refuse_too_few(ledger, below)
        save_windows(ledger, below)
        ledger.prune(below)
        typer.echo(f"the oldest block of {channel} is now {ledger.base}", err=True)


def _refuse_too_few(ledger: Ledger, below: int) -> None:
    """Raise `UsageError` where a node could not start with the blocks from `below` on."""
    kept = range(ledger.height - 1, max(below, ledger.base) - 1, -1)
    try:
        if below > ledger.base and kept:
            state_from(Block.FromString(ledger.read(number)) for number in kept)
    except ValueError as error:
        raise UsageError(
            f"{ledger.folder} was not pruned: {error}, or the node could not start; "
            f"give a smaller --below"
        ) from error


def _checked(name: str, path: Path) -> tuple[dict[str, Any], list[str]]:
    """Check a whole ledger; returns its row of the table, and its problems."""
    row: dict[str, Any] = dict.fromkeys(_COLUMNS, 0)
    newest: list[Any] = []

    def seen(block: Any) -> None:
        row["transactions"] += len(block.data.data)
        newest[:] = [block]

    try:
        ledger = open_blocks(path)
        problems = list(verify(ledger, seen=seen))
    except (LedgerDamaged, UsageError) as error:
        return {**row, "channel": name, "sound": False}, [str(error)]
    row |= {"channel": name, "base": ledger.base, "height": ledger.height, "sound": not problems}
    if newest:
        metadata = describe(newest[0].SerializeToString())["metadata"]
        row |= {"last_config": metadata["last_config"], "position": metadata["position"]}
    return row, problems
