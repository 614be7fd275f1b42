"""`amcast adopt`: a topic that was there before us, with producers and groups that go on."""

import json
import subprocess
import threading
import tomllib
from contextlib import closing
from dataclasses import replace

import confluent_kafka
import pytest

from collectors.adoption.facts import (
    AdoptionFacts,
    OldGroup,
    base_of,
    consumers_of,
    interests_text,
    report,
    topics_made,
)
from collectors.doctor.facts import PartitionFacts, Role, TopicFacts
from collectors.reconfiguration.topics import spec_like
from multicast import Consumer, Producer
from multicast.drivers.kafka import Admin, TopicSpec
from multicast.local.cluster import DEFAULT_VERSION
from multicast.local.installation import install
from tests.helpers.hosting import hosting
from tests.helpers.system import PATIENCE_S, amcast, until
from topology.interests import parse
from topology.planner.solver import plan as solve

OWN = ("topology", "collectors", "Msg-TO", "groups", "bells")  # the topics that amcast adds
SETTINGS = {
    "cleanup.policy": "delete",
    "retention.ms": "604800000",
    "retention.bytes": "-1",
    "min.insync.replicas": "1",
}


def facts(partitions, groups=(), rate=0.0):
    names = [f"P{number + 1}" for number in range(partitions)]
    return AdoptionFacts(
        "orders",
        first=dict.fromkeys(names, 0),
        end=dict.fromkeys(names, 10),
        rates=dict.fromkeys(names, rate),
        rate_seconds=3,
        settings=SETTINGS,
        replication=3,
        groups=tuple(groups),
    )


# -- what it writes and says ----------------------------------------------------------------


def test_each_group_becomes_a_consumer_of_what_it_reads_and_the_file_is_valid():
    groups = [
        OldGroup("billing eu", ("P1", "P2", "P3", "P7"), 5),
        OldGroup("billing/eu", ("P9",), 0),
    ]
    read = facts(12, groups, rate=0.04)
    text = interests_text(read, consumers_of(read, {}), [("P1", "P2"), ("P4..P6",)])
    document = tomllib.loads(text)
    assert document["partitions"] == 12
    assert document["consumer"] == [
        {"name": "billing-eu", "interest": ["P1..P3", "P7"]},
        {"name": "billing-eu-", "interest": ["P9"]},
    ]
    assert document["destinations"] == [["P1", "P2"], ["P4..P6"]]
    assert set(document["rates"].values()) == {0.1}
    assert parse(text).consumers[0].interest == ("P1", "P2", "P3", "P7")
    assert parse(text).destinations[1] == ("P4", "P5", "P6")


def test_without_groups_one_consumer_reads_all_and_given_ones_come_first():
    read = facts(100)
    assert "[rates]" not in interests_text(read, consumers_of(read, {}), [])
    (consumer,) = parse(interests_text(read, consumers_of(read, {}), [])).consumers
    assert (consumer.name, len(consumer.interest)) == ("all", 100)
    read = facts(3, [OldGroup("old", ("P1",), 0)])
    assert consumers_of(read, {"mine": ["P2", "P3"]}) == {"mine": ("P2", "P3")}


@pytest.mark.parametrize("suffix", ["topology", "collectors", "Msg-TO", "groups", "bells"])
def test_a_topic_of_ours_is_known_by_its_control_topic(suffix):
    assert base_of(f"a.b.{suffix}", ["a.b", "a.b.topology"]) == "a.b"
    assert base_of(f"a.b.{suffix}", ["a.b.topology"]) is None  # somebody else's, by its name
    assert base_of(f"a.b.{suffix}", ["a.topology"]) is None
    assert base_of("a.b", ["a.topology"]) is None


def test_a_note_tells_that_retention_goes_by_the_times_of_old_records():
    assert facts(2).notes == []
    (note,) = replace(facts(2), older=("P1",)).notes
    assert note.startswith("by its own time every record of P1 is older than retention.ms of topic")


