"""`amcast receive` in a group: what it has printed is committed, though nothing more comes."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from multicast import Consumer, Producer
from multicast.cli.receive import app
from tests.helpers.plans import poster
from tests.helpers.system import System, until


@pytest.mark.parametrize("count", ["-1", "0"])
def test_a_number_of_messages_that_never_comes_is_refused(count):
    result = CliRunner().invoke(app, ["--name", "C1", "--max", count])
    assert result.exit_code == 2
    assert "--max" in result.stderr


def test_the_last_message_before_a_silence_is_committed(kafka_cluster, tmp_path):
    # Init: one that receives for a group, of a single log, which needs no collector.
    with System(kafka_cluster.bootstrap, poster(), tmp_path) as system:
        chosen = ["--interest", "P5", "--group", "g", *system.common()]
        command = [sys.executable, "-m", "multicast", "receive", *chosen]
        with (
            Producer(system.bootstrap, topic=system.topic) as producer,
            subprocess.Popen(command, stdout=subprocess.PIPE) as receiving,
        ):
            try:
                # Test: messages that come one by one, and then none.
                for payload in (b"a", b"b", b"c"):
                    producer.multicast(payload, to={"P5"}).accepted()
                    printed = json.loads(receiving.stdout.readline())

                # Check.
                def committed():
                    known = {"topic": system.topic, "interest": {"P5"}, "group": "g"}
                    with Consumer(driver=system.driver, **known) as consumer:
                        return str(consumer.position)

                until(lambda: committed() == printed["cursor"], "the commit of what is printed")
            finally:
                receiving.kill()
