"""Who is there: a member of a consumer group that reads nothing.

In go the group's name and time; out comes the sorted list of its members, the same for all of
them, as of the last time that they met. Kafka's group coordinator does the rest: it notices who
died (no heartbeat for the session's time-out) and who came, and calls all to meet again.

    member      as whom the coordinator knows us; empty before the first meeting
    generation  which meeting we know of; None: the next step is to meet
    members     who met then; the coordinator's choice among them wrote the list down for all

The group is a classic one of type "consumer", which all brokers and every tool know. Nobody is
assigned partitions: what a member does with the list is its own affair. It may be out of date by
the session's time-out and more; nothing may rest on it that must hold always.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from kafka import errors as kafka_errors
from kafka.protocol.consumer import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from kafka.protocol.consumer.metadata import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    ConsumerProtocolType,
)
from kafka.protocol.metadata import CoordinatorType, FindCoordinatorRequest

from multicast.drivers.kafka_python.connection import Connection
from multicast.errors import AmcastError

# Brokers refuse what is below their group.min.session.timeout.ms: 6 s, unless it was set lower.
SESSIONS_S = (2.0, 6.0, 10.0, 30.0)
_MEET_S = 3.0  # at least so long is waited for members that live, to come to a meeting
_NETWORK_S = 5.0
_PROTOCOL = "amcast-members"
_VERSION = 0


class Membership:
    """One member; use it from one thread. The constructor raises `ClusterUnreachable` in time."""

    def __init__(
        self, bootstrap: str, client: Mapping[str, str], *, group: str, topic: str
    ) -> None:
        self.group = group
        self.member = ""
        self.members: tuple[str, ...] = ()
        self._topic = topic
        self._sessions = list(SESSIONS_S)
        self._generation: int | None = None
        self._coordinator: int | None = None
        timeout_s = max(SESSIONS_S) + _NETWORK_S
        self._connection = Connection(bootstrap, client, timeout_s=timeout_s)

    @property
    def session_s(self) -> float:
        """After how long without a word from us the others do without us."""
        return self._sessions[0]

    @property
    def met(self) -> bool:
        """Whether `members` is the newest that we know of: another meeting is not due."""
        return self._generation is not None

    def step(self) -> bool:
        """Say that we are there, or meet where that is due; whether the coordinator agreed.

        Call it some times in every `session_s`. Waits at most for the others to come to the
        meeting, and a little. Raises `AmcastError` where the group is denied or not usable.
        """
        timeout_s = max(self.session_s, _MEET_S) + _NETWORK_S
        return bool(self._connection.run(self._step, timeout_s=timeout_s))

    def leave(self) -> None:
        """Have the others meet without us at once, if the coordinator hears it in time."""
        if self.member and self._coordinator is not None:
            self._generation = None
            self._connection.run(self._leave, timeout_s=1.0)

    def close(self) -> None:
        """Close the connections; who did not leave is missed after `session_s`."""
        self._connection.close()

    async def _step(self) -> bool:
        try:
            if self._coordinator is None:
                self._coordinator = await find_coordinator(self._connection, self.group)
            if self._generation is None:
                await self._meet()
            else:
                await self._ask(
                    HeartbeatRequest(
                        group_id=self.group,
                        generation_id=self._generation,
                        member_id=self.member,
                        group_instance_id=None,
                        max_version=4,
                    )
                )
        except (kafka_errors.KafkaError, OSError) as error:
            self._take(error)
            return False
        return True

    def _take(self, error: BaseException) -> None:
        """Do what makes the next step better; raise what no step makes better."""
        match error:
            case kafka_errors.RebalanceInProgressError() | kafka_errors.IllegalGenerationError():
                self._generation = None
            case kafka_errors.UnknownMemberIdError():
                self._generation, self.member = None, ""
            case kafka_errors.InvalidSessionTimeoutError() if len(self._sessions) > 1:
                del self._sessions[0]
            case kafka_errors.AuthorizationError():
                raise self._connection.access.lacks("Read", "group", self.group) from error
            case kafka_errors.KafkaError() if not error.retriable:
                raise AmcastError(f"The group {self.group} is not usable: {error}.") from error
            case _:
                self._coordinator = None

    async def _meet(self) -> None:
        joined = await self._join()
        self.member = joined.member_id
        assignments = []
        if joined.leader == self.member:
            members = sorted(one.member_id for one in joined.members)
            assignments = _assignments(members)
        synced = await self._ask(
            SyncGroupRequest(
                group_id=self.group,
                generation_id=joined.generation_id,
                member_id=self.member,
                group_instance_id=None,
                protocol_type=ConsumerProtocolType,
                protocol_name=_PROTOCOL,
                assignments=assignments,
                max_version=5,
            )
        )
        self.members = _members(synced.assignment)
        self._generation = joined.generation_id

    async def _join(self) -> Any:
        subscription = ConsumerProtocolSubscription(
            topics=[self._topic], user_data=b"", version=_VERSION
        )

        def request() -> Any:
            return JoinGroupRequest(
                group_id=self.group,
                session_timeout_ms=int(1000 * self.session_s),
                rebalance_timeout_ms=int(1000 * max(self.session_s, _MEET_S)),
                member_id=self.member,
                group_instance_id=None,
                protocol_type=ConsumerProtocolType,
                protocols=[(_PROTOCOL, subscription.encode())],
                max_version=7,
            )

        response = await self._send(request())
        if kafka_errors.for_code(response.error_code) is kafka_errors.MemberIdRequiredError:
            self.member = response.member_id
            response = await self._send(request())
        return _checked(response)

    async def _leave(self) -> None:
        identity = LeaveGroupRequest.MemberIdentity(
            member_id=self.member, group_instance_id=None, reason=None
        )
        request = LeaveGroupRequest(
            group_id=self.group, member_id=self.member, members=[identity], max_version=4
        )
        await self._ask(request)

    async def _ask(self, request: Any) -> Any:
        return _checked(await self._send(request))

    async def _send(self, request: Any) -> Any:
        return await self._connection.manager.send(request, node_id=self._coordinator)


async def find_coordinator(connection: Connection, group: str) -> int:
    """Ask which broker coordinates a group; raises the package's errors."""
    request = FindCoordinatorRequest(
        key_type=CoordinatorType.GROUP.value, coordinator_keys=[group], min_version=4
    )
    found = _first(await connection.manager.send(request))
    if connection.cluster.broker_metadata(found) is None:
        connection.cluster.request_update()
        raise kafka_errors.NodeNotReadyError(found)
    return found


def _first(response: Any) -> int:
    found = _checked(response.coordinators[0])
    node: int = found.node_id
    return node


def _checked(response: Any) -> Any:
    error = kafka_errors.for_code(response.error_code)
    if error is not kafka_errors.NoError:
        raise error()
    return response


def _assignments(members: Sequence[str]) -> list[tuple[str, bytes]]:
    """Write the same list down for everybody."""
    told = json.dumps(members).encode()
    assignment = ConsumerProtocolAssignment(
        assigned_partitions=[], user_data=told, version=_VERSION
    )
    raw = assignment.encode()
    return [(member, raw) for member in members]


def _members(raw: bytes) -> tuple[str, ...]:
    """Read the list; empty where somebody else wrote something else."""
    try:
        told = json.loads(ConsumerProtocolAssignment.decode(raw).user_data)
    except Exception:  # noqa: BLE001 - the package's decoder raises what its bytes make it
        return ()
    if not isinstance(told, list) or not all(isinstance(member, str) for member in told):
        return ()
    return tuple(told)