def test_the_report_tells_what_groups_will_not_see():
    read = facts(3, [OldGroup("old", ("P1", "P2", "P3"), 7)])
    text = interests_text(read, consumers_of(read, {}), [("P1", "P2")])
    plan = solve(parse(text))
    made = topics_made(plan, ["orders.topology"])
    ours = {"orders.collectors", "orders.Msg-TO", "orders.groups", "orders.bells"}
    assert set(made) == ours
    said = "\n".join(report(read, plan, made))
    assert "old: P1, P2, P3, 7 records behind" in said
    assert "They also see empty records with a header of amcast: amcast.epoch in each" in said
    assert "and amcast.skip where a producer failed." in said
    assert all(f"topic {name}: " in said for name in made)
    assert "They do not see messages to sets of several partitions: they stand in topic orders.groups." in said  # fmt: skip  # noqa: E501
    plan = solve(parse(interests_text(read, consumers_of(read, {}), [])))
    assert "orders.groups" not in topics_made(plan, [])
    assert "No set of several partitions is declared" in "\n".join(report(read, plan, {}))


def test_a_new_topic_gets_the_replicas_and_the_space_of_the_topic_that_was_there():
    replicas = (PartitionFacts(0, 1, (1, 2, 3), (1, 2, 3)),)
    kept = {**SETTINGS, "max.message.bytes": "5000000", "min.insync.replicas": "2"}
    model = TopicFacts("orders", Role.DATA, kept, replicas)
    stock = {**SETTINGS, "max.message.bytes": "1048588"}  # as a broker without own settings
    same = ("max.message.bytes", "retention.ms")
    assert spec_like(TopicSpec(4), 1, stock, model, same) == TopicSpec(
        4, 3, {"max.message.bytes": "5000000", "min.insync.replicas": "2"}
    )
    safe = {**kept, "min.insync.replicas": "3"}  # what the brokers do better stays
    assert spec_like(TopicSpec(4), 5, safe, model, same) == TopicSpec(4)


# -- on a cluster -----------------------------------------------------------------------------


@pytest.fixture
def where(kafka_cluster, tmp_path, monkeypatch):
    """The brokers; commands write their files into a folder of the test."""
    monkeypatch.chdir(tmp_path)
    return kafka_cluster.bootstrap


def topic_of(where, tmp_path, partitions, **settings):
    name = f"adopt-{tmp_path.name}"
    with Admin(where) as admin:
        spec = {key.replace("_", "."): value for key, value in settings.items()}
        admin.create_topics({name: TopicSpec(partitions, settings=spec)})
    return name


def adopt(where, topic, *arguments, code=0):
    done = amcast("adopt", topic, "-b", where, "-o", "json", *arguments)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout) if code == 0 else done.stderr


def produce(where, topic, values, partitions):
    producer = confluent_kafka.Producer({"bootstrap.servers": where})
    for number, value in enumerate(values):
        producer.produce(topic, value=value, partition=number % partitions, key=f"k{number % 9}")
    assert producer.flush(PATIENCE_S) == 0


