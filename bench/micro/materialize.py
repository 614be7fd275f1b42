"""Measures how fast a copier copies a backlog, beside a plain consume-produce loop, by turns.

    python -m bench.micro.materialize [--messages 500000] [--bytes 100] [--rounds 3]

    copier      `amcast materialize`
    plain       reads the two logs in any order, and copies key, value, time and headers
    replicator  the same, and adds three headers, as a copier does: where the message is from

All arms use librdkafka's clients, and transactions of as many messages. A turn is timed from the
first read on; a ratio is the copier's rate over another arm's of the same round.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import confluent_kafka

from bench.harness import figures
from bench.harness.rig import Rig, standing
from multicast.cli.materialize import GC_THRESHOLD
from multicast.drivers.kafka import Admin, TopicSpec
from multicast.materializing.materialize import MESSAGES_MAX, materialize
from multicast.producing.producer import Producer

_MODULE = "bench.micro.materialize"
_PARTITIONS = 2  # the fewest whose order a plain loop does not have
_POLL_MAX = 5000  # as the copier's
_TIMEOUT_S = 60.0


def copier(rig: Rig, target: str) -> float:
    """Copy the backlog; return the seconds that it took once the consumer was open."""
    began: list[float] = []
    materialize(
        rig.bootstrap,
        topic=rig.topic,
        name="C1",
        to=target,
        until_end=True,
        opened=lambda *_: began.append(time.monotonic()),
    )
    return time.monotonic() - began[0]


def plain(rig: Rig, target: str, messages: int, *, adds_headers: bool) -> float:
    """Copy the backlog as any Kafka program does; return the seconds that it took."""
    with Admin(rig.bootstrap) as admin:
        admin.create_topics({target: TopicSpec(1)})
    settings = {"bootstrap.servers": rig.bootstrap}
    producer: Any = confluent_kafka.Producer(
        {**settings, "transactional.id": target, "linger.ms": 20}
    )
    reading = {
        "group.id": target,
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "fetch.queue.backoff.ms": 2,
        "queued.min.messages": 20_000,
    }
    consumer: Any = confluent_kafka.Consumer({**settings, **reading})
    with closing(consumer):
        producer.init_transactions()
        consumer.assign([confluent_kafka.TopicPartition(*each, 0) for each in rig.partitions])
        copied, began = 0, time.monotonic()
        while copied < messages:
            producer.begin_transaction()
            count = 0
            while count < MESSAGES_MAX and copied + count < messages:
                for message in consumer.consume(_POLL_MAX, 0.05):
                    headers = message.headers() or []
                    if adds_headers:
                        headers += [
                            ("source.topic", message.topic().encode()),
                            ("source.partition", b"%d" % message.partition()),
                            ("source.offset", b"%d" % message.offset()),
                        ]
                    known = message.value(), message.key(), 0
                    producer.produce(
                        target, *known, timestamp=message.timestamp()[1], headers=headers
                    )
                    count += 1
            positions = consumer.position(consumer.assignment())
            producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata())
            producer.commit_transaction()
            copied += count
        return time.monotonic() - began


def measure(rig: Rig, *, messages: int, message_bytes: int, rounds: int) -> dict[str, object]:
    """Fill the logs, order them, and let both arms copy, by turns; return the figures."""
    with rig.collectors() as collectors:
        collectors.wait_healthy()
        figures.progress(f"{messages} messages")
        with Producer(topic=rig.topic, driver=rig.driver) as producer:
            some = [bytes(message_bytes)] * 1000
            names = [log.name for log in rig.plan.logs]
            for turn in range(messages // len(some)):
                producer.multicast_all(some, to={names[turn % _PARTITIONS]})
            for name in names:
                producer.multicast(b"", to={name}).ordered(_TIMEOUT_S)
        sent = messages + _PARTITIONS
        rates: dict[str, list[float]] = {"copier": [], "plain": [], "replicator": []}
        arms: dict[str, Callable[[str], float]] = {
            "copier": partial(copier, rig),
            "plain": partial(plain, rig, messages=sent, adds_headers=False),
            "replicator": partial(plain, rig, messages=sent, adds_headers=True),
        }
        for turn in range(rounds):
            for name in (*arms,) if turn % 2 else reversed(arms):
                figures.progress(f"{name}, round {turn + 1}")
                rates[name].append(round(messages / arms[name](f"{name}-{turn}")))
    ratios = {
        f"median_ratio_{arm}": statistics.median(
            mine / its for mine, its in zip(rates["copier"], rates[arm], strict=True)
        )
        for arm in ("plain", "replicator")
    }
    return {**rates, **ratios}


def main(arguments: Sequence[str]) -> None:
    """Measure once, and print the figures."""
    parser = figures.parser(_MODULE, __doc__)
    parser.add_argument("--messages", type=int, default=500_000)
    parser.add_argument("--bytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    gc.set_threshold(GC_THRESHOLD)  # as the command's, for all arms
    with standing(_PARTITIONS) as rig:
        sizes = {"messages": options.messages, "message_bytes": options.bytes}
        measured = measure(rig, rounds=options.rounds, **sizes)
        document = figures.document(_MODULE, measured, kafka=rig.kafka, arguments=arguments)
    figures.show(document, options.output)


if __name__ == "__main__":
    main(sys.argv[1:])
