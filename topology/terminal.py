"""What a verb writes to a terminal: text and colours, and nothing else that a terminal obeys.

Names of consumers, groups and topics, and texts in records, are chosen by others. A control
character in one could change the terminal's title, its keys, or lines that were written before.
Pipes and files get all bytes as they are.

Invariant: of what is written, a terminal obeys line feeds, tabs, and colours until their line ends.
"""

from __future__ import annotations

import io
import re
import sys

_COLOUR_OR_SPECIAL = re.compile(r"(\x1b\[[0-9;]*m)|[^\n\t -~]")
_PLAIN = "\x1b[0m"


def printable(text: str) -> str:
    """Write control characters, line feeds and tabs, too, as Python does in a text."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def told(error: object) -> str:
    """Give the lines that say on stderr why a command has failed."""
    return "amcast: " + "\n".join(map(printable, str(error).split("\n"))) + "\n"


def shown(text: str) -> str:
    """Give text as a terminal may get it; a line with colours ends without one."""
    text = _COLOUR_OR_SPECIAL.sub(lambda each: each[1] or printable(each[0]), text)
    return text.replace("\n", f"{_PLAIN}\n") if _PLAIN[0] in text else text


class TerminalText(io.TextIOWrapper):
    """A text stream to a terminal."""

    def write(self, text: str, /) -> int:
        """Write what a terminal may get."""
        super().write(shown(text))
        return len(text)


def guard() -> None:
    """Have stdout give a terminal only what it may get."""
    if sys.stdout.isatty():
        old = sys.stdout
        sys.stdout = TerminalText(
            old.buffer, encoding=old.encoding, errors=old.errors, line_buffering=True
        )
