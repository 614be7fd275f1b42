"""Quotes what a client sent, in answers and in logs, at a bounded length.

A message may have 100 MiB, and `repr` makes up to four bytes of one: a name from it is never quoted
whole.
"""

from __future__ import annotations

# Characters. A name that a person chose is shown as a whole as a rule; with ten times more, a log
# line and the reason of an answer could no longer be read at a glance.
QUOTED_MAX = 100


def quoted(text: str) -> str:
    """Give `text` in quotes, printable; behind `QUOTED_MAX` characters only its length is said."""
    if len(text) <= QUOTED_MAX:
        return repr(text)
    return f"{text[:QUOTED_MAX]!r}… ({len(text)} characters)"
