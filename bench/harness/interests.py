"""Makes interest files for benchmarks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from topology.interests import InterestFile, from_document


def file_of(
    interests: Mapping[str, Sequence[str]], destinations: Sequence[Sequence[str]] = ()
) -> InterestFile:
    """Make an interest file from consumers' interests and declared destination sets."""
    partitions = sorted({name for interest in interests.values() for name in interest})
    document: dict[str, Any] = {
        "topic": "bench",
        "partitions": partitions,
        "destinations": [list(to) for to in destinations],
        "consumer": [{"name": n, "interest": sorted(i)} for n, i in interests.items()],
    }
    return from_document(document)