def console_producer(where, topic, keyed_lines):
    """Run Kafka's own console producer, from the jars that the local cluster runs on."""
    kafka = install(DEFAULT_VERSION, progress=lambda _: None)
    command = kafka.command("org.apache.kafka.tools.ConsoleProducer")
    command += ["--bootstrap-server", where, "--topic", topic]
    command += ["--reader-property", "parse.key=true", "--reader-property", "key.separator=:"]
    lines = "\n".join(keyed_lines) + "\n"
    done = subprocess.run(
        command, input=lines, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr


class GroupAsBefore:
    """A consumer group of a program that has never heard of amcast; it reads all the time."""

    def __init__(self, where, topic, name):
        self.values = []
        self._stop = threading.Event()
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": where,
                "group.id": name,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        self._consumer.subscribe([topic])
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        while not self._stop.is_set():
            message = self._consumer.poll(0.2)
            if message is not None and message.error() is None:
                self.values.append(message.value())
                self._consumer.commit(message, asynchronous=False)

    def close(self):
        self._stop.set()
        self._thread.join(PATIENCE_S)
        self._consumer.close()


@pytest.mark.timeout(600)
def test_producers_and_a_group_go_on_while_three_services_get_one_order(where, tmp_path):
    topic = topic_of(where, tmp_path, 6)
    old = [b"old-%d" % number for number in range(300)]
    produce(where, topic, old, 6)
    with closing(GroupAsBefore(where, topic, f"legacy-{topic}")) as group:
        until(lambda: len(group.values) == len(old), "the group's old records")

        document = adopt(
            where, topic, "--seconds", "1", "--apply", "--to", "P1,P4", "--to", "P2..P5",
            "-i", "stock=P1..P4", "-i", "billing=P3..P6", "-i", "audit=P1..P6",
        )  # fmt: skip
        assert document["offsets_stored"] == len(old)
        assert document["sample"] == {"records": 300, "with_key": 300, "with_headers": 0}
        (seen,) = [g for g in document["groups"] if g["name"] == f"legacy-{topic}"]
        assert (len(seen["partitions"]), seen["lag"]) == (6, 0)

        with hosting(where, topic, "librdkafka", tmp_path):
            console_producer(where, topic, [f"k{n}:java-{n}" for n in range(50)])
            new = [b"new-%d" % number for number in range(100)]
            produce(where, topic, new, 6)
            with Producer(where, topic=topic) as producer:
                receipts = [
                    producer.multicast(b"wide-%d" % number, to=to)
                    for number, to in enumerate([{"P1", "P4"}, {"P2", "P5"}] * 20)
                ]
                receipts += [producer.multicast(b"single-%d" % n, to={"P3"}) for n in range(20)]
                for receipt in receipts:
                    receipt.ordered(PATIENCE_S)
            received = {}
            for name in ("stock", "billing", "audit"):
                with Consumer(where, topic=topic, name=name) as consumer:
                    received[name] = [
                        record.value for batch in consumer.until_end() for record in batch.records
                    ]
            names = [word for name in received for word in ("--name", name)]
            done = amcast("verify", "-b", where, "-t", topic, *names)
            assert done.returncode == 0, done.stdout + done.stderr
            assert "violated: 0" in done.stdout
            running = amcast("adopt", topic, "--undo", "--yes", "-b", where)
            assert (running.returncode, "runs: stop it first" in running.stderr) == (2, True)
        java = [b"java-%d" % number for number in range(50)]
        single = [b"single-%d" % number for number in range(20)]
        wide = [b"wide-%d" % number for number in range(40)]
        assert sorted(received["audit"]) == sorted([*old, *new, *java, *single, *wide])
        for partition in range(6):  # within a partition it is the order of Kafka
            own = [value for value in received["audit"] if value in old[partition::6]]
            assert own == old[partition::6]
        for name in ("stock", "billing"):
            common = set(received[name])
            assert received[name] == [value for value in received["audit"] if value in common]
        expected = sorted([*old, *java, *new, *single])
        until(lambda: len(group.values) >= len(expected), "the group's new records")
        assert sorted(group.values) == expected
    refused = adopt(where, topic, "--seconds", "0", code=5)
    assert "is adopted already: epoch 1 runs" in refused

    shown = amcast("adopt", topic, "--undo", "-b", where)
    assert (shown.returncode, "repeat with --yes" in shown.stderr) == (5, True)
    assert "40 messages to several partitions lie only there and are lost" in shown.stdout
    for code in (0, 2):  # the second time, nothing is left
        done = amcast("adopt", topic, "--undo", "--yes", "-b", where)
        assert done.returncode == code, done.stderr
    with Admin(where) as admin:
        assert admin.partitions([topic, *(f"{topic}.{name}" for name in OWN)]) == {topic: 6}
    assert adopt(where, topic, "--seconds", "0", "--force")["offsets_stored"] == len(expected)


def transaction(where, topic, values, partitions, *, commit):
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": where, "transactional.id": f"{topic}-{commit}"}
    )
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    for number, value in enumerate(values):
        producer.produce(topic, value=value, partition=number % partitions)
    assert producer.flush(PATIENCE_S) == 0
    if commit:
        producer.commit_transaction(PATIENCE_S)
    else:
        producer.abort_transaction(PATIENCE_S)


