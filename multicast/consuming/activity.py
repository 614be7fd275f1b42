"""Which member of a group is active: claims and answers go in, what a member may do comes out.

    chosen    the group's leader gave this generation to the member; the others stand by
    fence     the number of an activation, stored in the group's commit before the first delivery
    active    it has a fence: it was chosen, and stored its fence under the generation of that
    lost      another one has been active since, or may be now

The generation alone is no fence: a group that was deleted begins again at 1, a static member that
comes back shares it with the one that was paused, and it grows without a handover.

Invariant: who is active and not lost has the fence that the group's commit held after its last
join. No I/O, no clock.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from multicast.drivers.protocol import MemberIdentity

_FIELDS = 3  # of a claim: fence, generation in which it was chosen, joins


def choose(claims: Mapping[str, bytes]) -> str:
    """Choose the member that shall be active: who is, else who was chosen last, else the first."""
    return max(sorted(claims), key=lambda member: _claim(claims[member])[:2])


def next_fence(stored: int, now_ms: int) -> int:
    """Give the fence of an activation: above all before it, also after the group was deleted."""
    return max(stored + 1, now_ms)


class Activity:
    """What one member knows of itself. `identity` is that of its last join."""

    def __init__(self) -> None:
        self.identity: MemberIdentity | None = None
        self.fence = 0
        self.lost = False
        self.must_join = False
        self._joins = 0

    @property
    def chosen(self) -> bool:
        """Whether the last join gave the partitions to this member."""
        return self.identity is not None and self.identity.chosen

    @property
    def claim(self) -> bytes:
        """What the next join says. It differs from the last one: each has a generation follow."""
        chosen_in = self.identity.generation if self.chosen and self.identity else 0
        return json.dumps([self.fence, chosen_in, self._joins]).encode()

    @property
    def may_begin(self) -> bool:
        """Whether to begin to be active under `identity`."""
        return self.chosen and not self.must_join and not self.fence

    @property
    def may_commit(self) -> bool:
        """Whether a commit under `identity` follows all that were made before it."""
        return self.fence > 0 and not self.lost and not self.must_join

    def joined(self, identity: MemberIdentity, stored: int) -> None:
        """Take the result of a join; `stored` is the fence that the commit holds after it."""
        self._joins += 1
        self.identity, self.must_join = identity, False
        self.lost = self.fence > 0 and (not identity.chosen or stored != self.fence)

    def activated(self, fence: int, identity: MemberIdentity) -> None:
        """Begin to be active, unless the group has gone on since the fence was stored."""
        if identity == self.identity and self.may_begin:
            self.fence = fence

    def commit_failed(self, identity: MemberIdentity) -> None:
        """Join again after a commit that was refused, or may be stored later.

        Under another generation that one is refused; else it could take a later one's place.
        """
        if identity == self.identity:
            self.must_join = True


def _claim(raw: bytes) -> tuple[int, ...]:
    """Read a claim; what another program wrote claims nothing."""
    try:
        numbers = json.loads(raw)
    except ValueError:
        return (0,) * _FIELDS
    if not isinstance(numbers, list) or [*map(type, numbers)] != [int] * _FIELDS:
        return (0,) * _FIELDS
    return tuple(numbers)
