"""What leaders say of logs: offsets, their epochs, and where those of earlier leaders ended.

Each leader is asked by itself, so one that does not answer hides no other's answer.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from kafka import errors as kafka_errors

from multicast.drivers.kafka.connection import Connection
from multicast.drivers.kafka.private import (
    IsolationLevel,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetForLeaderEpochRequest,
)
from multicast.drivers.protocol import LeaderEnd, TopicPartition
from multicast.errors import ClusterUnreachable

# Kafka's values for a ListOffsets request in place of a timestamp.
LATEST = -1
EARLIEST = -2

_T = TypeVar("_T")
_WITH_EPOCH = 4  # the first version of the ListOffsets request whose answer has a leader epoch
_UNKNOWN = -1  # of an epoch, or an end
_CONSUMER = -1  # a replica's number: none
_Partition = ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition
_EpochTopic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
_EpochPartition = _EpochTopic.OffsetForLeaderPartition


class _Question(NamedTuple, Generic[_T]):
    """Makes the request to a leader; reads of its answer: partition, error code, what it says."""

    request: Callable[[Mapping[TopicPartition, int]], Any]
    read: Callable[[Any], Iterable[tuple[TopicPartition, int, _T]]]


async def offsets_by(
    connection: Connection,
    wanted: Mapping[TopicPartition, int],
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
) -> dict[TopicPartition, int]:
    """Get offsets by time in ms (or LATEST, EARLIEST) until all leaders answer; -1 is none."""
    answers: dict[TopicPartition, LeaderEnd] = {}
    await _ask(_offsets(isolation), connection, wanted, answers)
    return {log: answers[log].end for log in wanted}


async def ends_now(
    connection: Connection, logs: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """Ask once for last stable offsets; leave out logs without a leader or whose leader fails."""
    answers: dict[TopicPartition, LeaderEnd] = {}
    await _ask_once(_offsets(), connection, dict.fromkeys(logs, LATEST), answers)
    return {log: said.end for log, said in answers.items()}


async def ends_led_by(connection: Connection, node: int, topic: str) -> dict[TopicPartition, int]:
    """Return the ends of a topic's partitions that a broker leads; empty if it is missing."""
    wanted = MetadataRequest.MetadataRequestTopic(name=topic)
    request = MetadataRequest(topics=[wanted], allow_auto_topic_creation=False, min_version=4)
    response = await connection.manager.send(request, node)
    led = {
        TopicPartition(topic, partition.partition_index): LATEST
        for metadata in response.topics
        for partition in metadata.partitions
        if partition.leader_id == node
    }
    answers = await _ask_leader(connection, node, _offsets(), led) if led else {}
    return {log: said.end for log, said in answers.items()}


def ask_leader_ends(
    connection: Connection, partitions: Sequence[TopicPartition], timeout_s: float | None
) -> dict[TopicPartition, LeaderEnd]:
    """Ask for the last stable offsets and the leaders' epochs (`Driver.leader_ends`)."""
    return _run(connection, timeout_s, partial(_ask, _offsets()), dict.fromkeys(partitions, LATEST))


def ask_epoch_ends(
    connection: Connection, epochs: Mapping[TopicPartition, int], timeout_s: float | None
) -> dict[TopicPartition, int]:
    """Ask where the records of leader epochs end (`Driver.epoch_ends`)."""
    return _run(connection, timeout_s, _ask_epochs, epochs)


def _run(
    connection: Connection,
    timeout_s: float | None,
    ask: Callable[..., Any],
    wanted: Mapping[TopicPartition, int],
) -> dict[TopicPartition, Any]:
    """Have `ask` fill a dict; what is in it when the time is up is the answer."""
    answers: dict[TopicPartition, Any] = {}
    if wanted:
        try:
            connection.run(ask, connection, wanted, answers, timeout_s=timeout_s)
        except ClusterUnreachable:
            if not answers:
                raise
    return {partition: answers[partition] for partition in wanted if partition in answers}


