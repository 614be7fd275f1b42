"""The kafka-python driver: opens readers, watchers and appenders, and sends single requests.

Each reader and watcher has its own connections: a broker answers the requests of one connection in
order, so a single request must not queue behind a long poll.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from kafka import errors as kafka_errors

from multicast.drivers.client_settings import DELIVERY_TIMEOUT_S, REQUEST_TIMEOUT_S, check_linger
from multicast.drivers.closing import ClosedAtEnd
from multicast.drivers.kafka.appender import KafkaPythonJointAppender
from multicast.drivers.kafka.connection import Connection
from multicast.drivers.kafka.group_member import ChosenMember, find_coordinator
from multicast.drivers.kafka.leader_answers import (
    EARLIEST,
    LATEST,
    ask_epoch_ends,
    ask_leader_ends,
    offsets_by,
)
from multicast.drivers.kafka.private import (
    IsolationLevel,
    MetadataRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
)
from multicast.drivers.kafka.reader import KafkaPythonReader
from multicast.drivers.kafka.watcher import KafkaPythonWatcher
from multicast.drivers.protocol import (
    IN_FLIGHT_BYTES_MAX,
    IN_FLIGHT_MAX,
    Beside,
    ChooseMember,
    LeaderEnd,
    MemberIdentity,
    Settled,
    TopicPartition,
)
from multicast.errors import AmcastError, Fenced, GroupInUse

_METADATA_VERSION_MIN = 10  # the first version of the Metadata request with topic IDs (KIP-516)
_DENIED = kafka_errors.TopicAuthorizationFailedError.errno
_NO_MEMBER = MemberIdentity(-1, "")  # as Kafka has it
_OF_OTHER_GENERATIONS = (
    kafka_errors.IllegalGenerationError,
    kafka_errors.RebalanceInProgressError,
    kafka_errors.UnknownMemberIdError,
)
_CommitTopic = OffsetCommitRequest.OffsetCommitRequestTopic
_FetchGroup = OffsetFetchRequest.OffsetFetchRequestGroup


class KafkaPythonDriver(ClosedAtEnd):
    """Access to one cluster. The constructor connects, or raises `ClusterUnreachable` in time.

    `request_timeout_s` bounds each request, `delivery_timeout_s` the time to an append's outcome.
    """

    def __init__(
        self,
        bootstrap: str,
        client: Mapping[str, str] | None = None,
        *,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
        delivery_timeout_s: float = DELIVERY_TIMEOUT_S,
    ) -> None:
        self._bootstrap = bootstrap
        self._client = dict(client or {})
        self._timeout_s = request_timeout_s
        self._delivery_timeout_s = delivery_timeout_s
        self._connection = self._open_connection()

    @property
    def name(self) -> str:
        """Return the driver's name."""
        return "kafka-python"

    def appender(
        self,
        *,
        beside: Beside | None = None,
        settled: Settled | None = None,
        linger_ms: int = 0,
        compression: str = "none",
        batch_bytes: int | None = None,
        in_flight_max: int = IN_FLIGHT_MAX,
        in_flight_bytes_max: int = IN_FLIGHT_BYTES_MAX,
    ) -> KafkaPythonJointAppender:
        """Open an appender with its own producer ID and sockets; see `Driver.appender`.

        The limits bound the memory of appends in flight: above them `append` raises `BufferFull`.
        """
        check_linger(linger_ms, self._delivery_timeout_s)
        return KafkaPythonJointAppender(
            self._open_connection,
            timeout_s=self._timeout_s,
            delivery_timeout_s=self._delivery_timeout_s,
            beside=beside,
            settled=settled,
            linger_ms=linger_ms,
            compression=compression,
            batch_bytes=batch_bytes,
            in_flight_max=in_flight_max,
            in_flight_bytes_max=in_flight_bytes_max,
        )

    def reader(
        self, starts: Mapping[TopicPartition, int], *, wait_s: float | None = None
    ) -> KafkaPythonReader:
        """Open a reader with its own connections; it fetches in `poll` only."""
        return KafkaPythonReader(self._open_connection, starts, wait_s=wait_s)

    def column_reader(self, starts: Mapping[TopicPartition, int]) -> KafkaPythonReader:
        """Open a column reader with its own connections; needs numpy."""
        from multicast.drivers.kafka.column_reader import (  # noqa: PLC0415 - an extra
            KafkaPythonColumnReader,
        )

        return KafkaPythonColumnReader(self._open_connection, starts)

    def watcher(
        self, starts: Mapping[TopicPartition, int], *, sentinel_topic: str | None = None
    ) -> KafkaPythonWatcher:
        """Open a watcher with its own connections."""
        return KafkaPythonWatcher(self._open_connection, starts, sentinel_topic=sentinel_topic)

    def log_start_offsets(
        self, partitions: Sequence[TopicPartition], *, timeout_s: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return the oldest retained offsets."""
        return self._offsets(dict.fromkeys(partitions, EARLIEST), timeout_s=timeout_s)

    def last_stable_offsets(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Return the last stable offsets."""
        return self._offsets(dict.fromkeys(partitions, LATEST))

    def high_watermarks(
        self, partitions: Sequence[TopicPartition], *, timeout_s: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return the offsets below which all in-sync replicas store the log."""
        wanted = dict.fromkeys(partitions, LATEST)
        return self._offsets(wanted, IsolationLevel.READ_UNCOMMITTED, timeout_s)

    def leader_ends(
        self, partitions: Sequence[TopicPartition], *, timeout_s: float | None = None
    ) -> dict[TopicPartition, LeaderEnd]:
        """Return the last stable offsets with their leaders' epochs."""
        return ask_leader_ends(self._connection, partitions, timeout_s)

    def epoch_ends(
        self, epochs: Mapping[TopicPartition, int], *, timeout_s: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return where the records of leader epochs up to these end; -1: not known."""
        return ask_epoch_ends(self._connection, epochs, timeout_s)

    def offsets_at(
        self, partitions: Sequence[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        """Return the first offsets with a timestamp at or after that time, else the ends."""
        # The ends come first: a record that arrives between the two requests is at or above the end
        # that is returned, so it is not skipped.
        ends = self.last_stable_offsets(partitions)
        offsets = self._offsets(dict.fromkeys(partitions, max(0, timestamp_ms)))
        return {
            partition: offset if offset >= 0 else ends[partition]
            for partition, offset in offsets.items()
        }

    def topic_ids(self, topics: Sequence[str], *, timeout_s: float | None = None) -> dict[str, str]:
        """Return the IDs of the topics that exist, as one of the brokers knows them."""
        described = self._connection.run(self._describe, topics, timeout_s=timeout_s)
        return {name: str(topic.topic_id) for name, topic in described.items()}

    def partition_counts(self, topics: Sequence[str]) -> dict[str, int]:
        """Return how many Kafka partitions each topic has, as one of the brokers knows them."""
        described = self._connection.run(self._describe, topics)
        return {name: len(topic.partitions) for name, topic in described.items()}

    def commit(
        self,
        group: str,
        offsets: Mapping[TopicPartition, tuple[int, str]],
        member: MemberIdentity | None = None,
    ) -> None:
        """Store offsets and texts under a consumer group, as its member or if it has none."""
        if offsets:
            self._connection.run(self._commit, group, offsets, member)

    def member(
        self, group: str, partitions: Sequence[TopicPartition], choose: ChooseMember
    ) -> ChosenMember:
        """Make a member of a group, with its own connections."""
        place = self._bootstrap, self._client
        return ChosenMember(*place, group=group, partitions=partitions, choose=choose)

    def committed(
        self, group: str, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, tuple[int, str]]:
        """Return what `commit` stored."""
        stored: dict[TopicPartition, tuple[int, str]] = {}
        if partitions:
            stored = self._connection.run(self._committed, group, partitions)
        return stored

    def close(self) -> None:
        """Close the driver's own connections."""
        self._connection.close()

    def _open_connection(self) -> Connection:
        return Connection(self._bootstrap, self._client, timeout_s=self._timeout_s)

    def _offsets(
        self,
        wanted: Mapping[TopicPartition, int],
        isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
        timeout_s: float | None = None,
    ) -> dict[TopicPartition, int]:
        offsets: dict[TopicPartition, int] = self._connection.run(
            offsets_by, self._connection, wanted, isolation, timeout_s=timeout_s
        )
        return offsets

    async def _describe(self, topics: Sequence[str]) -> dict[str, Any]:
        if not topics:  # a request for none is one for all
            return {}
        wanted = [
            MetadataRequest.MetadataRequestTopic(topic_id=None, name=topic) for topic in topics
        ]
        request = MetadataRequest(
            topics=wanted, allow_auto_topic_creation=False, min_version=_METADATA_VERSION_MIN
        )
        response, deadline = None, self._connection.deadline
        while response is None:
            try:
                response = await self._connection.manager.send(request)
            except kafka_errors.AuthorizationError:
                raise
            except (kafka_errors.KafkaError, OSError):
                await self._connection.pause_before_retry(deadline)
        described = {}
        for topic in response.topics:
            error = kafka_errors.for_code(topic.error_code)
            if issubclass(error, kafka_errors.AuthorizationError):
                raise self._connection.access.lacks("Describe", "topic", topic.name)
            if error is not kafka_errors.UnknownTopicOrPartitionError:
                # Other errors, such as a missing leader, concern a topic that exists.
                described[topic.name] = topic
        return described

    async def _commit(
        self,
        group: str,
        offsets: Mapping[TopicPartition, tuple[int, str]],
        member: MemberIdentity | None,
    ) -> None:
        by_topic: dict[str, list[Any]] = defaultdict(list)
        for partition, (offset, text) in offsets.items():
            by_topic[partition.topic].append(
                _CommitTopic.OffsetCommitRequestPartition(
                    partition_index=partition.partition,
                    committed_offset=offset,
                    committed_leader_epoch=-1,
                    committed_metadata=text,
                )
            )
        topics = [
            _CommitTopic(name=name, partitions=partitions) for name, partitions in by_topic.items()
        ]
        as_member = member or _NO_MEMBER

        def request() -> Any:
            return OffsetCommitRequest(
                group_id=group,
                generation_id_or_member_epoch=as_member.generation,
                member_id=as_member.member,
                group_instance_id=as_member.instance,
                retention_time_ms=-1,
                topics=topics,
                max_version=8,
            )

        def errors(response: Any) -> list[tuple[str, int]]:
            return [(t.name, p.error_code) for t in response.topics for p in t.partitions]

        await self._ask_coordinator(group, request, errors, needs="Read", once=member is not None)

    async def _committed(
        self, group: str, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, tuple[int, str]]:
        by_topic: dict[str, list[int]] = defaultdict(list)
        for partition in partitions:
            by_topic[partition.topic].append(partition.partition)
        # A coordinator (Kafka 4) that has just taken over tells what it knows to be replicated,
        # which may be less than the last commit acknowledged. Asked for stable offsets, it waits,
        # for 5 s at most. Where a commit is on its way, or held open by a transaction, the one
        # before is the answer: that is asked for once.
        stable = True

        def request() -> Any:
            nonlocal stable
            asked, stable = stable, True
            topics = [
                _FetchGroup.OffsetFetchRequestTopics(name=name, partition_indexes=numbers)
                for name, numbers in by_topic.items()
            ]
            return OffsetFetchRequest(
                groups=[_FetchGroup(group_id=group, topics=topics)],
                require_stable=asked,
                min_version=8,
                max_version=9,
            )

        def errors(response: Any) -> list[tuple[str, int]]:
            nonlocal stable
            topics = [topic for answer in response.groups for topic in answer.topics]
            found = [
                ("", response.error_code or 0),
                *(("", answer.error_code) for answer in response.groups),
                *((topic.name, p.error_code) for topic in topics for p in topic.partitions),
            ]
            unstable = kafka_errors.UnstableOffsetCommitError.errno
            if any(code == unstable for _, code in found):
                stable = False
            return found

        response = await self._ask_coordinator(group, request, errors, needs="Describe")
        return {
            TopicPartition(topic.name, partition.partition_index): (
                partition.committed_offset,
                (partition.metadata or "").removesuffix("\0"),  # confluent-kafka adds one
            )
            for answer in response.groups
            for topic in answer.topics
            for partition in topic.partitions
            if partition.committed_offset >= 0
        }

    async def _ask_coordinator(
        self, group: str, request: Any, errors: Any, *, needs: str, once: bool = False
    ) -> Any:
        """Repeat a request to the group's coordinator until no retriable error is left.

        `errors` gives the error codes of an answer, each with its topic. `needs` is the right that
        the request takes on the group and on the topics. With `once` it is sent at most once.
        """
        manager, deadline = self._connection.manager, self._connection.deadline
        while True:
            sent = False
            try:
                node = await find_coordinator(self._connection, group)
                sent = once
                response = await manager.send(request(), node_id=node)
                failed = [(topic, code) for topic, code in errors(response) if code]
                denied = dict.fromkeys(topic for topic, code in failed if code == _DENIED)
                if denied:
                    raise self._connection.access.lacks(needs, "topic", ", ".join(denied))
                if failed:
                    raise kafka_errors.for_code(failed[0][1])
            except kafka_errors.AuthorizationError as error:
                raise self._connection.access.lacks(needs, "group", group) from error
            except (kafka_errors.KafkaError, OSError) as error:
                _refuse(group, error)
                if sent:
                    raise self._connection.wrapped(error) from error
                await self._connection.pause_before_retry(deadline)
            else:
                return response


def _refuse(group: str, error: BaseException) -> None:
    """Raise what the brokers' answer means, unless it may pass."""
    if isinstance(error, _OF_OTHER_GENERATIONS):
        raise GroupInUse(
            f"group {group} has an active consumer, and nobody else may commit; stop that one, or "
            f"give this consumer a group of its own (docs/groups.md)"
        ) from error
    if isinstance(error, kafka_errors.FencedInstanceIdError):
        raise Fenced(f"another process is this member of group {group} now") from error
    if not (getattr(error, "retriable", True) or isinstance(error, OSError)):
        raise AmcastError(f"The brokers refused the offsets of group {group}: {error}.") from error
