"""The command `amcast`: its nouns and verbs come from the rooms, through entry points.

An entry point "noun" or "noun.part" of the group `amcast` names a typer app. The parts of one noun
are merged; the noun "_" holds the verbs without a noun. So no room imports another one only for the
command line.

Exit codes: 0 ok, 1 failed, 2 usage, 3 a violation of the order, 4 cluster unreachable or time-out,
5 conflict, 6 changes to make (only with --detailed-exitcode), 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points, version

import typer

from multicast.errors import AmcastError, UsageError

WITHOUT_NOUN = "_"
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
    """Hold the options of `amcast` itself."""


def build(arguments: Sequence[str]) -> typer.Typer:
    """Build the command: with all verbs for help, else only with those that the call needs.

    A room is imported only if its verbs are needed: importing all rooms takes a second.
    """
    root = typer.Typer(
        help=HELP, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None
    )
    root.callback()(_root)
    nouns: dict[str, list[EntryPoint]] = {}
    for entry in sorted(entry_points(group="amcast"), key=lambda entry: entry.name):
        nouns.setdefault(entry.name.partition(".")[0], []).append(entry)
    first = arguments[0] if arguments else ""
    if first in nouns and first != WITHOUT_NOUN:
        _add(root, first, nouns[first], first=first)
        return root
    verbs = nouns.pop(WITHOUT_NOUN, [])
    if not first.startswith("-"):
        # Load first the entry point that is named after the verb, then those of this room.
        for entry in sorted(
            verbs,
            key=lambda entry: (
                entry.name != f"{WITHOUT_NOUN}.{first}",
                not entry.value.startswith("multicast."),
            ),
        ):
            app = _load(entry, used=False)
            if app is not None and first in _verbs(app):
                root.registered_commands += app.registered_commands
                return root
    _add(root, WITHOUT_NOUN, verbs, first=first)
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
    if noun == WITHOUT_NOUN:
        for app in apps:
            root.registered_commands += app.registered_commands
    elif apps:
        for other in apps[1:]:
            apps[0].registered_commands += other.registered_commands
        root.add_typer(apps[0], name=noun)


def _load(entry: EntryPoint, *, used: bool) -> typer.Typer | None:
    """Load the verbs of an entry point; None if they need a package that is not installed.

    If the call uses these verbs, raises `UsageError` instead, which names what to install.
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
    """Run `amcast`. An error prints one sentence on stderr and ends with its exit code."""
    try:
        build(sys.argv[1:])(prog_name="amcast")
    except AmcastError as error:
        sys.stderr.write(f"amcast: {error}\n")
        _flush_output()
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader of our output has closed it, as in `amcast receive | head`.
        _drop_output()
        sys.exit(0)


def _flush_output() -> None:
    """Flush stdout; drop what cannot be written, or Python reports an error when it exits."""
    try:
        sys.stdout.flush()
    except OSError:
        _drop_output()


def _drop_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
