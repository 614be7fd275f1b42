"""docs/what-orders-what.md: its row on Kafka transactions on a real broker, and its sources."""

import re
from pathlib import Path

import pytest
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import Producer as KafkaProducer
from confluent_kafka import TopicPartition

from multicast.drivers.kafka import Admin, TopicSpec
from tests.helpers.system import PATIENCE_S

PAGE = Path(__file__).parents[2] / "docs" / "what-orders-what.md"


TRANSACTIONS = 20  # each writes to both partitions


def read(bootstrap, topic, partitions):
    """What a consumer of committed messages gets that is given one partition after the other."""
    consumer = KafkaConsumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reads-without-a-group",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": False,
        }
    )
    values = []
    try:
        for partition in partitions:
            consumer.assign([TopicPartition(topic, partition, 0)])
            got = []
            while len(got) < TRANSACTIONS:
                message = consumer.poll(PATIENCE_S)
                assert message is not None
                assert message.error() is None, message.error()
                got.append(message.value())
            values += got
    finally:
        consumer.close()
    return values


@pytest.fixture(scope="module")
def in_transactions(kafka_cluster):
    """A topic of two partitions, to both of which each of some transactions has written."""
    topic = "what-orders-what"
    with Admin(kafka_cluster.bootstrap) as admin:
        admin.create_topics({topic: TopicSpec(2)})
    producer = KafkaProducer(
        {"bootstrap.servers": kafka_cluster.bootstrap, "transactional.id": topic}
    )
    producer.init_transactions(PATIENCE_S)
    for number in range(TRANSACTIONS):
        producer.begin_transaction()
        for partition in (0, 1):
            producer.produce(topic, f"{number} to {partition}", partition=partition)
        producer.commit_transaction(PATIENCE_S)
    return kafka_cluster.bootstrap, topic


def test_committed_transactions_have_no_common_order_at_two_consumers(in_transactions):
    bootstrap, topic = in_transactions
    one, other = (read(bootstrap, topic, order) for order in ([0, 1], [1, 0]))
    # Each partition has its order, all is there at both, and yet they differ.
    for partition in ("0", "1"):
        own = [f"{number} to {partition}".encode() for number in range(TRANSACTIONS)]
        assert [v for v in one if v.endswith(partition.encode())] == own
        assert [v for v in other if v.endswith(partition.encode())] == own
    assert sorted(one) == sorted(other)
    assert one != other


def rows():
    """The cells of each row of the page's table of systems, the header and the rule left out."""
    table = PAGE.read_text(encoding="utf-8").partition("## The table")[2].partition("\n## ")[0]
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_each_of_the_systems_has_eight_cells_and_each_cell_names_its_source():
    sources = set(re.findall(r"^- \[(\w+)\] ", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert len(rows()) >= 12
    for system, *cells in rows():
        assert len(cells) == 8, system
        for cell in cells:
            named = re.findall(r"\[(\w+)\](?!\()", cell)
            assert cell == "not stated" or (named and set(named) <= sources), (system, cell)
