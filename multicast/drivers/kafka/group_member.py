"""Members of consumer groups: one lists the group's members, one is chosen among them or stands by.

A `Membership` reads nothing. All members see the same sorted list, as of the group's last
rebalance. Kafka's group coordinator does the rest: it notices members that died (no heartbeat for
the session time-out) and new ones, and starts a rebalance.

    member      the member ID that the coordinator assigned to us; empty before the first join
    generation  the rebalance that we took part in; None: the next step joins the group again
    members     the members of that generation; the group's leader writes the list for all

The group is a classic one of type "consumer", which all brokers and tools know. No member is
assigned partitions; what it does with the list is up to the caller. The list may be outdated by
more than the session time-out, so no guarantee may depend on it. Of `ChosenMember`s one is assigned
all partitions, by what each has claimed; what that one commits carries its generation.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from kafka import errors as kafka_errors

from multicast.drivers.client_settings import group_settings
from multicast.drivers.kafka.connection import Connection
from multicast.drivers.kafka.private import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    ConsumerProtocolType,
    CoordinatorType,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from multicast.drivers.protocol import MemberIdentity, TopicPartition
from multicast.errors import AmcastError, Fenced

# Session time-outs to try, the shortest first: it is the time until a dead member is noticed.
# Brokers refuse one below their group.min.session.timeout.ms, which is 6 s by default.
SESSIONS_S = (2.0, 6.0, 10.0, 30.0)
# The least rebalance time-out; a longer session takes its place. Members call `step` several times
# in a session, so all of them learn of a rebalance and join in time.
_REBALANCE_S = 3.0
_NETWORK_S = 5.0  # added to the coordinator's own waits, for a request on its way
_LEAVE_S = 1.0  # nothing depends on it: a member that fails to leave is dropped after its session
# Of exclusive consumers, without session.timeout.ms: a short stop of a process ends nothing.
_EXCLUSIVE_S = (10.0, 30.0)
_VERSION = 0  # of the consumer protocol: later ones add what a rebalance of consumers needs


class Membership:
    """One member, for one thread. The constructor connects or raises `ClusterUnreachable`."""

    _protocol = "amcast-members"
    _instance: str | None = None

    def __init__(
        self,
        bootstrap: str,
        client: Mapping[str, str],
        *,
        group: str,
        topics: Sequence[str],
        sessions: Sequence[float] = SESSIONS_S,
    ) -> None:
        self.group = group
        self.member = ""
        self.members: tuple[str, ...] = ()
        self._topics = topics
        self._claim = b""
        self._sessions = list(sessions)
        self._generation: int | None = None
        self._coordinator: int | None = None
        self._connection = Connection(bootstrap, client, timeout_s=max(sessions) + _NETWORK_S)

    @property
    def session_s(self) -> float:
        """The session time-out in seconds: after that without a heartbeat the group drops us."""
        return self._sessions[0]

    def step(self) -> bool:
        """Send a heartbeat, or join the group if that is due; return whether it succeeded.

        Call it several times in each `session_s`. A join blocks until the other members have joined
        or the rebalance time-out is over. Raises `AmcastError` if the group is denied or unusable.
        """
        timeout_s = max(self.session_s, _REBALANCE_S) + _NETWORK_S
        return bool(self._connection.run(self._step, timeout_s=timeout_s))

    def leave(self) -> None:
        """Leave the group, so that the others rebalance at once; waits at most 1 s."""
        if self.member and self._coordinator is not None:
            self._generation = None
            known = {"group_id": self.group, "member_id": self.member}
            members = [LeaveGroupRequest.MemberIdentity(member_id=self.member)]
            request = LeaveGroupRequest(**known, members=members, max_version=4)
            self._connection.run(self._ask, request, timeout_s=_LEAVE_S)

    def close(self) -> None:
        """Close the connections; without `leave` the group keeps us for `session_s`."""
        self._connection.close()

    async def _step(self) -> bool:
        try:
            if self._coordinator is None:
                self._coordinator = await find_coordinator(self._connection, self.group)
            if self._generation is None:
                await self._rejoin()
            else:
                await self._ask(self._request(HeartbeatRequest, 4, generation_id=self._generation))
        except (kafka_errors.KafkaError, OSError) as error:
            self._take(error)
            return False
        return True

    def _take(self, error: BaseException) -> None:
        """Prepare the next step after an error; raise the error if no step can help."""
        match error:
            case (
                kafka_errors.RebalanceInProgressError()
                | kafka_errors.IllegalGenerationError()
                | kafka_errors.MemberIdRequiredError()
            ):
                self._generation = None
            case kafka_errors.UnknownMemberIdError():
                self._generation, self.member = None, ""
            case kafka_errors.FencedInstanceIdError():
                raise Fenced(
                    f"another process joined group {self.group} with the group.instance.id "
                    f"{self._instance}; give each process one of its own"
                ) from error
            case kafka_errors.InvalidSessionTimeoutError() if len(self._sessions) > 1:
                del self._sessions[0]
            case kafka_errors.AuthorizationError():
                raise self._connection.access.lacks("Read", "group", self.group) from error
            case kafka_errors.KafkaError() if not error.retriable:
                raise AmcastError(
                    f"The consumer group {self.group} is not usable: {error}."
                ) from error
            case _:
                self._coordinator = None

    async def _rejoin(self) -> None:
        said = ConsumerProtocolSubscription(
            topics=self._topics, user_data=self._claim, version=_VERSION
        )
        rebalance_s = max(self.session_s, _REBALANCE_S)
        request = self._request(
            JoinGroupRequest,
            7,
            session_timeout_ms=int(1000 * self.session_s),
            rebalance_timeout_ms=int(1000 * rebalance_s),
            protocol_type=ConsumerProtocolType,
            protocols=[(self._protocol, said.encode())],
        )
        joined = await self._ask(request, rebalance_s)
        assignments = []
        if joined.leader == self.member:
            assignments = self._assign({m.member_id: m.metadata for m in joined.members})
        request = self._request(
            SyncGroupRequest,
            5,
            generation_id=joined.generation_id,
            protocol_type=ConsumerProtocolType,
            protocol_name=self._protocol,
            assignments=assignments,
        )
        self._take_part(joined.generation_id, (await self._ask(request)).assignment)
        self._generation = joined.generation_id

    def _assign(self, joined: Mapping[str, bytes]) -> list[tuple[str, bytes]]:
        """As the leader: tell each member its part, from what each said when it joined."""
        part = _part(json.dumps(sorted(joined)).encode())
        return [(member, part) for member in joined]

    def _take_part(self, generation: int, assignment: bytes) -> None:  # noqa: ARG002
        self.members = _members(assignment)

    def _request(self, kind: Any, version_max: int, **fields: Any) -> Any:
        return kind(
            group_id=self.group,
            member_id=self.member,
            group_instance_id=self._instance,
            max_version=version_max,
            **fields,
        )

    async def _ask(self, request: Any, wait_s: float = 0.0) -> Any:
        # A connection that stays silent is closed, so that the coordinator is looked for again.
        timeout_ms = 1000 * (wait_s + _NETWORK_S)
        response = await self._connection.manager.send(request, self._coordinator, timeout_ms)
        # A join's answer names the member: a new one's is refused, and it joins again by that name.
        self.member = getattr(response, "member_id", "") or self.member
        return _checked(response)


class ChosenMember(Membership):
    """A `protocol.GroupMembership`."""

    _protocol = "amcast-exclusive"

    def __init__(
        self,
        bootstrap: str,
        client: Mapping[str, str],
        *,
        group: str,
        partitions: Sequence[TopicPartition],
        choose: Callable[[Mapping[str, bytes]], str],
    ) -> None:
        self._instance, session_ms = group_settings(client)
        sessions = _EXCLUSIVE_S if session_ms is None else (session_ms / 1000,)
        self._choose = choose
        self._identity: MemberIdentity | None = None
        self._partitions: dict[str, list[int]] = defaultdict(list)
        for topic, number in partitions:
            self._partitions[topic].append(number)
        # Of topics that no member subscribes to, Kafka forgets a group's offsets after days.
        topics = sorted(self._partitions)
        super().__init__(bootstrap, client, group=group, topics=topics, sessions=sessions)

    def take_part(self, claim: bytes, *, rejoin: bool = False) -> MemberIdentity | None:
        """Send a heartbeat, or join if that is due; None: it was not answered."""
        self._claim = claim
        if rejoin:
            self._generation = None
        return self._identity if self.step() else None

    def close(self) -> None:
        """Leave, unless it is a static member, which may come back; close the connections."""
        if self._instance is None:
            with suppress(AmcastError):
                self.leave()
        super().close()

    def _assign(self, joined: Mapping[str, bytes]) -> list[tuple[str, bytes]]:
        chosen = self._choose({each: _claim(joined[each]) for each in joined})
        parts = {each: self._partitions.items() if each == chosen else () for each in joined}
        return [(each, _part(b"", parts[each])) for each in joined]

    def _take_part(self, generation: int, assignment: bytes) -> None:
        part = _decoded(ConsumerProtocolAssignment, assignment)
        chosen = bool(getattr(part, "assigned_partitions", ()))
        self._identity = MemberIdentity(generation, self.member, self._instance, chosen)


async def find_coordinator(connection: Connection, group: str) -> int:
    """Return the broker that coordinates a group; raises the package's errors."""
    request = FindCoordinatorRequest(
        key_type=CoordinatorType.GROUP.value, coordinator_keys=[group], min_version=4
    )
    response = await connection.manager.send(request)
    node: int = _checked(response.coordinators[0]).node_id
    if connection.cluster.broker_metadata(node) is None:
        connection.cluster.request_update()
        raise kafka_errors.NodeNotReadyError(node)
    return node


def _checked(response: Any) -> Any:
    error = kafka_errors.for_code(response.error_code)
    if error is not kafka_errors.NoError:
        raise error()
    return response


def _part(user_data: bytes, partitions: Iterable[tuple[str, list[int]]] = ()) -> bytes:
    """Encode what the leader tells a member."""
    part = ConsumerProtocolAssignment(
        assigned_partitions=list(partitions), user_data=user_data, version=_VERSION
    )
    return bytes(part.encode())


def _decoded(kind: Any, raw: bytes) -> Any:
    """Decode what a member wrote; None if another program wrote something else."""
    with suppress(Exception):  # the package's decoder raises any kind of error
        return kind.decode(raw)
    return None


def _claim(raw: bytes) -> bytes:
    return bytes(getattr(_decoded(ConsumerProtocolSubscription, raw), "user_data", b"") or b"")


def _members(raw: bytes) -> tuple[str, ...]:
    """Decode the list of members; empty if another program wrote something else."""
    try:
        members = json.loads(_decoded(ConsumerProtocolAssignment, raw).user_data)
    except (AttributeError, TypeError, ValueError, RecursionError):
        return ()
    if not isinstance(members, list) or not all(isinstance(member, str) for member in members):
        return ()
    return tuple(members)