async def _ask_epochs(
    connection: Connection, epochs: Mapping[TopicPartition, int], answers: dict[TopicPartition, int]
) -> None:
    """Ask for all, and then once more for what is unknown: perhaps another one leads by now."""
    deadline = connection.deadline
    await _ask(_EPOCHS, connection, epochs, answers)
    unknown = {log: epochs[log] for log, end in answers.items() if end == _UNKNOWN}
    if unknown:
        for log in unknown:
            del answers[log]
        await connection.look_up()
        await _ask(_EPOCHS, connection, unknown, answers, deadline)


async def _ask(
    question: _Question[_T],
    connection: Connection,
    wanted: Mapping[TopicPartition, int],
    answers: dict[TopicPartition, _T],
    deadline: float | None = None,
) -> None:
    """Ask the leaders until all have answered; None: until the deadline of this `run`."""
    deadline = connection.deadline if deadline is None else deadline
    began = time.monotonic()
    while missing := {log: each for log, each in wanted.items() if log not in answers}:
        connection.raise_if_unknown(list(missing), since=began)
        await _ask_once(question, connection, missing, answers)
        if any(log not in answers for log in wanted):
            await connection.pause_before_retry(deadline)


async def _ask_once(
    question: _Question[_T],
    connection: Connection,
    wanted: Mapping[TopicPartition, int],
    answers: dict[TopicPartition, _T],
) -> None:
    """Ask each leader that is known."""
    asked = [
        connection.net.call_soon_with_future(
            _ask_leader, connection, node, question, {log: wanted[log] for log in led}
        )
        for node, led in (await connection.leaders(wanted)).items()
    ]
    for future in asked:
        future.add_callback(answers.update)
    for future in asked:
        await future


async def _ask_leader(
    connection: Connection, node: int, question: _Question[_T], wanted: Mapping[TopicPartition, int]
) -> dict[TopicPartition, _T]:
    """Give what one leader says; empty if it does not answer."""
    said = {}
    try:
        response = await connection.manager.send(question.request(wanted), node)
    except kafka_errors.AuthorizationError:
        raise
    except (kafka_errors.KafkaError, OSError):
        connection.cluster.request_update()
        return {}
    for partition, code, each in question.read(response):
        error = kafka_errors.for_code(code)
        if error is kafka_errors.NoError:
            said[partition] = each
        elif issubclass(error, kafka_errors.AuthorizationError):
            raise connection.access.lacks("Describe", "topic", partition.topic)
        else:
            connection.cluster.request_update()
    return said


def _read_ends(response: Any) -> Iterable[tuple[TopicPartition, int, LeaderEnd]]:
    for topic in response.topics:
        for each in topic.partitions:
            end = LeaderEnd(each.offset, each.leader_epoch)
            yield TopicPartition(topic.name, each.partition_index), each.error_code, end


def _epochs_request(epochs: Mapping[TopicPartition, int]) -> Any:
    by_topic: dict[str, list[Any]] = defaultdict(list)
    for log, epoch in epochs.items():
        by_topic[log.topic].append(
            _EpochPartition(
                partition=log.partition, current_leader_epoch=_UNKNOWN, leader_epoch=epoch
            )
        )
    return OffsetForLeaderEpochRequest(replica_id=_CONSUMER, topics=list(by_topic.items()))


def _read_epochs(response: Any) -> Iterable[tuple[TopicPartition, int, int]]:
    for topic in response.topics:
        for each in topic.partitions:
            yield TopicPartition(topic.topic, each.partition), each.error_code, each.end_offset


def _offsets(isolation: IsolationLevel = IsolationLevel.READ_COMMITTED) -> _Question[LeaderEnd]:
    def request(wanted: Mapping[TopicPartition, int]) -> Any:
        by_topic: dict[str, list[Any]] = defaultdict(list)
        for log, timestamp_ms in wanted.items():
            place = {"partition_index": log.partition, "current_leader_epoch": _UNKNOWN}
            by_topic[log.topic].append(_Partition(**place, timestamp=timestamp_ms))
        return ListOffsetsRequest(
            isolation_level=isolation, topics=list(by_topic.items()), min_version=_WITH_EPOCH
        )

    return _Question(request, _read_ends)


_EPOCHS = _Question(_epochs_request, _read_epochs)
