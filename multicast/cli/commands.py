"""What verbs `amcast` has, and the command that is built of them.

In: the words of a call. Out: a typer app that has the called verb; for help, completion and a word
that is no verb it has the lines of verbs.toml alone, since importing all rooms takes a second.

No room imports another one for the command line: the table names a module, which is imported when
one of its verbs is called. A test compares the lines with the verbs' own help.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from multicast.cli.installed import is_ours, version
from multicast.errors import UsageError
from topology import MissingExtra

try:
    import typer
    from typer.core import TyperGroup
except ModuleNotFoundError as error:
    raise MissingExtra(error.name, "cli") from error


HELP = "Genuine atomic multicast on Apache Kafka: one message to a set of partitions, one order."
WITHOUT_NOUN = ""
_SENTENCE_MAX = 1000  # characters: any sentence is shorter, and the table breaks it into lines
CHECKOUT_ONLY = "bench"
# Our packages with verbs, and the extra that brings what the verbs need.
EXTRA_OF = {
    "multicast": "cli",
    "topology": "planner",
    "collectors": "collectors",
    "ordering_osn": "osn",
}


class NotInstalled(UsageError):
    """The verb needs a package that is not installed."""


class Part(NamedTuple):
    """Verbs of one noun that one module has as its typer `app`, each with its first sentence."""

    module: str
    verbs: Mapping[str, str]
    examples: Mapping[str, str] = MappingProxyType({})
    noun: str = WITHOUT_NOUN
    needs: Sequence[str] = ()  # packages of other extras than `cli`

    @property
    def room(self) -> str:
        """The package of ours that the verbs belong to."""
        return self.module.partition(".")[0]

    def load(self, words: str) -> typer.Typer:
        """Import the verbs; `words` name the call in the text of the error.

        Raises `NotInstalled` if they need a package that is not installed.
        """
        if self.room == CHECKOUT_ONLY and not is_ours(self.room):
            raise NotInstalled(
                f"'amcast {words}' is not part of the installed package; it runs from a checkout "
                f"of amcast's sources, after 'make .venv/ready' there"
            )
        try:
            app: typer.Typer = import_module(self.module).app
        except ModuleNotFoundError as error:
            of_room = EXTRA_OF.get(self.room, "all")
            extra = error.extra if isinstance(error, MissingExtra) else of_room
            raise NotInstalled(
                f"'amcast {words}' needs the package {error.name}, which is not installed; "
                f"run: pip install 'amcast[{extra}]'"
            ) from error
        for command in app.registered_commands:
            name = str(command.name or getattr(command.callback, "__name__", ""))
            if name in self.examples:
                command.epilog = f"Example: {self.examples[name]}"
        return app

    def is_installed(self) -> bool:
        """Whether `load` would find all that it needs; imports nothing."""
        return is_ours(self.room) and all(map(_is_found, self.needs))


_TABLE = tomllib.loads(Path(__file__).with_name("verbs.toml").read_text(encoding="utf-8"))
NOUNS: dict[str, str] = _TABLE["nouns"]
GROUPS: dict[str, list[str]] = _TABLE["groups"]  # of what `amcast --help` lists
PARTS = [Part(**part) for part in _TABLE["parts"]]


def _listed() -> None:
    """Stand for a verb in the table."""
    raise AssertionError("a verb was called that `build` has not loaded")


def _is_found(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except (ModuleNotFoundError, ValueError):  # ValueError: what was tried in vain before
        return False


class _Group(TyperGroup):
    """Verbs after options that are all flags: False, not None, which typer has pydantic check.

    To load pydantic takes as long as to load typer.
    """

    def get_params(self, ctx: Any) -> Any:
        """Give the options, `--help` among them."""
        options = super().get_params(ctx)
        for option in options:
            option.default = option.default or False
        return options

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write each verb with its whole first sentence; those of `amcast` in groups."""
        groups = {"Commands": list(self.commands)} if ctx.parent else GROUPS
        for title, names in groups.items():
            rows = [
                (name, self.commands[name].get_short_help_str(_SENTENCE_MAX))
                for name in names
                if name in self.commands
            ]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


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
    """Build the command: with the verbs of the called one's part, or with the lines of all.

    Raises `NotInstalled` if the called verb, or every verb of the called noun, cannot be imported.
    """
    root = typer.Typer(
        help=HELP, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None
    )
    root.callback(cls=_Group)(_root)
    first, second = (*(word for word in _words(arguments) if word != "--"), "", "")[:2]
    noun, verb = (first, second) if first in NOUNS else (WITHOUT_NOUN, first)
    parts = [part for part in PARTS if part.noun == noun]
    called = next((part for part in parts if verb in part.verbs), None)
    if called is None and noun != WITHOUT_NOUN and not any(map(Part.is_installed, parts)):
        called = parts[0]  # loading it says what is missing
    if called is not None:
        _add(root, noun, called.load(f"{noun} {verb}".strip()))
        return root
    for listed in (WITHOUT_NOUN, *NOUNS):
        if lines := [
            line
            for part in PARTS
            if part.noun == listed and part.is_installed()
            for line in part.verbs.items()
        ]:
            app = typer.Typer(no_args_is_help=True, help=NOUNS.get(listed))
            for name, line in lines:
                app.command(name, help=line)(_listed)
            _add(root, listed, app)
    return root


def _words(arguments: Sequence[str]) -> Sequence[str]:
    """Give the words of the call; where a shell asks for completions, those before the cursor."""
    if "_AMCAST_COMPLETE" not in os.environ:
        return arguments
    if (text := os.environ.get("_TYPER_COMPLETE_ARGS")) is not None:
        return f"{text}|".split()[1:-1]  # without the word that is being written
    return os.environ.get("COMP_WORDS", "").split()[1 : int(os.environ.get("COMP_CWORD", "1"))]


def _add(root: typer.Typer, noun: str, app: typer.Typer) -> None:
    if noun == WITHOUT_NOUN:
        root.registered_commands += app.registered_commands
    else:
        root.add_typer(app, name=noun, cls=_Group)
