"""Brokers whose defaults are hostile, that throttle or refuse, and one of three that is dead."""

import re
import shutil
import subprocess
from contextlib import closing

import pytest
from kafka.protocol.admin import AlterClientQuotasRequest

from collectors.doctor.finding import refuse
from collectors.doctor.inspection import of_settings
from collectors.reconfiguration.apply import apply
from collectors.reconfiguration.topics import topics_of
from multicast import Consumer, Producer
from multicast.control import control_topics, order_topic
from multicast.drivers import open_driver
from multicast.drivers.kafka import Admin
from multicast.errors import UnsafeCluster
from multicast.local.cluster import DEFAULT_VERSION, LocalCluster
from multicast.local.installation import install
from tests.helpers.plans import poster
from tests.helpers.system import PATIENCE_S, System
from tests.running.commands import amcast

pytestmark = [pytest.mark.campaign, pytest.mark.kafka, pytest.mark.timeout(900)]
DRIVERS = ("kafka-python", "librdkafka")
SMALL = {"log.segment.bytes": "1048576", "log.retention.ms": "3600000"}
DEFAULTS = {
    "zstd, times of brokers": {
        "compression.type": "zstd",
        "log.message.timestamp.type": "LogAppendTime",
    },
    "lz4, small segments": {"compression.type": "lz4", **SMALL},
    "snappy, topics made by themselves": {
        "compression.type": "snappy",
        "auto.create.topics.enable": "true",
    },
    "gzip, messages of small size": {"compression.type": "gzip", "message.max.bytes": "100000"},
}


def works(bootstrap, folder):
    """Apply a plan, order messages of both drivers, deliver them with both."""
    folder.mkdir()
    with System(bootstrap, poster(), folder) as system:
        system.order()
        with Admin(bootstrap) as admin:
            found = of_settings(admin, system.plan)
            refuse(found)
            topic = order_topic(system.topic)
            assert admin.topic_settings([topic])[topic]["compression.type"] == "producer"
        sent = []
        for driver in DRIVERS:
            with Producer(bootstrap, topic=system.topic, driver=driver) as producer:
                for number in range(20):
                    payload = f"{driver} {number} ".encode() * 20
                    receipt = producer.multicast(payload, to={"P1", "P3"})
                    receipt.accepted(timeout=PATIENCE_S)
                    sent.append(payload)
                receipt.ordered(timeout=PATIENCE_S)
        for driver in DRIVERS:
            settings = {"topic": system.topic, "driver": driver, "committed": False}
            with Consumer(bootstrap, name="C1", **settings) as consumer:
                batches = list(consumer.until_end())
            assert [record.value for batch in batches for record in batch.records] == sent


@pytest.mark.parametrize("case", DEFAULTS)
def test_hostile_defaults_change_nothing(tmp_path, case):
    with LocalCluster(brokers=1, settings=DEFAULTS[case]) as cluster:
        works(cluster.bootstrap, tmp_path / "system")


def test_a_default_that_would_lose_messages_is_refused_before_a_topic_is_made():
    compacts, plan = {"log.cleanup.policy": "compact"}, poster()
    with (
        LocalCluster(brokers=1, settings=compacts) as cluster,
        Admin(cluster.bootstrap) as admin,
        closing(open_driver("librdkafka", cluster.bootstrap)) as driver,
    ):
        refused = rf"topic {plan.topic} \(and {plan.topic}\.groups\) has cleanup\.policy=compact"
        with pytest.raises(UnsafeCluster, match=refused):
            apply(driver, admin, plan)
        assert admin.partitions([*topics_of(plan), *control_topics(plan.topic)]) == {}


def commands(system, folder, *, topic=""):
    """List the commands that an operator gives; `topic`: of the plan that is new."""
    plan, interests = folder / "next.json", folder / "interests.toml"
    interests.write_text(
        f'topic = "{topic or system.topic + "2"}"\npartitions = ["P1", "P2"]\n'
        '[[consumer]]\nname = "C1"\ninterest = ["P1", "P2"]\n'
    )
    place = ["-b", system.bootstrap]
    common = [*place, "-t", system.topic]
    return [
        ["topology", "plan", str(interests), "--force", "--out", str(plan)],
        ["topology", "apply", *place, str(plan)],
        ["topology", "apply", *place, str(plan)],
        ["topology", "verify", *common],
        ["collectors", "status", *common],
        ["doctor", *common],
        ["send", *common, "--to", "P1,P3", "--ordered", str(interests)],
        ["receive", *common, "--name", "C1", "--until-end"],
        ["explain", *common, "P1+P3:0"],
        ["topology", "recover", *common],
    ]


