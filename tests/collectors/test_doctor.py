"""`amcast doctor` and the checks of a start, on real brokers with real faults."""

import contextlib
import json
import re
import time

import confluent_kafka
import pytest

from collectors.doctor.checks import findings
from collectors.doctor.finding import Check, Weight, refuse
from collectors.doctor.inspection import inspect, of_settings
from collectors.doctor.streams import read_control
from collectors.reconfiguration.appends import append_one
from multicast import Consumer, Producer
from multicast.control import (
    collectors_partition,
    control_partition,
    control_topics,
    order_topic,
    stream_partition,
)
from multicast.drivers import open_driver
from multicast.drivers.kafka import Admin
from multicast.drivers.protocol import TopicPartition
from multicast.errors import UnsafeCluster
from tests.helpers.plans import poster
from tests.helpers.system import PATIENCE_S, System, amcast, set_topic, until
from topology.interests import from_document
from topology.planner.solver import plan as solve

pytestmark = pytest.mark.timeout(900)
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS


SMALL = {
    "topic": "A",
    "partitions": ["P1", "P2", "P3"],
    "consumer": [
        {"name": "C1", "interest": ["P1", "P2"]},
        {"name": "C2", "interest": ["P2", "P3"]},
    ],
}


@pytest.fixture
def system(kafka_cluster, tmp_path):
    """One collector is the top of P2; others inherit it."""
    with System(kafka_cluster.bootstrap, solve(from_document(SMALL)), tmp_path) as made:
        yield made


@pytest.fixture
def admin(system):
    with Admin(system.bootstrap) as opened:
        yield opened


@pytest.fixture
def examined(system, admin):
    """The findings now, without the notes: a single broker always causes some."""
    with contextlib.closing(open_driver("kafka-python", system.bootstrap)) as driver:

        def examine(patience_s=0.0):
            seen = []

            def all_seen():  # a starved broker may answer too late
                seen.append(inspect(driver, admin, system.topic, patience_s=patience_s))
                return seen[-1].unseen == ()

            until(all_seen, "all facts")
            return seen[-1], {
                (finding.check, finding.about): finding
                for finding in findings(seen[-1])
                if finding.weight is not Weight.NOTE
            }

        yield examine


def append(system, partition, value, key=None):
    return append_one(system.driver, partition, key, value, PATIENCE_S)


def send(system, count, to, *, tickets=True):
    with Producer(topic=system.topic, driver=system.driver, tickets=tickets) as producer:
        for number in range(count):
            producer.multicast(b"%d" % number, to=to).accepted(PATIENCE_S)


def doctor(system, *more):
    done = amcast("doctor", "-b", system.bootstrap, "-t", system.topic, *more)
    assert not done.stderr, done.stderr
    return done


