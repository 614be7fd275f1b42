"""A broker that is killed and loses the end of a partition: collectors say what is lost.

That readers stop by one named error, `test_elections.py` and `cuts.py` show.
"""

import random

import pytest

from multicast import Consumer, Producer
from multicast.consuming.batches import Message
from multicast.control import log_partition, stream_partition
from multicast.errors import Truncated
from multicast.local.cluster import LocalCluster
from tests.helpers.cuts import cut, in_second_half
from tests.helpers.forged import streams_of
from tests.helpers.hosting import hosting
from tests.helpers.plans import chain, priced
from tests.helpers.small import state_of
from tests.helpers.system import PATIENCE_S, System, amcast, until

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def cluster():
    with LocalCluster(brokers=1) as made:
        yield made


def write(system, count):
    """Send messages whose tickets order them; each is a batch of its own."""
    with Producer(topic=system.topic, driver=system.driver) as producer:
        for number in range(count):
            for to in ({"P1"}, {"P2"}, {"P4"}):
                producer.multicast(b"%d" % number, to=to).accepted(PATIENCE_S)


def stops(consumer):
    try:
        consumer.poll(0.5)
    except Truncated:
        return True
    return False


def deliver(subscribed, into=None):
    """Go on from the commit, to the end; add the offsets to a list."""
    read = [] if into is None else into
    with Consumer(**subscribed) as consumer:
        for batch in consumer.until_end(timeout=PATIENCE_S):
            read += [record.offset for record in batch.records]


def stream_state(system, name):
    return streams_of(system)[name].stream.state


def seen_end(system, name, log):
    """Give the largest end of a log that a collector's stream names; 0: none."""
    seen = stream_state(system, name).seen.get(system.plan.number(log))
    return seen[-1].end if seen else 0


def loss_of(system, log):
    return state_of(system).loss_of(1, log)


def test_a_collector_whose_stream_has_lost_its_end_begins_anew_with_what_is_there(
    cluster, tmp_path
):
    (broker,) = cluster._need().brokers
    with (
        System(cluster.bootstrap, priced(chain()), tmp_path) as system,
        hosting(cluster.bootstrap, system.topic, system.driver_name, tmp_path),
    ):
        write(system, 30)
        at, number = stream_partition(system.plan, "K1"), system.plan.number("P1")
        until(lambda: seen_end(system, "K1", "P1") == 30, "the seen end")
        lose(cluster, broker, at)
        write(system, 60)
        until(lambda: stream_state(system, "K1").positions[number] >= 90, "the order of all")
        (log,) = tmp_path.glob("*.log")
        says = f"the order stream {at.topic}/{at.partition} has lost its end"
        until(lambda: says in log.read_text(), "the error")


def lose(cluster, broker, partition):
    """Kill the broker, cut a partition, and start it again; give the first offset that is lost."""
    cluster.kill(1)
    lost = cut([broker.data], *partition, in_second_half(random.Random(f"{partition}")))
    cluster.restart(1)
    return lost


def test_an_operator_accepts_a_loss_and_all_readers_go_on(cluster, tmp_path):
    (broker,) = cluster._need().brokers
    with System(cluster.bootstrap, priced(chain()), tmp_path) as system:
        subscribed = {"topic": system.topic, "name": "C1", "driver": system.driver}
        recover = "topology", "recover", *system.common()
        with hosting(cluster.bootstrap, system.topic, system.driver_name, tmp_path):
            write(system, 30)
            with Consumer(**subscribed) as reader:
                before = [str(message.message_id) for message in messages(reader)]
                reader.commit()
            until(lambda: seen_end(system, "K1", "P1") == 30, "the seen end")
            first = lose(cluster, broker, log_partition(system.plan.log("P1")))
            write(system, 5)
            until(lambda: loss_of(system, "P1") == first, "the loss")
            doctor = amcast("doctor", "-b", system.bootstrap, "-t", system.topic)
            assert f"log P1 has lost what it held from offset {first} on" in doctor.stdout
            assert doctor.stdout.count("topology recover --accept-loss") == 1
            status = amcast("collectors", "status", *system.common())
            assert f"log P1 has lost its messages from offset {first} on" in status.stderr
            refused = amcast(*recover)
            assert refused.returncode == 5
            assert "consumer C1 has delivered log P1 up to 30" in refused.stderr
            assert amcast(*recover, "--accept-loss").returncode == 0
            write(system, 5)
            with Consumer(**subscribed) as reader:
                after = [str(message.message_id) for message in messages(reader)]
            with Consumer(**subscribed, committed=False) as reader:
                anew = [str(message.message_id) for message in messages(reader)]
        assert f"P1:{first}" in before
        assert f"P1:{first}" not in anew
        assert f"P1~1:{first}" in after
        assert [message for message in anew if message not in before] == after
        assert amcast(*recover).returncode == 0


def messages(consumer):
    """Give all that the consumer delivers now."""
    return [
        Message(batch, record)
        for batch in consumer.until_end(timeout=PATIENCE_S)
        for record in batch.records
    ]
