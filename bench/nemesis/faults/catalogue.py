"""All kinds of faults in one table: importing a file of faults enters its kinds."""

from __future__ import annotations

from bench.nemesis.faults import (  # noqa: F401  (entering its kinds is what each is imported for)
    brokers,
    foreign,
    isolated,
    network,
    plans,
    programs,
    proxy,
)
from bench.nemesis.faults.kinds import KINDS, FaultKind


def usable(having: frozenset[str]) -> list[FaultKind]:
    """Return the kinds that a system with these facilities supports, by name."""
    return [one for _, one in sorted(KINDS.items()) if one.needs <= having]
