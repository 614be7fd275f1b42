"""What `topology apply` refuses on a real broker; a refusal creates no topic."""

import contextlib
import json
import time

import pytest

from collectors.reconfiguration.appends import append_one
from collectors.reconfiguration.apply import apply
from collectors.reconfiguration.topics import topics_of
from multicast.control import (
    collectors_partition,
    control_partition,
    control_topics,
    groups_topic,
    order_topic,
    sentinel_topic,
    stream_partition,
)
from multicast.drivers import open_driver
from multicast.drivers.kafka import Admin, TopicSpec
from multicast.drivers.protocol import TopicPartition
from multicast.errors import AmcastError, Conflict, UnsafeCluster, UsageError
from tests.helpers.plans import poster
from tests.helpers.system import PATIENCE_S, amcast, until

pytestmark = pytest.mark.timeout(600)

INTERESTS = """
topic = "{topic}"
partitions = {partitions}
[[consumer]]
name = "C1"
interest = ["P1", "P2"]
"""


class Bench:
    """A cluster, and an unused topic name."""

    def __init__(self, bootstrap, driver, admin, folder):
        self.bootstrap = bootstrap
        self.driver = driver
        self.admin = admin
        self.folder = folder
        self.topic = f"checks-{time.time_ns()}"
        self.plan = poster(topic=self.topic)

    def topics(self):
        """Give the topics of that name with their partition counts."""
        names = [*topics_of(self.plan), *control_topics(self.topic)]
        return self.admin.partitions([*names, sentinel_topic(self.topic)])

    def apply(self, plan=None, **options):
        return apply(self.driver, self.admin, plan or self.plan, **options)

    def planned(self, count, *flags):
        """Write a plan file for so many partitions, as `topology plan` does."""
        names = [f"P{number}" for number in range(1, count + 1)]
        interests = self.folder / f"{count}.toml"
        interests.write_text(INTERESTS.format(topic=self.topic, partitions=json.dumps(names)))
        plan = self.folder / f"{count}.json"
        done = self.run("topology", "plan", interests, "--out", plan, "--force", *flags)
        return plan, done

    def run(self, *words):
        environment = {"AMCAST_BOOTSTRAP": self.bootstrap, "AMCAST_TOPIC": self.topic}
        return amcast(*map(str, words), env=environment)


@pytest.fixture
def bench(kafka_cluster, tmp_path):
    bootstrap = kafka_cluster.bootstrap
    with (
        contextlib.closing(open_driver("librdkafka", bootstrap)) as driver,
        Admin(bootstrap) as admin,
    ):
        yield Bench(bootstrap, driver, admin, tmp_path)


def test_a_plan_with_fewer_partitions_than_the_topic_is_refused(bench):
    bench.admin.create_topics({bench.topic: TopicSpec(3)})
    file, planned = bench.planned(2)
    assert planned.returncode == 0, planned.stderr
    done = bench.run("topology", "apply", file, "--add-partitions")
    assert done.returncode == 2, done.stderr
    assert f"topic {bench.topic} has 3 partitions and 'partitions' names 2" in done.stderr
    assert bench.topics() == {bench.topic: 3}
    # `topology plan --from-cluster` refuses it already.
    _, planned = bench.planned(2, "--from-cluster", "--window", "0.1")
    assert planned.returncode == 2
    assert "name all 3 in the interest file" in planned.stderr


def test_a_plan_with_more_partitions_than_the_topic_grows_it_only_where_that_is_asked_for(bench):
    bench.admin.create_topics({bench.topic: TopicSpec(2)})
    file, planned = bench.planned(3, "--from-cluster", "--window", "0.1")
    assert planned.returncode == 0, planned.stderr
    assert "needs --add-partitions" in planned.stderr
    refused = bench.run("topology", "apply", file)
    assert refused.returncode == 2, refused.stderr
    assert "messages of one key are in two partitions" in refused.stderr
    assert bench.topics() == {bench.topic: 2}
    done = bench.run("topology", "apply", file, "--add-partitions")
    assert done.returncode == 0, done.stderr
    assert bench.topics()[bench.topic] == 3
    assert bench.run("topology", "apply", file).returncode == 0


def test_the_same_plan_applied_twice_at_once_is_no_conflict(bench):
    def meanwhile():
        bench.apply()
        # So the two fill in different first offsets of the stream.
        append_one(bench.driver, stream_partition(bench.plan, "K1"), None, b"garbage", 60)

    assert bench.apply(before_change=meanwhile).plan.collector("K1").stream_first == 0