def test_a_deployment_that_works_is_told_apart_from_one_whose_collector_stopped(system, examined):
    root = system.plan.top("P2").name
    host = system.apart(root)
    send(system, 20, {"P2"})
    with Consumer(topic=system.topic, name="C1", driver=system.driver) as consumer:
        for message in consumer:
            if message.message_id.offset >= 7:  # a hole behind a ticket may stand before it
                consumer.commit(message.cursor)
                break
        read = message.message_id.offset + 1
    done = doctor(system, "-o", "json", "--patience", str(PATIENCE_S))
    document = json.loads(done.stdout)
    told = [document[key] for key in ("wrong", "epoch", "begun")]
    assert (done.returncode, *told) == (0, 0, 1, True)
    assert {finding["check"] for finding in document["findings"]} == {"replication", "consumer"}
    assert all(each["is_open"] and not each["behind"] for each in document["collectors"])
    group, never = document["consumers"]
    assert (never["group"], never["cursor"], never["stands_since_ms"]) == ("C2", "", None)
    assert group["stands_since_ms"] == group["committed_ms"]  # messages wait since before
    (place,) = (place for place in group["places"] if place["log"] == "P2")
    assert (group["group"], group["lag"]) == ("C1", place["end"] - read)
    assert place["end"] >= 20  # a hole behind a ticket may have been filled behind them
    (clock,) = [clock for clock in document["clocks"] if "controller" in clock["whose"]]
    assert clock["ahead_at_least_ms"] <= clock["ahead_at_most_ms"]
    seen = {clock["whose"] for clock in document["clocks"]}
    assert "the broker of collector K1's stream" in seen

    host.kill(root)
    done = doctor(system)
    text = " ".join(done.stdout.split())
    assert done.returncode == 0, "a standby may be about to take over"
    assert f"the process that last acted for collector {root} has ended" in text
    assert text.count("has ended") == 1
    send(system, 3, {"P2"}, tickets=False)  # which would order them without a collector
    done = doctor(system, "--patience", "0.5")
    assert done.returncode == 1
    text = " ".join(done.stdout.split())
    # Tickets may have ordered one or two offsets more than there were messages.
    assert re.search(rf"warn collector {root} has not ordered [1-3] offsets? of P2, the", text)
    assert f"→ amcast collectors run --node {root}" in text
    below = [node.name for node in system.plan.collectors if node.parent == root]
    assert below
    assert not [name for name in below if f"collector {name} has not ordered" in text]
    host.start(root)
    until(lambda: examined(5.0)[1] == {}, "a mended deployment")


def test_a_setting_that_breaks_a_guarantee_is_found_and_refused(system, admin, examined):
    assert examined()[1] == {}
    orders, (control, stated) = order_topic(system.topic), control_topics(system.topic)
    for topic, check, settings in (
        (system.topic, Check.UNCLEAN, {"unclean_leader_election_enable": "true"}),
        (system.topic, Check.COMPACTION, {"cleanup_policy": "compact"}),
        (orders, Check.COMPACTION, {"cleanup_policy": "compact,delete"}),
        (control, Check.COMPACTION, {"cleanup_policy": "delete"}),
        (stated, Check.COMPACTION, {"cleanup_policy": "delete"}),
        (orders, Check.RETENTION, {"retention_ms": "60000"}),
        (orders, Check.RETENTION, {"retention_bytes": "1000000"}),
    ):
        before = set_topic(admin, topic, **settings)
        assert set(examined()[1]) == {(check, f"topic {topic}")}
        with pytest.raises(UnsafeCluster, match=f"topic {topic} "):
            refuse(of_settings(admin, system.plan))
        set_topic(admin, topic, **before)
    assert examined()[1] == {}
    refuse(of_settings(admin, system.plan))
    admin.delete_topics([orders])
    assert (Check.TOPIC_CHANGED, f"topic {orders}") in examined()[1]


def test_foreign_records_are_skipped_counted_and_reported(system, examined):
    wrong = append(system, stream_partition(system.plan, "K2"), b"not an order record")
    append(system, control_partition(system.topic), b"hello", b"plans/1")
    last = append(system, control_partition(system.topic), b"{}", b"plan/2/x/y")
    theirs = collectors_partition(system.topic)
    early = append(system, theirs, b'{"epoch":2}', b"checkpoint/K1/26/0")
    facts, results = examined()
    assert facts.begun_epoch == 1
    foreign = {key: each for key, each in results.items() if key[0] is Check.FOREIGN}
    by_about = {about: finding.says for (_, about), finding in foreign.items()}
    assert f"a foreign record, the last at offset {wrong}" in by_about["the stream of collector K2"]
    control = by_about[f"the control topic {system.topic}.topology"]
    assert f"2 foreign records, the last at offset {last}" in control
    stated = by_about[f"the control topic {system.topic}.collectors"]
    assert f"a foreign record, the last at offset {early}" in stated
    assert len(results) == 3
    assert [each.void for each in facts.collectors if each.name == "K2"] == [{"foreign": 1}]


