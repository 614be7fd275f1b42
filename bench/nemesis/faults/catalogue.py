"""All kinds of faults: importing a module of faults registers its kinds in `KINDS`."""

from __future__ import annotations

from bench.nemesis.faults import (  # noqa: F401  (imported to register their kinds)
    brokers,
    foreign,
    isolated,
    network,
    plans,
    programs,
    proxy,
    tickets,
)
from bench.nemesis.faults.kinds import KINDS, FaultKind


def usable(having: frozenset[str]) -> list[FaultKind]:
    """Return the kinds that a system with these facilities supports, by name."""
    return [kind for _, kind in sorted(KINDS.items()) if having.issuperset(kind.needs)]
