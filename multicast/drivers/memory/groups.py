"""The members of consumer groups in memory: a coordinator that answers as Kafka's does.

A rebalance ends once all members have joined; nobody counts time-outs. `pause` has the chosen one
send nothing until another one has stored something; `leave` drops it meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from multicast.drivers.protocol import ChooseMember, MemberIdentity, TopicPartition
from multicast.errors import GroupInUse


class MemoryGroup:
    """One group. `changed` guards it."""

    def __init__(self, changed: threading.Condition) -> None:
        self.changed = changed
        self.generation = 0
        self.members: set[str] = set()
        self.joined: dict[str, bytes] = {}  # their claims, in a rebalance
        self.rebalancing = False
        self.chosen = self.paused = ""
        self.stored: dict[TopicPartition, tuple[int, str]] = {}
        self._count = 0

    def pause(self) -> str:
        """Have the chosen member send nothing until another one stores something; give its ID."""
        self.paused = self.chosen
        return self.paused

    def join(self, member: str, claim: bytes, choose: ChooseMember) -> str:
        """Take a member in, or a new one; once all have joined, the next generation begins."""
        if member not in self.members:
            self._count += 1
            member = f"member-{self._count}"
            self.members.add(member)
        self.rebalancing = True
        self.joined[member] = claim
        self._complete(choose)
        return member

    def leave(self, member: str, choose: ChooseMember) -> None:
        """Drop a member, which has left, or did not step for its session time-out."""
        with self.changed:
            if member in self.members:
                self.members.remove(member)
                self.joined.pop(member, None)
                self.rebalancing = bool(self.members)
                self._complete(choose)

    def _complete(self, choose: ChooseMember) -> None:
        if self.rebalancing and set(self.joined) == self.members:
            self.generation += 1
            self.chosen, self.joined, self.rebalancing = choose(self.joined), {}, False

    def store(
        self, offsets: Mapping[TopicPartition, tuple[int, str]], member: MemberIdentity | None
    ) -> None:
        """Store a commit of a member of this generation, or of anybody if there are no members."""
        generation, name = member[:2] if member else (0, "")
        known = name in self.members and generation == self.generation
        if not known and (self.members or member is not None):
            raise GroupInUse("the group has members, and this commit is of none of them now")
        self.paused = ""
        self.stored.update(offsets)


class MemoryMember:
    """A member of a `MemoryGroup`; see `protocol.GroupMembership`."""

    session_s = 10.0

    def __init__(self, group: MemoryGroup, choose: ChooseMember) -> None:
        self._group, self._choose = group, choose
        self._member = ""
        self._generation = -1

    def take_part(self, claim: bytes, *, rejoin: bool = False) -> MemberIdentity | None:
        """Join if that is due; None: the others have not joined yet."""
        group = self._group
        with group.changed:
            if self._member and self._member == group.paused:
                return None
            rejoin = rejoin and group.generation == self._generation
            waits = (group.rebalancing or rejoin) and self._member not in group.joined
            if waits or self._member not in group.members:
                self._member = group.join(self._member, claim, self._choose)
            if group.rebalancing:
                return None
            chosen, self._generation = group.chosen == self._member, group.generation
            return MemberIdentity(group.generation, self._member, chosen=chosen)

    def close(self) -> None:
        """Leave the group."""
        self._group.leave(self._member, self._choose)
