"""The kafka-python driver: readers, watchers and appenders, and questions to the cluster.

Each reader and watcher has connections of its own: a broker answers the requests of a connection
one after the other, so a question must not queue behind a long poll.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Self

from kafka import errors as kafka_errors
from kafka.protocol.consumer import IsolationLevel, OffsetCommitRequest, OffsetFetchRequest
from kafka.protocol.metadata import MetadataRequest

from multicast.drivers.kafka_python.appender import KafkaPythonAppender
from multicast.drivers.kafka_python.connection import EARLIEST, LATEST, RETRY_S, Connection
from multicast.drivers.kafka_python.direct_appender import KafkaPythonDirectAppender
from multicast.drivers.kafka_python.group_member import find_coordinator
from multicast.drivers.kafka_python.reader import KafkaPythonReader
from multicast.drivers.kafka_python.watcher import KafkaPythonWatcher
from multicast.drivers.protocol import TopicPartition
from multicast.errors import AmcastError

_METADATA_WITH_IDS = 10  # the first version that tells topics' ids
_CommitTopic = OffsetCommitRequest.OffsetCommitRequestTopic
_FetchGroup = OffsetFetchRequest.OffsetFetchRequestGroup


class KafkaPythonDriver:
    """A way to one cluster; the constructor finds it, or raises `ClusterUnreachable` in time."""

    def __init__(
        self,
        bootstrap: str,
        client: Mapping[str, str] | None = None,
        *,
        request_timeout_s: float = 10.0,
        delivery_timeout_s: float = 30.0,
    ) -> None:
        self._bootstrap = bootstrap
        self._client = dict(client or {})
        self._timeout_s = request_timeout_s
        self._delivery_timeout_s = delivery_timeout_s
        self._connection = self._open_connection()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def name(self) -> str:
        """The driver's name."""
        return "kafka-python"

    def appender(
        self,
        *,
        linger_ms: int = 0,
        in_flight_max: int = 100_000,
        in_flight_bytes_max: int = 64 * 1024 * 1024,
    ) -> KafkaPythonAppender:
        """Open a writer of its own; a linger trades latency for larger batches."""
        return KafkaPythonAppender(
            self._bootstrap,
            self._client,
            timeout_s=self._timeout_s,
            delivery_timeout_s=self._delivery_timeout_s,
            linger_ms=linger_ms,
            in_flight_max=in_flight_max,
            in_flight_bytes_max=in_flight_bytes_max,
        )

    def reader(self, starts: Mapping[TopicPartition, int]) -> KafkaPythonReader:
        """Open a reader of its own."""
        return KafkaPythonReader(self._open_connection, starts)

    def watcher(
        self, starts: Mapping[TopicPartition, int], *, sentinel_topic: str | None = None
    ) -> KafkaPythonWatcher:
        """Open a watcher of its own."""
        return KafkaPythonWatcher(self._open_connection, starts, sentinel_topic=sentinel_topic)

    def direct_appender(self) -> KafkaPythonDirectAppender:
        """Open what appends without a detour."""
        return KafkaPythonDirectAppender(self._open_connection, timeout_s=self._timeout_s)

    def log_start_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Ask for the oldest retained offsets."""
        return self._offsets(dict.fromkeys(partitions, EARLIEST))

    def last_stable_offsets(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Ask for the last stable offsets."""
        return self._offsets(dict.fromkeys(partitions, LATEST))

    def high_watermarks(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Ask for the offsets that the next appends will get."""
        return self._offsets(dict.fromkeys(partitions, LATEST), IsolationLevel.READ_UNCOMMITTED)

    def offsets_at(
        self, partitions: Sequence[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        """Ask for the first offsets at or after that time; the end where there is none."""
        # Asked first: a record that comes in between then is at most passed over as too young.
        ends = self.last_stable_offsets(partitions)
        found = self._offsets(dict.fromkeys(partitions, max(0, timestamp_ms)))
        return {one: offset if offset >= 0 else ends[one] for one, offset in found.items()}

    def topic_ids(self, topics: Sequence[str]) -> dict[str, str]:
        """Give the ids of those topics that exist, as one of the brokers knows them."""
        ids: dict[str, str] = {}
        if topics:
            ids = self._connection.run(self._topic_ids, topics)
        return ids

    def commit(self, group: str, offsets: Mapping[TopicPartition, tuple[int, str]]) -> None:
        """Store offsets and texts as a consumer group that nobody has joined."""
        if offsets:
            self._connection.run(self._commit, group, offsets)

    def committed(
        self, group: str, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, tuple[int, str]]:
        """Read back what `commit` stored."""
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
    ) -> dict[TopicPartition, int]:
        found: dict[TopicPartition, int] = self._connection.run(
            self._connection.list_offsets, wanted, isolation
        )
        return {at: found[at] for at in wanted}

    async def _topic_ids(self, topics: Sequence[str]) -> dict[str, str]:
        asked = [
            MetadataRequest.MetadataRequestTopic(topic_id=None, name=topic) for topic in topics
        ]
        request = MetadataRequest(
            topics=asked, allow_auto_topic_creation=False, min_version=_METADATA_WITH_IDS
        )
        response = None
        while response is None:
            try:
                response = await self._connection.manager.send(request)
            except kafka_errors.AuthorizationError:
                raise
            except (kafka_errors.KafkaError, OSError):
                await self._connection.net.sleep(RETRY_S)
        ids = {}
        for topic in response.topics:
            error = kafka_errors.for_code(topic.error_code)
            if issubclass(error, kafka_errors.AuthorizationError):
                raise self._connection.access.lacks("Describe", "topic", topic.name)
            if error is not kafka_errors.UnknownTopicOrPartitionError:
                # A topic whose partitions have no leader now exists all the same.
                ids[topic.name] = str(topic.topic_id)
        return ids

    async def _commit(self, group: str, offsets: Mapping[TopicPartition, tuple[int, str]]) -> None:
        by_topic: dict[str, list[Any]] = defaultdict(list)
        for at, (offset, text) in offsets.items():
            by_topic[at.topic].append(
                _CommitTopic.OffsetCommitRequestPartition(
                    partition_index=at.partition,
                    committed_offset=offset,
                    committed_leader_epoch=-1,
                    committed_metadata=text,
                )
            )
        topics = [_CommitTopic(name=name, partitions=some) for name, some in by_topic.items()]

        def request() -> Any:
            return OffsetCommitRequest(
                group_id=group,
                generation_id_or_member_epoch=-1,
                member_id="",
                group_instance_id=None,
                retention_time_ms=-1,
                topics=topics,
                max_version=8,
            )

        def errors(response: Any) -> list[int]:
            return [one.error_code for topic in response.topics for one in topic.partitions]

        await self._ask_coordinator(group, request, errors, needs="Read", topics=by_topic)

    async def _committed(
        self, group: str, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, tuple[int, str]]:
        by_topic: dict[str, list[int]] = defaultdict(list)
        for one in partitions:
            by_topic[one.topic].append(one.partition)

        def request() -> Any:
            topics = [
                _FetchGroup.OffsetFetchRequestTopics(name=name, partition_indexes=some)
                for name, some in by_topic.items()
            ]
            return OffsetFetchRequest(
                groups=[_FetchGroup(group_id=group, topics=topics)],
                require_stable=False,
                min_version=8,
                max_version=9,
            )

        def errors(response: Any) -> list[int]:
            return [
                response.error_code or 0,
                *(one.error_code for one in response.groups),
                *(p.error_code for g in response.groups for t in g.topics for p in t.partitions),
            ]

        response = await self._ask_coordinator(
            group, request, errors, needs="Describe", topics=by_topic
        )
        return {
            TopicPartition(topic.name, one.partition_index): (
                one.committed_offset,
                one.metadata or "",
            )
            for one_group in response.groups
            for topic in one_group.topics
            for one in topic.partitions
            if one.committed_offset >= 0
        }

    async def _ask_coordinator(
        self, group: str, request: Any, errors: Any, *, needs: str, topics: Collection[str]
    ) -> Any:
        """Send to the group's coordinator until it answers without a passing error.

        `needs` is the right on the group, and on the topics, that the request takes.
        """
        manager = self._connection.manager
        while True:
            try:
                node = await find_coordinator(self._connection, group)
                response = await manager.send(request(), node_id=node)
                for code in errors(response):
                    if code:
                        raise kafka_errors.for_code(code)
            except kafka_errors.TopicAuthorizationFailedError as error:
                access = self._connection.access
                raise access.lacks(needs, "topic", ", ".join(topics)) from error
            except kafka_errors.AuthorizationError as error:
                raise self._connection.access.lacks(needs, "group", group) from error
            except (kafka_errors.KafkaError, OSError) as error:
                passing = getattr(error, "retriable", True) or isinstance(error, OSError)
                if not passing:
                    raise AmcastError(f"Offsets of group {group} were refused: {error}.") from error
                await self._connection.net.sleep(RETRY_S)
            else:
                return response
