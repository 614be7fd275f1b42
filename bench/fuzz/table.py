"""All decoders of bytes that somebody else wrote, in one table."""

from __future__ import annotations

from bench.fuzz import of_multicast, of_ordering
from bench.fuzz.target import Target


def table() -> list[Target]:
    """List them; names are unique."""
    return [*of_multicast.targets(), *of_ordering.targets()]
