"""All fuzz targets: every decoder of bytes from other programs."""

from __future__ import annotations

from bench.fuzz import of_bundles, of_multicast, of_multichain, of_ordering
from bench.fuzz.target import FuzzTarget


def table() -> list[FuzzTarget]:
    """List the targets; their names are unique."""
    return [
        *of_multicast.targets(),
        *of_ordering.targets(),
        *of_bundles.targets(),
        *of_multichain.targets(),
    ]
