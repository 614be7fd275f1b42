"""The members of consumer groups in memory: a coordinator whose rebalances take no time.

It answers as Kafka's does to members that step in turns, without a session time-out: `expel` drops
a member, as if its process had been paused for longer. The choice counts the members' last claims.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from multicast.drivers.protocol import MemberIdentity, TopicPartition
from multicast.errors import GroupInUse

Choose = Callable[[Mapping[str, bytes]], str]


class MemoryGroup:
    """One group: `claims` by member ID. `changed` guards it, and is notified."""

    def __init__(self, changed: threading.Condition) -> None:
        self.changed = changed
        self.generation = 0
        self.claims: dict[str, bytes] = {}
        self.chosen = ""
        self.stored: dict[TopicPartition, tuple[int, str]] = {}
        self._joined = 0

    def join(self, member: str, claim: bytes, choose: Choose) -> str:
        """Take a member in, a new one for ""; a generation follows."""
        if member not in self.claims:
            self._joined += 1
            member = f"member-{self._joined}"
        self.claims[member] = claim
        self._rebalance(choose)
        return member

    def leave(self, member: str, choose: Choose) -> None:
        """Drop a member, which left or did not step for its session time-out."""
        with self.changed:
            if self.claims.pop(member, None) is not None:
                self._rebalance(choose)

    def _rebalance(self, choose: Choose) -> None:
        self.generation += 1
        self.chosen = choose(self.claims) if self.claims else ""
        self.changed.notify_all()

    def store(
        self, offsets: Mapping[TopicPartition, tuple[int, str]], member: MemberIdentity | None
    ) -> None:
        """Store a commit of a member of this generation, or of anybody if there are no members."""
        known = member is not None and member.member in self.claims
        if (self.claims or member is not None) and not (
            known and member is not None and member.generation == self.generation
        ):
            raise GroupInUse("the group has members, and this commit is of another generation")
        self.stored.update(offsets)


class MemoryMember:
    """A member of a `MemoryGroup`; see `protocol.GroupMember`."""

    session_s = 10.0

    def __init__(self, group: MemoryGroup, choose: Choose) -> None:
        self.identity: MemberIdentity | None = None
        self.chosen = False
        self._group, self._choose = group, choose
        self._member = ""
        self._due = True

    def step(self, claim: bytes) -> bool:
        """Join if that is due, or take part in a generation that others began."""
        group = self._group
        with group.changed:
            if self._due or self._member not in group.claims:
                self._member = group.join(self._member, claim, self._choose)
            group.claims[self._member] = claim
            self.identity = MemberIdentity(group.generation, self._member)
            self.chosen, self._due = group.chosen == self._member, False
        return True

    def rejoin(self) -> None:
        """Have the next step join again."""
        self._due = True

    def leave(self) -> None:
        """Leave the group."""
        self._group.leave(self._member, self._choose)

    def close(self) -> None:
        """Do nothing: there is no connection."""
