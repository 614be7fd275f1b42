"""What a node remembers of the bundles in its logs: which counted, where they stand, why not.

    counted    by the rule, or a part is in a block; with the places of the parts in durable blocks
    void       a record of it was void. `final`: it cannot count later, or nobody here posts it
               again. Another node may, so it can count all the same, and then it counts

Bounded: of each set the newest `counted_max` bundles that counted (the rule's window is as long, so
a bundle that is not known here is no duplicate there), and the newest `voids_max` void ones.
No I/O, no clock; for one thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ordering_osn.api.channels import BundleFate, FateKind
from ordering_osn.chain.bundles.rule import BUNDLE_WINDOW_MAX, VoidReason

# Void bundles are rare: a config came in between, or an expiry passed. Some 300 bytes each.
VOIDS_MAX = 16_384


@dataclass(slots=True)
class _Counted:
    chains: tuple[str, ...]
    places: dict[str, tuple[int, int]] = field(default_factory=dict)


class BundleFates:
    """The fates of the bundles of one node. For one thread."""

    def __init__(self, *, counted_max: int = BUNDLE_WINDOW_MAX, voids_max: int = VOIDS_MAX) -> None:
        self._counted_max = counted_max
        self._voids_max = voids_max
        self._counted: dict[bytes, _Counted] = {}
        self._voids: dict[bytes, BundleFate] = {}
        self._sets: dict[tuple[str, ...], dict[bytes, None]] = {}  # oldest first

    def counted(self, bundle_id: bytes, chains: tuple[str, ...]) -> None:
        """Note that a bundle counts, also where it was void before."""
        self._entry(bundle_id, chains)

    def placed(
        self, bundle_id: bytes, chains: tuple[str, ...], chain: str, place: tuple[int, int]
    ) -> None:
        """Note in which durable block of `chain`, and at which index, a part stands."""
        self._entry(bundle_id, chains).places[chain] = place

    def void(
        self,
        bundle_id: bytes,
        chains: tuple[str, ...],
        reason: VoidReason,
        chain: str,
        *,
        final: bool,
    ) -> None:
        """Note that a record of a bundle is void. One that counted stays so."""
        if bundle_id in self._counted:
            return
        known = self._voids.pop(bundle_id, None)
        if known is not None and known.final and not final:
            self._voids[bundle_id] = known
            return
        self._voids[bundle_id] = BundleFate(
            FateKind.VOID, chains, final=final, reason=reason, void_chain=chain
        )
        if len(self._voids) > self._voids_max:
            del self._voids[next(iter(self._voids))]

    def revived(self, bundle_id: bytes) -> None:
        """Forget that a bundle was void: this node posts it again."""
        self._voids.pop(bundle_id, None)

    def has_counted(self, bundle_id: bytes) -> bool:
        """Whether the bundle is known to count."""
        return bundle_id in self._counted

    def fate(self, bundle_id: bytes, runs: frozenset[str]) -> BundleFate:
        """Give what is known. `runs`: the chains of this node, whose parts must be in blocks."""
        entry = self._counted.get(bundle_id)
        if entry is None:
            return self._voids.get(bundle_id, BundleFate())
        lacking = [c for c in entry.chains if c in runs and c not in entry.places]
        committed = bool(entry.places) and not lacking
        kind = FateKind.COMMITTED if committed else FateKind.ACCEPTED
        return BundleFate(kind, entry.chains, final=committed, places=dict(entry.places))

    def _entry(self, bundle_id: bytes, chains: tuple[str, ...]) -> _Counted:
        entry = self._counted.get(bundle_id)
        if entry is None:
            self._voids.pop(bundle_id, None)
            entry = self._counted[bundle_id] = _Counted(chains)
            newest = self._sets.setdefault(chains, {})
            newest[bundle_id] = None
            if len(newest) > self._counted_max:
                oldest = next(iter(newest))
                del newest[oldest]
                del self._counted[oldest]
        return entry
