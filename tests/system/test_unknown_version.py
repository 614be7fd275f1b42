"""A topic whose plan names order records of another version: every command says so, by name."""

import json
import uuid
from contextlib import closing
from dataclasses import replace

import pytest

from collectors.reconfiguration.appends import append_one
from multicast import Consumer, Producer
from multicast.control import control_partition, genesis
from multicast.control.codecs import plan_record
from multicast.drivers import open_driver
from multicast.drivers.kafka import Admin, TopicSpec
from multicast.errors import UnknownVersion
from tests.helpers.plans import chain
from tests.helpers.system import PATIENCE_S, amcast

INTERESTS = """
topic = "{topic}"
partitions = ["P1", "P2", "P3", "P4"]
consumer = [{{ name = "C1", interest = ["P1", "P2"] }}]
"""


@pytest.fixture(scope="module", params=[1, 2, 4])
def topic(kafka_cluster, request):
    """A topic with a plan of that version; in version 1 plans did not name it."""
    name = f"versions-{request.param}-{uuid.uuid4().hex[:8]}"
    plan = replace(chain(topic=name), order_version=request.param)
    key, value = plan_record(genesis(name), plan, attempt="1")
    if request.param == 1:
        document = json.loads(value)
        del document["plan"]["order_version"]
        value = json.dumps(document).encode()
    driver = open_driver("librdkafka", kafka_cluster.bootstrap)
    with Admin(kafka_cluster.bootstrap) as admin:
        topics = {name: 4, f"{name}.Msg-TO": 2, f"{name}.topology": 1}
        if request.param > 2:
            topics[f"{name}.collectors"] = 1
        admin.create_topics({each: TopicSpec(count) for each, count in topics.items()})
    append_one(driver, control_partition(name), key, value, PATIENCE_S)
    driver.close()
    return name


def commands(topic, folder):
    """All that opens a topic, with what it is given."""
    file, plan = folder / "interests.toml", folder / "plan.json"
    file.write_text(INTERESTS.format(topic=topic))
    plan.write_text(json.dumps(replace(chain(epoch=2, topic=topic)).to_json()))
    yield from (
        ["topology", "plan", file, "--from-cluster"],
        ["topology", "apply", plan],
        ["topology", "verify", "-t", topic],
        ["topology", "recover", "-t", topic],
        ["topology", "show", "--from-cluster", "-t", topic],
        ["collectors", "status", "-t", topic],
        ["doctor", "-t", topic],
        ["explain", "P1:0", "-t", topic],
        ["send", "-t", topic, "--to", "P1"],
        ["receive", "-t", topic, "-n", "C1", "--until-end"],
        ["receive", "-t", topic, "-n", "C4", "--until-end"],
        ["verify", "-t", topic, "--name", "C1"],
        ["export", "-t", topic, "-n", "C1", "--to", folder / "out"],
    )


@pytest.mark.parametrize("topic", [1], indirect=True)
def test_each_command_names_the_version_and_changes_nothing(topic, kafka_cluster, tmp_path):
    with closing(open_driver("librdkafka", kafka_cluster.bootstrap)) as driver:
        control = control_partition(topic)
        before = driver.high_watermarks([control])
        for words in commands(topic, tmp_path):
            done = amcast(*words, "-b", kafka_cluster.bootstrap, stdin="x\n")
            (said,) = done.stderr.splitlines()
            assert said.startswith(f"amcast: epoch 1 of topic {topic} has order records of"), words
            assert (done.returncode, done.stdout) == (1, ""), words
        assert driver.high_watermarks([control]) == before


def test_clients_name_it_when_they_are_opened(topic, kafka_cluster):
    bootstrap = kafka_cluster.bootstrap
    for opened in (
        lambda: Producer(bootstrap, topic=topic),
        lambda: Consumer(bootstrap, topic=topic, name="C1"),
        lambda: Consumer(bootstrap, topic=topic, interest={"P4"}),
    ):
        with pytest.raises(UnknownVersion, match=f"epoch 1 of topic {topic} has order records of"):
            opened()