def test_partitions_that_somebody_added_later_are_named_until_a_plan_orders_them(bench):
    file, _ = bench.planned(2)
    assert bench.run("topology", "apply", file).returncode == 0
    bench.admin.add_partitions(bench.topic, 4)
    says = f"topic {bench.topic} has 4 partitions and the plan of epoch 1 orders 2"
    for words in (("doctor", "--patience", "0"), ("topology", "verify")):
        done = bench.run(*words)
        assert done.returncode == 1, done.stdout
        assert says in " ".join(done.stdout.split())
    file, planned = bench.planned(3, "--from-cluster", "--window", "0.1")
    assert planned.returncode == 2
    file, planned = bench.planned(4, "--from-cluster", "--window", "0.1")
    assert planned.returncode == 0, planned.stderr
    assert json.loads(file.read_text())["rates"].keys() == {"P1", "P2"}
    done = bench.run("topology", "apply", file, "--timeout", PATIENCE_S)
    assert (done.returncode, "no collector of epoch 2" in done.stderr) == (0, True), done.stderr
    assert "messages with tickets do not wait for them" in done.stderr
    until(lambda: says not in bench.run("topology", "verify").stdout, "a topic that is ordered")


def test_a_topic_that_has_a_name_of_ours_and_holds_something_is_not_taken(bench):
    name = groups_topic(bench.topic)
    bench.admin.create_topics({name: TopicSpec(1), order_topic(bench.topic): TopicSpec(1)})
    with contextlib.closing(bench.driver.appender()) as appender:
        appender.append(TopicPartition(name, 0), b"somebody's", done=lambda _: None)
        assert appender.flush(PATIENCE_S)
    before = bench.topics()
    with pytest.raises(Conflict, match=f"topic {name} holds 1 records"):
        bench.apply()
    assert bench.topics() == before
    # An empty topic may come from an apply that was killed, so it is grown.
    other = Bench(bench.bootstrap, bench.driver, bench.admin, bench.folder)
    other.admin.create_topics({groups_topic(other.topic): TopicSpec(1)})
    assert other.apply().plan.epoch == 1
    assert other.topics()[groups_topic(other.topic)] == 2


def test_a_refused_plan_leaves_no_topic_behind(bench):
    stale = poster(topic=bench.topic).to_json() | {"epoch": 3, "base_epoch": 2}
    foreign = poster(topic=bench.topic).to_json() | {"cluster_id": "another"}
    for document in (stale, foreign):
        file = bench.folder / "plan.json"
        file.write_text(json.dumps(document))
        assert bench.run("topology", "apply", file).returncode == 5
        assert bench.topics() == {}
    bench.admin.create_topics({bench.topic: TopicSpec(5, settings={"cleanup.policy": "compact"})})
    with pytest.raises(UnsafeCluster, match=r"cleanup\.policy=compact"):
        bench.apply()
    assert bench.topics() == {bench.topic: 5}


def test_a_topic_that_brokers_would_not_make_is_known_before_it_is_made(bench):
    replication, settings = bench.admin.would_make(bench.topic, TopicSpec(1, replication=1))
    assert (replication, settings["cleanup.policy"]) == (1, "delete")
    with pytest.raises(AmcastError, match="InvalidReplicationFactor"):
        bench.admin.would_make(bench.topic, TopicSpec(1, replication=7))
    assert bench.topics() == {}
    bench.admin.create_topics({bench.topic: TopicSpec(1)})
    assert bench.admin.would_make(bench.topic, TopicSpec(1)) is None


def test_topics_of_before_get_the_settings_of_new_ones(bench):
    control, orders = control_partition(bench.topic).topic, order_topic(bench.topic)
    stated = collectors_partition(bench.topic).topic
    compacted = TopicSpec(1, settings={"cleanup.policy": "compact"})
    bench.admin.create_topics({control: compacted, stated: compacted})
    bench.admin.create_topics({orders: TopicSpec(1, settings={"retention.ms": "-1"})})
    bench.apply()
    settings = bench.admin.topic_settings([control, stated, orders])
    for name in (control, stated):
        assert settings[name]["segment.ms"] == "600000"
        assert settings[name]["max.compaction.lag.ms"] == "3600000"
    assert settings[orders]["message.timestamp.type"] == "LogAppendTime"
    assert settings[orders]["retention.ms"] == "-1"


@pytest.mark.parametrize(
    "role",
    [control_partition, collectors_partition, lambda topic: (order_topic(topic), 0)],
    ids=["plans", "checkpoints", "order"],
)
def test_a_plan_that_a_topic_cannot_hold_is_refused_before_anything_is_made(bench, role):
    name = role(bench.topic)[0]
    policy = "compact" if role in (control_partition, collectors_partition) else "delete"
    small = {"max.message.bytes": "1100", "cleanup.policy": policy}
    bench.admin.create_topics({name: TopicSpec(1, settings=small)})
    before = bench.topics()
    with pytest.raises(UsageError, match=f"topic {name} takes records of at most 1100 bytes"):
        bench.apply()
    assert bench.topics() == before
