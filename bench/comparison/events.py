"""Events of a run: JSON records about each message, which the clients write to Kafka.

The topic is RUN.events. Its partition 0 holds a *description* of each arm, and an *end* when the
arm is over; the other partitions hold the events. All times are nanoseconds of one machine's
monotonic clock, taken by the clients during the measurement; a description gives the offset to the
time since 1970. Events are written between the rounds, so that they do not disturb a measurement.

    every event   run, arm, topology ("tree-4": kind and size), r (the poster's label), role, round,
                  number (the message's index in the round), measured (false in the warm-up),
                  log and offset (the message ID), to (its partitions), size (bytes), intended, sent
    producer      accepted: when its acknowledgement came
    consumer      consumer, instance, sequence (rises by one with each delivery of an instance),
                  delivered (when the poll with the message returned)

Invariant: intended <= sent <= accepted, and sent <= delivered.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from bench.comparison.layouts import Layout
from bench.comparison.stamps import DeliveryStamp, unpack
from bench.comparison.workload import Workload
from bench.harness.rig import store
from multicast.drivers.protocol import Driver, TopicPartition

PARTITIONS = 5  # one for descriptions; four for events, so that Spark reads them in parallel
DESCRIBED = 0  # the Kafka partition of descriptions
_CHUNK_EVENTS = 500  # in a row to one Kafka partition, so that batches are full
_STATEMENT_S = 30.0  # to store a description


class Accepted(NamedTuple):
    """What a producer notes of one append: the payload's stamp, times, and the offset."""

    stamp: bytes
    size: int
    began: int
    acknowledged: int
    offset: int


def events_topic(run: str) -> str:
    """Return the Kafka topic of a run's events."""
    return f"{run}.events"


def describe(run: str, arm: str, workload: Workload, layout: Layout, topic: str) -> dict[str, Any]:
    """Make the description of an arm; it reads this machine's clock offset now."""
    monotonic = time.monotonic_ns()
    return {
        "schema_version": 1,
        **_constants(run, arm, workload),
        "topic": topic,
        "planned": layout.plan is not None,
        "size": workload.message_bytes,
        "clock_offset_ns": time.time_ns() - monotonic,
        "consumers": [
            {
                "name": reading.name,
                "interest": [layout.partitions[number] for number in reading.interest],
            }
            for reading in layout.consumers
        ],
    }


def write_statement(driver: Driver, run: str, key: str, document: Mapping[str, Any]) -> None:
    """Write a description (key "arm") or an end (key "end"); raises `AmcastError`."""
    with_key = {"kind": key, **document}
    place = TopicPartition(events_topic(run), DESCRIBED)
    store(driver, [(place, [_dump(with_key)])], timeout_s=_STATEMENT_S)


class EventLog:
    """Formats and writes the events of one client."""

    def __init__(
        self, driver: Driver, run: str, arm: str, workload: Workload, layout: Layout
    ) -> None:
        self._driver = driver
        self._topic = events_topic(run)
        self._names = layout.partitions
        self._one_partition = arm == "one-partition"
        self._warm_up = workload.warm_up
        # The common fields of a client's events are formatted only once.
        self._lead = _dump(_constants(run, arm, workload))[:-1].decode()
        self._sequence = 0
        self._chunks = 0

    def write_accepted(
        self, number: int, accepted: Sequence[Accepted], *, timeout_s: float
    ) -> None:
        """Write the events of the producer's appends of a round."""
        lead = f'{self._lead},"role":"producer","round":{number},'

        def lines() -> Iterator[str]:
            for append in accepted:
                intended, _, round_, index, log = unpack(append.stamp)
                if round_ == number:
                    yield (
                        f"{lead}{self._message(log, append.offset, index, append.size)},"
                        f'"intended":{intended},"sent":{append.began},'
                        f'"accepted":{append.acknowledged}}}'
                    )

        self._write(lines(), timeout_s)

    def write_delivered(
        self, number: int, consumer: str, delivered: Sequence[DeliveryStamp], *, timeout_s: float
    ) -> None:
        """Write the events of a consumer's deliveries of a round."""
        named = json.dumps(consumer)
        lead = f'{self._lead},"role":"consumer","round":{number},"consumer":{named},"instance":"a",'
        begin, self._sequence = self._sequence, self._sequence + len(delivered)

        def lines() -> Iterator[str]:
            for sequence, delivery in enumerate(delivered, start=begin):
                yield (
                    f"{lead}{self._message(delivery.log, *delivery.place)},"
                    f'"intended":{delivery.intended},"sent":{delivery.sent},'
                    f'"delivered":{delivery.delivered},"sequence":{sequence}}}'
                )

        self._write(lines(), timeout_s)

    def _message(self, log: int, offset: int, number: int, size: int) -> str:
        stored_in = self._names[0 if self._one_partition else log]
        measured = "true" if number >= self._warm_up else "false"
        return (
            f'"number":{number},"measured":{measured},"log":"{stored_in}","offset":{offset},'
            f'"to":["{self._names[log]}"],"size":{size}'
        )

    def _write(self, lines: Iterable[str], timeout_s: float) -> None:
        encoded = map(str.encode, lines)

        def chunks() -> Iterator[tuple[TopicPartition, Sequence[bytes]]]:
            while chunk := list(islice(encoded, _CHUNK_EVENTS)):
                yield TopicPartition(self._topic, 1 + self._chunks % (PARTITIONS - 1)), chunk
                self._chunks += 1

        store(self._driver, chunks(), timeout_s=timeout_s)


def _constants(run: str, arm: str, workload: Workload) -> dict[str, Any]:
    return {
        "run": run,
        "arm": arm,
        "topology": f"{workload.kind}-{workload.size}",
        "r": round(workload.label, 3),
    }


def _dump(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()