def append_old(system, count, age_ms):
    """Append messages of that age to P1, as a plain producer may."""
    then_ms = time.time_ns() // 1_000_000 - age_ms
    producer = confluent_kafka.Producer({"bootstrap.servers": system.bootstrap})
    for _ in range(count):
        producer.produce(system.topic, b"old", partition=0, timestamp=then_ms)
    assert producer.flush(PATIENCE_S) == 0


def test_a_consumer_that_retention_overtakes_is_named_before_and_after(system, admin, examined):
    append_old(system, 10, 40 * MINUTE_MS)  # young enough that no broker deletes them meanwhile
    with Consumer(topic=system.topic, interest={"P1", "P2"}, driver=system.driver) as consumer:
        consumer.commit()
    (group,) = (group for group in examined()[0].groups if group.cursor)
    assert (group.group, group.places[0].lag) == ("P1+P2", 10)
    about = Check.RETENTION, "consumer P1+P2"
    assert about not in examined()[1]
    set_topic(admin, system.topic, retention_ms=str(HOUR_MS))
    until(lambda: about in examined()[1], "an old message")
    finding = examined()[1][about]
    assert "it has 10 offsets of P1 to read" in finding.says
    assert f"delete the consumer group amcast.{system.topic}.P1+P2" in finding.do
    set_topic(admin, system.topic, retention_ms=str(2 * HOUR_MS))
    assert about not in examined()[1]
    set_topic(admin, system.topic, retention_bytes="100")
    assert "bytes of P1 to read" in examined()[1][about].says
    admin.delete_records({TopicPartition(system.topic, 0): 4})
    assert "continues at offset 0 of P1, which begins at 4" in examined()[1][about].says
    with contextlib.closing(open_driver("kafka-python", system.bootstrap)) as driver:
        state = read_control(driver, system.topic).state
        driver.commit(
            f"amcast.{system.topic}.lost", {control_partition(system.topic): (0, "7/K1/0/0/0")}
        )
    assert state.epoch == 1
    assert "is not valid" in examined()[1][Check.CONSUMER, "consumer lost"].says


def test_collectors_order_nothing_where_a_setting_is_refused_until_it_is_mended(system, admin):
    before = set_topic(admin, system.topic, unclean_leader_election_enable="true")
    host = system.start()
    log = system.folder / f"{system.topic}.log"
    refusal = f"nothing is ordered: topic {system.topic} has unclean.leader.election.enable=true"
    until(lambda: refusal in log.read_text(), "a refusal")

    def idle():
        return all(node["state"] != "running" for node in host.status()["nodes"])

    until(idle, "idle collectors")
    send(system, 1, {"P1"})
    set_topic(admin, system.topic, **before)
    with Producer(topic=system.topic, driver=system.driver) as producer:
        producer.multicast(b"at last", to={"P1"}).ordered(PATIENCE_S)


# Neither collectors nor consumers run.
NOBODY_RUNS = {Check.COLLECTOR, Check.CONSUMER}


@pytest.mark.campaign
def test_three_brokers_have_no_finding_until_one_of_them_dies(kafka_cluster_of_three, tmp_path):
    cluster = kafka_cluster_of_three
    cluster.start()
    with (
        System(cluster.bootstrap, poster(), tmp_path) as system,
        Admin(cluster.bootstrap) as admin,
        contextlib.closing(open_driver("kafka-python", cluster.bootstrap)) as driver,
    ):

        def checks():
            facts = inspect(driver, admin, system.topic, patience_s=0)
            return {finding.check for finding in findings(facts)} - NOBODY_RUNS

        until(lambda: checks() == set(), "three brokers in sync")
        before = set_topic(admin, system.topic, min_insync_replicas="1")
        until(lambda: checks() == {Check.IN_SYNC}, "the finding")
        with pytest.raises(UnsafeCluster, match=r"min\.insync\.replicas 1, so one crash"):
            refuse(of_settings(admin, system.plan))
        set_topic(admin, system.topic, **before)
        cluster.kill(3)
        until(lambda: checks() == {Check.BROKER}, "what its death does")
        refuse(of_settings(admin, system.plan))
    cluster.start()
