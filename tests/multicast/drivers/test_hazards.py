"""What we send is no part of a Kafka transaction, whose two hazards are in `docs/hazards.md`."""

import contextlib
import uuid

import pytest
from kafka import KafkaProducer

from bench.nemesis.frames import Action, Api, RequestFault
from multicast.drivers.kafka import Admin, TopicSpec
from multicast.errors import AppendUnknown
from tests.helpers.proxied import proxied_broker, running
from tests.helpers.system import PATIENCE_S

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]
DELIVERY_S = 6.0  # a busy broker answers within it


@pytest.fixture(scope="module")
def behind():
    with proxied_broker() as found:
        yield found


@pytest.mark.parametrize("driver", ["librdkafka", "kafka-python"])
def test_ours_reports_no_append_that_did_not_happen_and_sends_nothing_of_a_transaction(
    behind, driver, tmp_path
):
    _, proxy, sightings = behind
    sightings.counts.clear()
    sightings.transactional.clear()
    with running(proxy, driver, tmp_path) as world:
        # Init: every EndTxn would be late; no Produce passes, not even a collector's.
        late = proxy.arm(RequestFault(api=Api.END_TXN, action=Action.STRAND, nth=None))
        world.send_each(8)
        producer = world.open_producer("p2", delivery_timeout_s=DELIVERY_S)
        with contextlib.closing(producer):
            world.send("P2", producer=producer).ordered(PATIENCE_S)
            cut = proxy.arm(RequestFault(api=Api.PRODUCE, action=Action.CUT, nth=None))
            lost = world.send("P2", producer=producer)

            # Test: one message times out, and the next one follows.
            with pytest.raises(AppendUnknown):
                lost.accepted(PATIENCE_S)
            cut.release()
            world.send("P2", producer=producer).ordered(PATIENCE_S)
        world.send_each(8)
        world.judge()
        late.release()

    # Check: no EndTxn was sent, nor any other request with a transactional ID.
    assert late.count == 0
    assert sightings.transactional == {}
    ours = {client for client, api in sightings.counts if api == Api.PRODUCE}
    assert ours == {"amcast", "p1", "p2"}  # collectors and two producers, all through the proxy


def test_the_proxy_does_tell_what_belongs_to_a_transaction(behind):
    cluster, proxy, sightings = behind
    name = f"bare-{uuid.uuid4().hex[:8]}"
    with Admin(cluster.bootstrap) as admin:
        admin.create_topics({name: TopicSpec(1)})
    ids = {"client_id": name, "transactional_id": name}
    with contextlib.closing(KafkaProducer(bootstrap_servers=proxy.bootstrap, **ids)) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(name, b"one").get(PATIENCE_S)
        producer.commit_transaction()
    seen = {api for client, api in sightings.transactional if client == name}
    assert seen == {Api.INIT_PRODUCER_ID, Api.ADD_PARTITIONS_TO_TXN, Api.PRODUCE, Api.END_TXN}
