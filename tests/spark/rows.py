"""A topic with all kinds of records, and its rows as a table and as a consumer delivers them."""

import random
from contextlib import suppress
from dataclasses import replace

import confluent_kafka
import pytest

from multicast.control import log_partition
from multicast.messages import epoch_header, skip_header
from tests.helpers.system import until

ON_SPARK = [
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.needs("jdk"),
    # pyspark leaves the sockets of its answers to the garbage collector.
    pytest.mark.filterwarnings(
        "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning",
        "ignore:unclosed <socket:ResourceWarning",
    ),
]
INTERESTS = {
    "topic": "A",
    "partitions": ["P1", "P2", "P3", "P4", "P5"],
    "destinations": [["P1", "P3"], ["P2", "P3", "P4"]],
    "consumer": [
        {"name": "C1", "interest": ["P1", "P2", "P3"]},
        {"name": "C2", "interest": ["P2", "P3", "P4"]},
        {"name": "C5", "interest": ["P5"]},
    ],
}
SETS = [["P1"], ["P2"], ["P3"], ["P4"], ["P5"], ["P1", "P3"], ["P2", "P3", "P4"], ["P2", "P4"]]


def table(session, topic, *, stream=False, **options):
    """Begin to read a topic; options by name, with `kafka_bootstrap_servers` already given."""
    reader = (session.readStream if stream else session.read).format("amcast")
    chosen = {"kafka.bootstrap.servers": topic.bootstrap, "topic": topic.topic, **options}
    return reader.options(**chosen)


def send(topic, count, *, seed=1):
    """Multicast numbered messages to random sets, covered ones too, with keys and headers."""
    rng = random.Random(seed)
    with topic.producer() as producer:
        receipts = [
            producer.multicast(
                None if number % 97 == 0 else b"%d-%d" % (seed, number),
                to=rng.choice(SETS),
                key=None if number % 3 else b"k%d" % (number % 7),
                headers=[("h", b"x"), ("n", None)] if number % 5 == 0 else (),
            )
            for number in range(count)
        ]
        for receipt in receipts:
            receipt.accepted(60)


def send_oddities(topic):
    """Append records that nobody delivers, or that look as if: skips, markers, transactions."""
    appender = topic.driver.appender()
    logs = {log.name: log for log in topic.plan.logs}
    for name, headers in (
        ("P1", [skip_header("P1")]),
        ("P2", [skip_header("P1")]),  # of another log: an ordinary message
        ("P3", [epoch_header("P3", 7)]),
        ("P5", [epoch_header("P5", 7)]),
        ("P5", [skip_header("P5")]),
        ("P1+P3", [("amcast.to", b"P1+P3|P1")]),
    ):
        appender.append(log_partition(logs[name]), b"odd", headers=headers, done=str)
    assert appender.flush(60)
    appender.close()
    for number, ends in enumerate(("commit_transaction", "abort_transaction")):
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": topic.bootstrap,
                "transactional.id": f"{topic.topic}-{number}",
                "log_level": 0,
            }
        )
        producer.init_transactions(60)
        producer.begin_transaction()
        for name in ("P1", "P2", "P5"):
            log = logs[name]
            producer.produce(log.topic, b"in " + ends.encode(), partition=log.partition)
        getattr(producer, ends)(60)
    # A broker answers before its markers are in the logs: an end that is taken now has not all.
    places = [log_partition(log) for log in logs.values()]
    driver = topic.driver
    until(lambda: driver.last_stable_offsets(places) == driver.high_watermarks(places), "markers")


def rows_of(messages):
    """The rows that deliveries of a plain consumer must be, without their positions."""
    return [
        (
            message.cursor.epoch,
            str(message.message_id),
            message.message_id.log,
            message.message_id.offset,
            list(message.to),
            message.key,
            message.payload,
            [tuple(pair) for pair in message.headers],
            message.timestamp_ms,
            str(replace(message.cursor, message=0)),
        )
        for message in messages
    ]


def in_order(frame):
    """Collect a table in delivery order; check that positions rise strictly; rows as `rows_of`."""
    rows = frame.orderBy("epoch", "position").collect()
    places = [(row.epoch, row.position) for row in rows]
    assert places == sorted(set(places))
    return [plain(row) for row in rows]


def plain(row):
    return (
        row["epoch"],
        row["message_id"],
        row["log"],
        row["offset"],
        row["to"],
        None if row["key"] is None else bytes(row["key"]),
        None if row["value"] is None else bytes(row["value"]),
        [(pair["key"], _bytes(pair["value"])) for pair in row["headers"]],
        round(row["timestamp"].timestamp() * 1000),
        row["cursor"],
    )


def _bytes(value):
    with suppress(TypeError):
        return bytes(value)
    return None
