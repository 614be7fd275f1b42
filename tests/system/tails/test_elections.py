"""Three brokers: one loses its copies, which costs nothing; one that was behind becomes leader."""

import shutil
from contextlib import closing

import kafka
import pytest

from multicast import Consumer
from multicast.control import ControlReader, log_partition
from multicast.control.losses import Losses
from multicast.drivers.kafka import Admin
from multicast.errors import Truncated
from multicast.local.cluster import LocalCluster
from tests.helpers.plans import chain, priced
from tests.helpers.system import System, set_topic, until
from tests.system.tails.test_lost_tails import deliver, loss_of, messages, seen_end, stops, write

pytestmark = pytest.mark.timeout(900)
LOST = ("P1", "P2")  # of what K1 orders
BEHIND, AHEAD = 3, 1  # the two brokers with replicas of the messages; 2 has the rest, too


@pytest.fixture(scope="module")
def cluster():
    with LocalCluster(brokers=3) as made:
        yield made


@pytest.fixture(params=["librdkafka", "kafka-python"])
def system(request, cluster, tmp_path):
    with System(cluster.bootstrap, priced(chain()), tmp_path, driver=request.param) as made:
        made.order()
        yield made


def ids(consumer):
    return [str(message.message_id) for message in messages(consumer)]


def test_a_replica_that_loses_all_costs_nothing(cluster, system):
    subscribed = {"topic": system.topic, "name": "C1", "driver": system.driver}
    write(system, 20)
    with Consumer(**subscribed) as there, Consumer(**subscribed, committed=False) as new:
        read = ids(there)
        there.commit()
        cluster.kill(BEHIND)
        for copies in cluster._need().broker(BEHIND).data.glob(f"{system.topic}*"):
            shutil.rmtree(copies)
        cluster.restart(BEHIND)
        write(system, 20)
        with Consumer(**subscribed) as committed:
            following = ids(committed)
        assert ids(there) == following
        assert ids(new) == read + following
        assert len({*read, *following}) == 80
    with closing(ControlReader(system.driver, system.topic)) as control:
        assert control.refresh().losses == Losses()


def test_where_a_replica_that_was_behind_becomes_leader_nobody_goes_on_in_silence(cluster, system):
    logs = [log_partition(log) for log in system.plan.logs]
    own = {"unclean_leader_election_enable": "true", "min_insync_replicas": "1"}
    subscribed = {"topic": system.topic, "driver": system.driver}

    with Admin(cluster.bootstrap) as admin:

        def held(leaders, in_sync):
            return all(
                leader in leaders and {*has} == in_sync
                for _, leader, _, has in admin.holders([system.topic])[system.topic]
            )

        set_topic(admin, system.topic, **own)
        moves = {kafka.TopicPartition(*log): [AHEAD, BEHIND] for log in logs}
        admin._admin.alter_partition_reassignments(moves)
        until(lambda: held({AHEAD, BEHIND}, {AHEAD, BEHIND}), "two replicas")
        write(system, 20)
        cluster.kill(BEHIND)
        until(lambda: held({AHEAD}, {AHEAD}), "a replica that is behind")
        write(system, 20)
        with Consumer(**subscribed, name="C1") as there, Consumer(**subscribed, name="C4") as alone:
            for reader in (there, alone):
                assert ids(reader)
                reader.commit()
            until(lambda: min(seen_end(system, "K1", log) for log in LOST) >= 40, "the seen ends")
            cluster.kill(AHEAD)
            cluster.restart(BEHIND)
            until(lambda: held({BEHIND}, {BEHIND}), "an unclean election")
            cluster.restart(AHEAD)
            write(system, 30)
            for reader in (there, alone):
                until(lambda reader=reader: stops(reader), "the error of who was there")
        for name in ("C1", "C4"):
            with pytest.raises(Truncated):
                deliver({**subscribed, "name": name})
        for log in LOST:
            until(lambda log=log: loss_of(system, log) is not None, "the loss")
        firsts, read = [loss_of(system, log) for log in LOST], []
        assert min(firsts) >= 20, "what both replicas had"
        with pytest.raises(Truncated, match=r"P[12] has lost its messages from offset"):
            deliver({**subscribed, "name": "C1", "committed": False}, read)
        assert max(read) < max(firsts)
