"""The command `amcast`: its nouns and verbs come from the rooms, through entry points.

An entry point "noun" or "noun.part" of the group `amcast` names a typer app. The parts of one noun
are merged; the noun "_" holds the verbs without a noun. So no room imports another one only for the
command line.

Exit codes: 0 ok, 1 failed, 2 usage, 3 a violation of the order, 4 cluster unreachable or time-out,
5 conflict, 6 changes to make (only with --detailed-exitcode), 130 interrupted.
"""

from __future__ import annotations

import errno
import os
import select
import sys
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points

from multicast.errors import AmcastError, UsageError
from multicast.installed import Shadowed, is_ours, refuse_shadowed, version
from topology import MissingExtra

try:
    import typer
except ModuleNotFoundError as error:
    raise MissingExtra(error.name, "cli") from error


WITHOUT_NOUN = "_"
CHECKOUT_ONLY = "bench"
# Our packages with verbs, and the extra that brings what the verbs need.
EXTRA_OF = {
    "multicast": "cli",
    "topology": "planner",
    "collectors": "collectors",
    "ordering_osn": "osn",
}
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
HELP = "Genuine atomic multicast on Apache Kafka: one message to a set of partitions, one order."


class NotInstalled(UsageError):
    """The verb needs a package that is not installed, or that a user's file hides."""


def _version(show: bool) -> None:  # noqa: FBT001 - typer's signature
    if show:
        typer.echo(version())
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

    A room is imported only if its verbs are needed: importing all rooms takes a second. Raises
    `UsageError` if the called verb needs something that is not installed.
    """
    root = typer.Typer(
        help=HELP, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None
    )
    root.callback()(_root)
    nouns: dict[str, list[EntryPoint]] = {}
    for entry in sorted(entry_points(group="amcast"), key=lambda entry: entry.name):
        nouns.setdefault(entry.name.partition(".")[0], []).append(entry)
    first, second = (*arguments, "", "")[:2]
    if first in nouns and first != WITHOUT_NOUN:
        _add(root, first, nouns[first], called=second)
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
            try:
                app = _load(entry, first)
            except NotInstalled:
                if entry.name == f"{WITHOUT_NOUN}.{first}":
                    raise
                continue
            if first in _verbs(app):
                root.registered_commands += app.registered_commands
                return root
    _add(root, WITHOUT_NOUN, verbs)
    for noun, entries in nouns.items():
        _add(root, noun, entries)
    return root


def _verbs(app: typer.Typer) -> list[str]:
    return [
        str(command.name or getattr(command.callback, "__name__", ""))
        for command in app.registered_commands
    ]


def _add(
    root: typer.Typer, noun: str, entries: Sequence[EntryPoint], *, called: str | None = None
) -> None:
    """Add the verbs of a noun that are installed.

    `called` is the verb of the call, None if the call uses another noun. Raises `NotInstalled` if
    no entry point loads that has it, but one that may have it needs what is not installed.
    """
    apps: list[typer.Typer] = []
    failures: dict[str, NotInstalled] = {}
    for entry in entries:
        try:
            apps.append(_load(entry, f"{noun} {called or ''}".strip()))
        except NotInstalled as error:
            failures[entry.name] = error
    if called is not None and failures:
        known = [verb for app in apps for verb in _verbs(app)]
        asks_for_help = not called or called.startswith("-")
        if not apps or not (asks_for_help or called in known):
            raise failures.get(f"{noun}.{called}") or next(iter(failures.values()))
    if noun == WITHOUT_NOUN:
        for app in apps:
            root.registered_commands += app.registered_commands
    elif apps:
        for other in apps[1:]:
            apps[0].registered_commands += other.registered_commands
        root.add_typer(apps[0], name=noun)


def _load(entry: EntryPoint, words: str) -> typer.Typer:
    """Load the verbs of an entry point; `words` name the call in the text of the error.

    Raises `NotInstalled` if they need a package that is not installed, or if a user's file hides
    one of our packages.
    """
    room = entry.module.partition(".")[0]
    if room == CHECKOUT_ONLY and not is_ours(room):
        raise NotInstalled(
            f"'amcast {words}' is not part of the installed package; it runs from a checkout of "
            f"amcast's sources, after 'make .venv/ready' there"
        )
    try:
        if room in EXTRA_OF:
            refuse_shadowed(room)
        app: typer.Typer = entry.load()
    except Shadowed as error:
        raise NotInstalled(str(error)) from error
    except ModuleNotFoundError as error:
        extra = error.extra if isinstance(error, MissingExtra) else EXTRA_OF.get(room, "all")
        raise NotInstalled(
            f"'amcast {words}' needs the package {error.name}, which is not installed; "
            f"run: pip install 'amcast[{extra}]'"
        ) from error
    return app


def main() -> None:
    """Run `amcast`. An error prints one sentence on stderr and ends with its exit code."""
    _open_closed()
    try:
        _run(sys.argv[1:])
    except AmcastError as error:
        sys.stderr.write(f"amcast: {error}\n")
        _flush_output()
        sys.exit(error.exit_code)
    except MissingExtra as error:
        sys.stderr.write(f"amcast: {error}\n")
        sys.exit(UsageError.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError as error:
        if not _is_output_closed():
            sys.stderr.write(f"amcast: {error.strerror}\n")
            sys.exit(AmcastError.exit_code)
        # The reader of our output has closed it, as in `amcast receive | head`.
        _drop_output()
        sys.exit(0)
    except OSError as error:
        # A file that a command was given, or a full disk; anything else is a defect.
        if error.filename is None and error.errno not in _NO_ROOM:
            raise
        where = "" if error.filename is None else f"{os.fspath(error.filename)}: "
        sys.stderr.write(f"amcast: {where}{error.strerror}\n")
        _flush_output()
        sys.exit(AmcastError.exit_code if error.filename is None else UsageError.exit_code)


def _run(arguments: Sequence[str]) -> None:
    """Run the command; raises what it raises, or `SystemExit` with its exit code."""
    try:
        build(arguments)(prog_name="amcast")
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):
            raise ended.__context__ from None  # for which typer exits with 1, and says nothing
        try:
            sys.stdout.flush()  # a full disk is found here, and not by Python after our end
        except BrokenPipeError:
            _drop_output()
        raise


def _open_closed() -> None:
    """Give the streams that the caller has closed (`amcast … >&-`) to /dev/null."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115


def _is_output_closed() -> bool:
    """Whether nobody can read our output any more."""
    output = select.poll()
    output.register(sys.stdout.fileno(), 0)  # errors are always reported
    return any(what & (select.POLLERR | select.POLLHUP) for _, what in output.poll(0))


def _flush_output() -> None:
    """Flush stdout; drop what cannot be written, or Python reports an error when it exits."""
    try:
        sys.stdout.flush()
    except OSError:
        _drop_output()


def _drop_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
