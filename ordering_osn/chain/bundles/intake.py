"""What a node does with the bundles that it took in, until the log says what became of them.

Outcomes of the rule go in (of all records of the logs that the node reads, in any interleaving of
the logs); what to do next comes out.

    open      taken in and not settled. The node holds the bundle, to post it again
    judging   the node's turn: to judge it at the present configs, stamp it, wait until the markers
              of the stamps stand in the log, and post it
    posted    a record is under way, or in the log and not read yet

A record's fate is not the bundle's. After NO_MARKER, STALE or AHEAD the same bundle may count
later, by this node's next record or another node's: a node that gives up says what became of its
records, and no more. After EXPIRED it cannot count later; it may have counted before, if the window
has forgotten it since.

Invariant: a bundle is posted at most `posts_max` times; the open bundles have `bytes_max` bytes.
No I/O, no clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from multicast.errors import AmcastError
from ordering_osn.chain.bundles.bundle import Bundle
from ordering_osn.chain.bundles.rule import BundleCounts, BundleVoid, Outcome

# Each further post needs a config of one of the set's chains that came just between. Configs come
# seldom, so five in a row say that something is wrong.
POSTS_MAX = 5
# 32 of the largest bundles, or tens of thousands of usual ones, are open at once.
OPEN_BYTES_MAX = 256 << 20


class IntakeFull(AmcastError):
    """The node holds as many open bundles as it may; try again later."""

    retriable = True


@dataclass(slots=True)
class _Open:
    bundle: Bundle
    size: int
    judging: bool = True
    posts: int = 0


class BundleIntake:
    """The open bundles of one node. For one thread.

    A bundle that a call gives is the node's turn: it judges, stamps and posts it; then it calls
    `posted`, or `forget` where it is not posted.
    """

    def __init__(self, *, posts_max: int = POSTS_MAX, bytes_max: int = OPEN_BYTES_MAX) -> None:
        self._open: dict[bytes, _Open] = {}
        self._posts_max = posts_max
        self._bytes_max = bytes_max
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._open)

    def get(self, bundle_id: bytes) -> Bundle | None:
        """Give an open bundle; None where no bundle of this ID is open."""
        entry = self._open.get(bundle_id)
        return None if entry is None else entry.bundle

    def take_in(self, bundle: Bundle) -> None:
        """Take in a client's bundle that is not open; the node judges it. Raises `IntakeFull`."""
        assert bundle.id not in self._open, "both clients wait for one answer"
        size = len(bundle.content) + sum(len(part.envelope) for part in bundle.parts)
        if self._bytes + size > self._bytes_max:
            raise IntakeFull(f"this node holds {len(self._open)} bundles that are not decided yet")
        self._open[bundle.id] = _Open(bundle, size)
        self._bytes += size

    def posted(self, bundle_id: bytes) -> None:
        """Note that a record of the bundle is under way. Call this BEFORE the log is read on."""
        entry = self._open.get(bundle_id)
        if entry is not None:
            entry.judging = False
            entry.posts += 1

    def forget(self, bundle_id: bytes) -> None:
        """Drop a bundle that was refused, or that could not be posted: the caller answers."""
        entry = self._open.pop(bundle_id, None)
        if entry is not None:
            self._bytes -= entry.size

    def unread(self, chain: str) -> list[Bundle]:
        """Take that `chain` went on behind a gap, and does not read the outcomes in it any more.

        A bundle that is posted may be among them, so it is posted again: where it counted, the copy
        is a duplicate. One that was posted often enough is dropped: nothing is known of it.
        """
        again = []
        for bundle_id, entry in list(self._open.items()):
            if entry.judging or chain not in entry.bundle.chains:
                continue
            if entry.posts < self._posts_max:
                entry.judging = True
                again.append(entry.bundle)
            else:
                self.forget(bundle_id)
        return again

    def read(self, outcome: Outcome) -> Bundle | None:
        """Take the outcome of the next record; give the bundle if it is to be judged again.

        A bundle that is not open afterwards is settled: it counts or is void, or (where it was
        posted often enough) the node gives up and it may still count.
        """
        if isinstance(outcome, BundleCounts):
            self.forget(outcome.bundle.id)
        if not isinstance(outcome, BundleVoid):
            return None
        entry = self._open.get(outcome.bundle_id)
        if entry is None:
            return None
        if not outcome.reason.may_count_later:
            self.forget(outcome.bundle_id)
            return None
        if entry.judging:  # another node's record, or a second copy of one of ours
            return None
        if entry.posts >= self._posts_max:
            self.forget(outcome.bundle_id)
            return None
        entry.judging = True
        return entry.bundle
