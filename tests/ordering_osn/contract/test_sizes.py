"""Payloads of every size through a node's process and a real broker."""

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from ordering_osn.protos import Block, Envelope
from tests.ordering_osn.helpers.small import chains_plan, quick, transaction
from tests.ordering_osn.node.test_cluster import network

PREFERRED, ABSOLUTE = 2 << 20, 10 << 20
NAMES = ("chain-a", "chain-b")
SIZES = [1 << 10, 10 << 10, 100 << 10, 1 << 20, PREFERRED - 1, PREFERRED, PREFERRED + 1, 4 << 20]


@pytest.fixture(scope="module")
def net(kafka_cluster, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sizes")
    raws = [quick("chain-a", timeout="50ms", max_message_count=3), quick("chain-b", timeout="50ms")]
    with network(kafka_cluster, folder, chains_plan(*NAMES), *raws, nodes=1) as running:
        yield running


def size_of(envelope):
    parsed = Envelope.FromString(envelope)
    return len(parsed.payload) + len(parsed.signature)


def of_size(size, chain):
    """Make a transaction that counts exactly so many bytes, its signature included."""
    length = size - 900
    for _ in range(1000):  # a signature is a byte longer or shorter by chance
        envelope = transaction(chain, data=b"x" * length)
        missing = size - size_of(envelope)
        if not missing:
            return envelope
        length += missing
    raise AssertionError("no such size")


def data_of(net, chain):
    return [Block.FromString(raw).data.data for raw in net.deliver(0, chain)[1:]]


def test_s6_payloads_of_1_kb_to_10_mb_come_back_as_they_were_sent(net):
    sent = [of_size(size, "chain-a") for size in [*SIZES, ABSOLUTE - 1, ABSOLUTE]]
    for one in sent:
        assert net.send(0, one) == [200]
    for one in sent:
        assert net.receipt(0, "chain-a", one)["status"] == 200
    found = data_of(net, "chain-a")
    assert [one for data in found for one in data] == sent
    for data in found:
        sizes = [size_of(one) for one in data]
        assert len(sizes) == 1 or sum(sizes) <= PREFERRED


def test_s6_what_the_topic_takes_no_more_is_answered_503_and_smaller_ones_go_on(net):
    """Fabric asks for AbsoluteMaxBytes < message.max.bytes; here it was forgotten."""
    entry = ConfigEntry("max.message.bytes", "100000", incremental_operation=AlterConfigOpType.SET)
    admin = AdminClient({"bootstrap.servers": net.system.bootstrap})
    (future,) = admin.incremental_alter_configs(
        [ConfigResource(ResourceType.TOPIC, net.system.topic, incremental_configs=[entry])]
    ).values()
    future.result(30)
    small = [of_size(50_000, "chain-b") for _ in range(2)]
    assert net.send(0, small[0]) == [200]
    assert net.send(0, of_size(200_000, "chain-b")) == [503]
    assert net.send(0, small[1]) == [200]
    for one in small:
        assert net.receipt(0, "chain-b", one)["status"] == 200
    assert [one for data in data_of(net, "chain-b") for one in data] == small
    assert net.unhealthy(0) == ""
