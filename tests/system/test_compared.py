"""docs/compared.md: what it says of the three clients that are installed here, asked of them."""

import inspect
import re
from importlib.metadata import version
from pathlib import Path

import aiokafka
import aiokafka.admin
import confluent_kafka
import confluent_kafka.admin
import confluent_kafka.aio
import kafka
import pytest

import multicast

PAGE = Path(__file__).parents[2] / "docs" / "compared.md"
PRODUCERS = (kafka.KafkaProducer, confluent_kafka.Producer, aiokafka.AIOKafkaProducer)
CONSUMERS = (kafka.KafkaConsumer, confluent_kafka.Consumer, aiokafka.AIOKafkaConsumer)


def rows():
    """The cells of each row by its first cell, without marks of notes: amcast, then the others."""
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line[:2] == "| "]
    cells = [
        [re.sub("[¹²³⁴⁵⁶⁷⁸⁹]", "", cell).strip() for cell in line.split("|")] for line in lines
    ]
    return {first: others for _, first, *others, _ in cells}


def methods(classes, *names):
    return [all(hasattr(each, name) for name in names) for each in classes]


def options(*names):
    """Which clients take these settings; None for confluent-kafka, whose are librdkafka's."""
    taken = (
        kafka.KafkaProducer.DEFAULT_CONFIG,
        inspect.signature(aiokafka.AIOKafkaProducer.__init__).parameters,
    )
    ours, theirs = (all(name in each for name in names) for each in taken)
    return [ours, None, theirs]


def awaits(*functions):
    return [inspect.iscoroutinefunction(function) for function in functions]


PRODUCE = [each.send if hasattr(each, "send") else each.produce for each in PRODUCERS]
# By row: what kafka-python, confluent-kafka and aiokafka have, asked of them; None: not asked.
FOUND = {
    "synchronous producer and consumer": [not each for each in awaits(*PRODUCE)],
    "asyncio": awaits(PRODUCE[0], confluent_kafka.aio.AIOProducer.produce, PRODUCE[2]),
    "compression, linger, batch size": options("compression_type", "linger_ms"),
    "OAuth with a function of the application": options("sasl_oauth_token_provider"),
    "idempotent producer": options("enable_idempotence"),
    "Kafka transactions of one's own": methods(
        PRODUCERS, "begin_transaction", "send_offsets_to_transaction", "commit_transaction"
    ),
    "consumer groups that share partitions": methods(CONSUMERS, "subscribe", "commit"),
    "seek: begin, end, time, exact place": methods(CONSUMERS, "seek", "offsets_for_times"),
    "pause and resume by hand": methods(CONSUMERS, "pause", "resume"),
    "callbacks of a rebalance": [
        hasattr(kafka, "ConsumerRebalanceListener"),
        None,
        hasattr(aiokafka, "ConsumerRebalanceListener"),
    ],
    # librdkafka's statistics come by a setting and a callback, not by a method.
    "metrics": [
        hasattr(kafka.KafkaConsumer, "metrics"),
        None,
        hasattr(aiokafka.AIOKafkaConsumer, "metrics"),
    ],
    "types for mypy and pyright (`py.typed`)": [
        (Path(each.__file__).parent / "py.typed").exists()
        for each in (kafka, confluent_kafka, aiokafka)
    ],
}


def test_the_page_is_about_the_versions_that_are_installed():
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    for name in ("kafka-python", "confluent-kafka", "aiokafka"):
        assert f"{name} {version(name)}" in text


@pytest.mark.parametrize("row", FOUND)
def test_what_a_client_has_is_there_and_what_it_lacks_is_not(row):
    said = rows()[row][1:4]
    for cell, found in zip(said, FOUND[row], strict=True):
        assert found is None or found == cell.startswith("has"), (row, said)


def test_what_amcast_lacks_by_the_page_it_does_not_have():
    said = {row: cells[0] for row, cells in rows().items()}
    for row, names in (
        ("Kafka transactions of one's own", ("begin_transaction",)),
        ("pause and resume by hand", ("pause", "resume")),
    ):
        assert said[row].startswith("lacks")
        assert methods((multicast.Producer, multicast.Consumer), *names) == [False, False]
