"""The command `amcast`: one grammar, whose nouns the rooms register through entry points.

An entry point "noun" or "noun.part" of the group `amcast` names a typer app; the parts of one noun
are merged, and the noun "_" holds the verbs that stand alone. So no room imports another for the
sake of the command line.

Exit codes: 0 ok, 1 failed, 2 usage, 3 an ordering violation, 4 cluster unreachable or time-out,
5 conflict, 6 changes to make (only with --detailed-exitcode), 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points, version

import typer

from multicast.errors import AmcastError, UsageError

ALONE = "_"
HELP = "Genuine atomic multicast on Apache Kafka: one message to a set of partitions, one order."


def _version(show: bool) -> None:  # noqa: FBT001 - typer's signature
    if show:
        typer.echo(version("amcast"))
        raise typer.Exit


def _root(
    *,
    show_version: bool = typer.Option(
        False, "--version", help="Print the version.", callback=_version, is_eager=True
    ),
) -> None:
    """Carry the options that belong to no noun."""


def build(arguments: Sequence[str]) -> typer.Typer:
    """Put the command together: all nouns for help, else only the one that is asked for."""
    root = typer.Typer(
        help=HELP, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None
    )
    root.callback()(_root)
    found: dict[str, list[EntryPoint]] = {}
    for entry in sorted(entry_points(group="amcast"), key=lambda entry: entry.name):
        found.setdefault(entry.name.partition(".")[0], []).append(entry)
    asked = arguments[0] if arguments else ""
    for noun, entries in found.items():
        if noun not in (ALONE, asked) and asked in found:
            continue
        apps = [app for entry in entries if (app := _load(entry, asked=asked == noun)) is not None]
        if noun == ALONE:
            for app in apps:
                root.registered_commands += app.registered_commands
        elif apps:
            first, *others = apps
            for other in others:
                first.registered_commands += other.registered_commands
            root.add_typer(first, name=noun)
    return root


def _load(entry: EntryPoint, *, asked: bool) -> typer.Typer | None:
    """Load the verbs of a room; None where they need a package that is not installed.

    Raises `UsageError` with what to install where just these verbs are asked for.
    """
    try:
        app: typer.Typer = entry.load()
    except ModuleNotFoundError as error:
        if asked:
            noun = entry.name.partition(".")[0]
            raise UsageError(
                f"'amcast {noun}' needs the package {error.name}, which is not installed; "
                f"install amcast[{noun}]"
            ) from error
        return None
    return app


def main() -> None:
    """Run `amcast`; every error ends in one sentence on stderr and its exit code."""
    try:
        build(sys.argv[1:])(prog_name="amcast")
    except AmcastError as error:
        sys.stderr.write(f"amcast: {error}\n")
        _give_up_output()
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # Whoever read our output has enough of it, as in `amcast receive | head`.
        _drop_output()
        sys.exit(0)


def _give_up_output() -> None:
    """Write out what was printed; what cannot be is dropped, or Python complains at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        _drop_output()


def _drop_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
