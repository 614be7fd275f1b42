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
    """Put the command together: all verbs for help, else only those of the noun that is used.

    A room is imported only where its verbs are used: to import all of them takes a second.
    """
    root = typer.Typer(
        help=HELP, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None
    )
    root.callback()(_root)
    nouns: dict[str, list[EntryPoint]] = {}
    for entry in sorted(entry_points(group="amcast"), key=lambda entry: entry.name):
        nouns.setdefault(entry.name.partition(".")[0], []).append(entry)
    first = arguments[0] if arguments else ""
    if first in nouns and first != ALONE:
        _add(root, first, nouns[first], first=first)
        return root
    alone = nouns.pop(ALONE, [])
    if not first.startswith("-"):
        # What may hold the verb comes first: one of its name, then this room's own.
        for entry in sorted(
            alone,
            key=lambda entry: (
                entry.name != f"{ALONE}.{first}",
                not entry.value.startswith("multicast."),
            ),
        ):
            app = _load(entry, used=False)
            if app is not None and first in _verbs(app):
                root.registered_commands += app.registered_commands
                return root
    _add(root, ALONE, alone, first=first)
    for noun, entries in nouns.items():
        _add(root, noun, entries, first=first)
    return root


def _verbs(app: typer.Typer) -> list[str]:
    return [
        str(command.name or getattr(command.callback, "__name__", ""))
        for command in app.registered_commands
    ]


def _add(root: typer.Typer, noun: str, entries: Sequence[EntryPoint], *, first: str) -> None:
    apps = [app for entry in entries if (app := _load(entry, used=first == noun)) is not None]
    if noun == ALONE:
        for app in apps:
            root.registered_commands += app.registered_commands
    elif apps:
        for other in apps[1:]:
            apps[0].registered_commands += other.registered_commands
        root.add_typer(apps[0], name=noun)


def _load(entry: EntryPoint, *, used: bool) -> typer.Typer | None:
    """Load the verbs of a room; None where they need a package that is not installed.

    Raises `UsageError` with what to install where just these verbs are used.
    """
    try:
        app: typer.Typer = entry.load()
    except ModuleNotFoundError as error:
        if used:
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