def wrong_answers(commands, *, naming="nothing"):
    """Run these; give those that fail and do not say it, or say what tells an operator nothing.

    The doctor says what is wrong, and recovery what it would need.
    """
    codes = {"doctor": {0, 1}, "topology recover": {0, 5}}
    failed = []
    for command in commands:
        done = amcast(*command)
        told = done.stdout + done.stderr
        names = [command[0], " ".join(command[:2])]
        right = next((codes[name] for name in names if name in codes), {0})
        unsaid = re.search(r"UnknownBrokerId|Traceback|No broker at", told)
        named = re.search(naming, done.stderr)
        if unsaid or (done.returncode not in right and not named):
            failed.append((command[:2], done.returncode, told[-800:]))
    return failed


def test_with_one_of_three_brokers_dead_every_command_works_or_names_what_it_lacks(
    kafka_cluster_of_three, tmp_path
):
    cluster = kafka_cluster_of_three
    cluster.start()
    with System(cluster.bootstrap, poster(), tmp_path) as system:
        system.order()
        cluster.kill(2)
        try:
            failed = wrong_answers(commands(system, tmp_path))
        finally:
            cluster.restart(2)
        assert not failed


# -- quotas, and a policy of topics ---------------------------------------------------------------

QUOTAS = {
    "bytes": {"producer_byte_rate": 1_000.0, "consumer_byte_rate": 2_000.0},
    "requests": {"request_percentage": 1.0},
    "creations": {"controller_mutation_rate": 0.5},
}
POLICY = """
import java.util.Map;
import org.apache.kafka.common.errors.PolicyViolationException;
import org.apache.kafka.server.policy.CreateTopicPolicy;

public class Policy implements CreateTopicPolicy {
  public static void premain(String options) {}
  public void configure(Map<String, ?> settings) {}
  public void close() {}
  public void validate(RequestMetadata wanted) {
    if (wanted.topic().startsWith("refused"))
      throw new PolicyViolationException("topics of that name belong to another team");
  }
}
"""


def set_quotas(bootstrap, quotas, *, remove=False):
    """Set quotas for every user, or remove them."""
    request = AlterClientQuotasRequest
    entry = request.EntryData
    ops = [entry.OpData(key=key, value=value, remove=remove) for key, value in quotas.items()]
    of_all = entry.EntityData(entity_type="user", entity_name=None)
    with Admin(bootstrap) as admin:
        manager = admin._manager
        answer = manager.run(
            manager.send, request(entries=[entry(entity=[of_all], ops=ops)], validate_only=False)
        )
    assert [each.error_code for each in answer.entries] == [0]


def java_agent(folder):
    """Compile the policy into a jar that Java puts behind the class path of a broker."""
    kafka = install(DEFAULT_VERSION, progress=lambda _: None)
    (folder / "Policy.java").write_text(POLICY)
    (folder / "manifest").write_text("Premain-Class: Policy\n")
    path = ":".join(map(str, kafka.jars))
    for words in (
        [shutil.which("javac"), "-cp", path, "Policy.java"],
        [shutil.which("jar"), "cfm", "policy.jar", "manifest", "Policy.class"],
    ):
        subprocess.run(words, cwd=folder, check=True)
    return f"-javaagent:{folder / 'policy.jar'}"


@pytest.mark.needs("jdk")
def test_under_quotas_and_a_policy_every_command_works_or_names_what_stops_it(tmp_path):
    policy = {"create.topic.policy.class.name": "Policy"}
    with (
        LocalCluster(brokers=1, settings=policy, java=[java_agent(tmp_path)]) as cluster,
        System(cluster.bootstrap, poster(), tmp_path) as system,
    ):
        system.order()
        refused = commands(system, tmp_path, topic="refused")[:2]
        wrong = {
            "policy": wrong_answers(
                refused, naming=r"\(PolicyViolation\): topics of that name belong to another team$"
            )
        }
        for name, quotas in QUOTAS.items():
            set_quotas(cluster.bootstrap, quotas)
            try:
                tried = commands(system, tmp_path, topic=name)
                wrong[name] = wrong_answers(
                    tried, naming=r"a quota is used up|quota of the brokers|consumer_byte_rate"
                )
            finally:
                set_quotas(cluster.bootstrap, quotas, remove=True)
        assert not any(wrong.values()), wrong
