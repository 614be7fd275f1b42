"""Which member of a group is active: claims and answers go in, what a member may do comes out.

    chosen    the group's leader gave this generation to the member; the others stand by
    fence     the number of an activation, stored in the group's commit before the first delivery
    active    it has a fence: it was chosen, and stored its fence under the generation of that

The generation alone is no fence: a group that was deleted begins again at 1, a static member that
comes back shares it with the one that was paused, and it grows without a handover.

Invariant: who is active and may go on has the fence that the group's commit held after its last
join. No I/O, no clock.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from multicast.drivers.protocol import MemberIdentity

# A claim: fence, generation in which it was chosen, joins; Kafka's numbers have 19 digits at most.
_CLAIM = re.compile(rb"\[([0-9]{1,19}), ([0-9]{1,19}), [0-9]+\]")


def choose(claims: Mapping[str, bytes]) -> str:
    """Choose the member that shall be active: who is, else who was chosen last, else the first."""

    def rank(member: str) -> tuple[int, int]:  # what another program wrote claims nothing
        told = _CLAIM.fullmatch(claims[member])
        return (int(told[1]), int(told[2])) if told else (0, 0)

    return max(sorted(claims), key=rank)


def next_fence(stored: int, now_ms: int) -> int:
    """Give the fence of an activation: above all before it, also after the group was deleted."""
    return max(stored + 1, now_ms)


class Activity:
    """What one member knows of itself.

    `identity` is that of its last join, after which the group's commit held the fence `stored`.
    """

    def __init__(self) -> None:
        self.identity: MemberIdentity | None = None
        self.stored = self.fence = 0
        self.must_join = False
        self._joins = 0

    @property
    def claim(self) -> bytes:
        """What the next join says. It differs from the last one: each has a generation follow."""
        chosen_in = self.identity.generation if self.identity and self.identity.chosen else 0
        return f"[{self.fence}, {chosen_in}, {self._joins}]".encode()

    @property
    def may_begin(self) -> bool:
        """Whether to begin to be active under `identity`."""
        identity = self.identity
        return identity is not None and identity.chosen and not (self.must_join or self.fence)

    @property
    def may_commit(self) -> bool:
        """Whether a commit under `identity` follows all that were made before it."""
        return self.fence > 0 and not self.must_join

    def joined(self, identity: MemberIdentity, stored: int) -> bool:
        """Take the result of a join; return False if another one has been active, or may be."""
        self._joins += 1
        self.identity, self.stored, self.must_join = identity, stored, False
        return not self.fence or (identity.chosen and stored == self.fence)

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
