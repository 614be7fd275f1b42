"""Brokers whose defaults are hostile, and one of three that is dead."""

import re

import pytest

from collectors.doctor.finding import refuse
from collectors.doctor.inspection import of_settings
from multicast import Consumer, Producer
from multicast.control import order_topic
from multicast.drivers.kafka import Admin
from multicast.local.cluster import LocalCluster
from tests.helpers.plans import poster
from tests.helpers.system import PATIENCE_S, System
from tests.running.commands import amcast

pytestmark = [
    pytest.mark.campaign,
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]
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


def test_with_one_of_three_brokers_dead_every_command_works_or_names_what_it_lacks(
    kafka_cluster_of_three, tmp_path
):
    cluster = kafka_cluster_of_three
    cluster.start()
    with System(cluster.bootstrap, poster(), tmp_path) as system:
        system.order()
        plan = tmp_path / "next.json"
        interests = tmp_path / "interests.toml"
        interests.write_text(
            f'topic = "{system.topic}2"\npartitions = ["P1", "P2"]\n'
            '[[consumer]]\nname = "C1"\ninterest = ["P1", "P2"]\n'
        )
        place = ["-b", cluster.bootstrap]
        common = [*place, "-t", system.topic]
        cluster.kill(2)
        commands = [
            ["topology", "plan", str(interests), "--out", str(plan)],
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
        failed = []
        try:
            for command in commands:
                done = amcast(*command)
                told = done.stdout + done.stderr
                # The doctor says what is wrong, and recovery what it would need.
                codes = {"doctor": {0, 1}, "topology recover": {0, 5}}
                names = [command[0], " ".join(command[:2])]
                right = next((codes[name] for name in names if name in codes), {0})
                unsaid = re.search(r"UnknownBrokerId|Traceback|No broker at", told)
                if done.returncode not in right or unsaid:
                    failed.append((command[:2], done.returncode, told[-800:]))
        finally:
            cluster.restart(2)
        assert not failed