@pytest.mark.timeout(600)
def test_old_records_are_delivered_completely_without_those_of_aborted_transactions(
    where, tmp_path
):
    topic = topic_of(where, tmp_path, 3)
    old = [b"old-%d" % number for number in range(10_000)]
    committed = [b"committed-%d" % number for number in range(30)]
    produce(where, topic, old, 3)
    transaction(where, topic, committed, 3, commit=True)
    transaction(where, topic, [b"aborted-%d" % number for number in range(30)], 3, commit=False)
    late = [b"late-%d" % number for number in range(300)]
    writing, stop = [], threading.Event()

    def write():
        while not stop.is_set() or len(writing) < 10:
            produce(where, topic, [b"%s-%d" % (value, len(writing)) for value in late], 3)
            writing.append(len(late))

    writer = threading.Thread(target=write, daemon=True)
    writer.start()  # a plain producer writes the whole time that the topic is adopted
    try:
        document = adopt(where, topic, "--seconds", "1", "--apply")
    finally:
        stop.set()
        writer.join(PATIENCE_S)
    assert document["offsets_stored"] > len(old)
    assert document["messages_per_s"] > 0
    with (
        hosting(where, topic, "librdkafka", tmp_path),
        Consumer(where, topic=topic, name="all") as consumer,
    ):
        values = [record.value for batch in consumer.until_end() for record in batch.records]
    written = [b"%s-%d" % (value, turn) for turn in range(len(writing)) for value in late]
    assert sorted(values) == sorted([*old, *committed, *written])
    for partition in range(3):
        own = set(old[partition::3])
        assert [value for value in values if value in own] == old[partition::3]


@pytest.mark.campaign
def test_without_apply_nothing_is_made_and_what_was_written_can_be_applied(where, tmp_path):
    topic = topic_of(where, tmp_path, 100, max_message_bytes=300_000, retention_ms=3_600_000)
    document = adopt(where, topic, "--seconds", "0", "--to", "P1,P2")
    assert (document["partitions"], document["offsets_stored"]) == (100, 0)
    assert list(document["consumers"]) == ["all"]
    with Admin(where) as admin:
        assert admin.partitions(list(document["topics_to_make"])) == {}
    assert "exists" in adopt(where, topic, "--seconds", "0", "-i", "one=P1", code=2)
    new = ("--interests", "new.toml")  # the plan exists; then the interest file is not written, too
    assert "exists" in adopt(where, topic, "--seconds", "0", "-i", "one=P1", *new, code=2)
    assert not (tmp_path / "new.toml").exists()
    done = amcast("topology", "apply", f"{topic}.plan.json", "-b", where)
    assert done.returncode == 0, done.stderr
    with Admin(where) as admin:
        assert set(admin.partitions(list(document["topics_to_make"]))) == set(
            document["topics_to_make"]
        )
        settings = admin.topic_settings([f"{topic}.groups"])[f"{topic}.groups"]
    assert (settings["max.message.bytes"], settings["retention.ms"]) == ("300000", "3600000")
    for ours in document["topics_to_make"]:
        assert "belongs to amcast's topic" in adopt(where, ours, code=2)
    shown = amcast("topology", "show", "--from-cluster", "-b", where, "-t", topic)
    assert shown.returncode == 0, shown.stderr


def test_what_cannot_be_adopted_is_refused_with_the_reason_and_writes_nothing(where, tmp_path):
    topic = topic_of(where, tmp_path, 3, cleanup_policy="compact")
    assert "cleanup.policy=compact" in adopt(where, topic, "--seconds", "0", code=1)
    assert "does not exist" in adopt(where, f"{topic}-absent", code=2)
    assert "Kafka's own" in adopt(where, "__consumer_offsets", code=2)
    assert "is not a valid name" in adopt(where, "t" * 245, code=2)
    twice = ("-i", "mine=P1", "-i", "mine=P2")
    assert "names consumer mine twice" in adopt(where, topic, *twice, code=2)
    for wrong, sentence in [
        ("mine", "is not NAME=P1,P3"),
        ('my"name=P1', "not a valid name"),
        ("mine=P9", "unknown partition 'P9'"),
        ("my name=P1", "not a valid name"),
    ]:
        assert sentence in adopt(where, topic, "--seconds", "0", "-i", wrong, code=2)
    assert list(tmp_path.glob("*.toml")) == list(tmp_path.glob("*.json")) == []
