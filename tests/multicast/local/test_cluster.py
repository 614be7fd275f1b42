"""Brokers of our own: their processes, a cluster's life, and what happens when it fails."""

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from collectors.reconfiguration.appends import append_one
from multicast.cli.local import app
from multicast.drivers import open_driver
from multicast.drivers.kafka import Admin, TopicSpec
from multicast.drivers.protocol import TopicPartition
from multicast.errors import AmcastError, ClusterUnreachable, UsageError
from multicast.local.broker import (
    Broker,
    BrokerDied,
    BrokerHost,
    PortTaken,
    free_ports,
    port_is_free,
)
from multicast.local.cluster import Busy, LocalCluster
from multicast.local.process import carriers
from tests.helpers.driver_worlds import whole
from tests.helpers.system import PATIENCE_S, until
from tests.running.parts import sample

ROOT = Path(__file__).parents[3]


def token_of(directory):
    return json.loads((directory / "cluster.json").read_text())["token"]


# --- ports and files --------------------------------------------------------------------------


def test_free_ports_are_distinct_and_a_listening_one_is_not_free():
    ports = free_ports(20)
    assert len(set(ports)) == 20
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert not port_is_free(server.getsockname()[1])


def test_a_path_that_is_not_ascii_is_written_as_java_reads_it(tmp_path):
    broker = Broker(1, 3, 4, directory=tmp_path / "josé\\n\N{GRINNING FACE}")
    broker.write_properties([broker], {})
    written = broker.properties.read_text(encoding="ascii")
    assert f"log.dirs={tmp_path}/jos\\u00e9\\\\n\\ud83d\\ude00/data\n" in written


@pytest.mark.parametrize("brokers", [0, 2, 4])
def test_only_one_broker_or_three(brokers):
    with pytest.raises(UsageError, match="1 broker or 3"):
        LocalCluster(brokers=brokers)


def test_a_host_is_in_the_listeners_and_voters_and_its_settings_are_the_strongest(tmp_path):
    far = BrokerHost("10.0.0.2", settings={"num.io.threads": "3"}, port=1, controller_port=2)
    brokers = [Broker(number, 3, 4, directory=tmp_path / f"{number}") for number in (1, 2)]
    brokers[1].move(far)
    written = []
    for broker in brokers:
        broker.write_properties(brokers, {"num.io.threads": "8"})
        lines = broker.properties.read_text().splitlines()
        written.append(dict(line.split("=", 1) for line in lines))
    near, moved = written
    assert near["listeners"] == "PLAINTEXT://127.0.0.1:3,CONTROLLER://127.0.0.1:4"
    assert moved["listeners"] == "PLAINTEXT://10.0.0.2:1,CONTROLLER://10.0.0.2:2"
    assert near["controller.quorum.voters"] == "1@127.0.0.1:4,2@10.0.0.2:2"
    assert moved["controller.quorum.voters"] == near["controller.quorum.voters"]
    assert (near["num.io.threads"], moved["num.io.threads"]) == ("8", "3")


def test_a_taken_port_is_said_before_anything_is_made(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        cluster = LocalCluster(tmp_path / "cluster", port=port)
        with pytest.raises(PortTaken, match=f"port {port} is taken"):
            cluster.start()
    assert list(tmp_path.iterdir()) == []


def test_a_directory_with_somebody_elses_data_is_refused(tmp_path):
    (tmp_path / "broker-1").mkdir()
    with pytest.raises(UsageError, match="not made by amcast"):
        LocalCluster(tmp_path).start()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broker-1"]


def test_a_damaged_state_file_is_named(tmp_path):
    (tmp_path / "cluster.json").write_text("{}")
    with pytest.raises(AmcastError, match=r"cluster\.json is damaged"):
        LocalCluster(tmp_path).status()


def test_two_commands_at_once_in_one_directory(tmp_path):
    with (tmp_path / "lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(Busy):
            LocalCluster(tmp_path).start()


def test_where_there_is_no_cluster_down_is_content_and_the_rest_says_so(tmp_path):
    run = CliRunner()
    options = ["--dir", os.fspath(tmp_path / "none")]
    assert run.invoke(app, ["down", *options]).exit_code == 0
    status = run.invoke(app, ["status", *options, "-o", "json"])
    assert json.loads(status.stdout)["state"] == "absent"
    assert isinstance(status.exception, ClusterUnreachable)
    assert list(tmp_path.iterdir()) == []


# --- real brokers -----------------------------------------------------------------------------


@pytest.mark.kafka
def test_up_status_down_and_up_again_keep_the_data(tmp_path):
    run = CliRunner()
    directory = tmp_path / "cluster"
    options = ["--dir", os.fspath(directory)]
    try:
        first = run.invoke(app, ["up", *options])
        assert first.exit_code == 0, first.exception
        bootstrap = first.stdout.strip()
        assert bootstrap.startswith("127.0.0.1:")
        assert "starting 1 broker" in first.stderr
        kept = TopicPartition("kept", 0)
        with Admin(bootstrap) as admin, closing(open_driver("librdkafka", bootstrap)) as driver:
            admin.create_topics({kept.topic: TopicSpec(1)})
            append_one(driver, kept, None, b"one", PATIENCE_S)

        again = run.invoke(app, ["up", *options])
        assert again.stdout.strip() == bootstrap
        assert "already running" in again.stderr
        assert isinstance(run.invoke(app, ["up", *options, "--brokers", "3"]).exception, UsageError)

        status = json.loads(run.invoke(app, ["status", *options, "-o", "json"]).stdout)
        assert (status["state"], status["bootstrap"]) == ("running", bootstrap)
        (broker,) = status["brokers"]
        assert broker["state"] == "running"
        token = token_of(directory)
        assert carriers(token) == [broker["pid"]]
        assert bootstrap in run.invoke(app, ["status", *options]).stdout
        assert "Kafka Server started" in Path(broker["log"]).read_text()

        down = run.invoke(app, ["down", *options])
        assert down.exit_code == 0
        assert "1 broker(s) stopped" in down.stderr
        assert carriers(token) == []
        assert not Path(f"/proc/{broker['pid']}").exists()
        stopped = run.invoke(app, ["status", *options])
        assert isinstance(stopped.exception, ClusterUnreachable)

        assert run.invoke(app, ["up", *options]).stdout.strip() == bootstrap
        with closing(open_driver("librdkafka", bootstrap)) as driver:
            assert [record.value for record in whole(driver, kept)] == [b"one"]
    finally:
        (directory / "mine.txt").write_text("not made by up")
        run.invoke(app, ["down", *options, "--wipe"])
    assert [path.name for path in directory.iterdir()] == ["mine.txt"]


@pytest.mark.kafka
@pytest.mark.parametrize("brokers", [1, pytest.param(3, marks=pytest.mark.campaign)])
def test_a_broker_that_dies_is_quoted_and_none_is_left(tmp_path, brokers):
    cluster = LocalCluster(tmp_path, brokers=brokers, settings={"num.io.threads": "many"})
    with pytest.raises(BrokerDied, match=r"(?s)broker \d died .*num\.io\.threads") as raised:
        cluster.start()
    assert "\tat " not in str(raised.value)
    assert carriers(token_of(tmp_path)) == []
    assert cluster.status().state == "stopped"


def command_line(*arguments):
    # A test run in the background of a shell would hand its deaf ear for SIGINT down.
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    code += "from multicast.cli.local import app; app()"
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


@pytest.mark.kafka
@pytest.mark.parametrize("number", sample([signal.SIGINT, signal.SIGKILL, signal.SIGTERM], of=2))
def test_an_interrupted_up_leaves_no_process(tmp_path, number):
    with command_line("up", "--dir", os.fspath(tmp_path)) as up:
        until((tmp_path / "broker-1" / "log.txt").exists, "the broker's log")
        token = token_of(tmp_path)
        until(lambda: carriers(token), "the broker's process")
        up.send_signal(number)
        up.wait(timeout=PATIENCE_S)
    assert up.returncode == (130 if number is signal.SIGINT else -number)
    until(lambda: not carriers(token), "the end of its processes")
    # The last of its threads may take a moment more than its memory.
    until(lambda: LocalCluster(tmp_path).status().state == "stopped", "its end")


@pytest.mark.campaign
@pytest.mark.kafka
def test_a_cluster_is_stopped_and_wiped_though_its_state_cannot_be_written(tmp_path):
    folder = tmp_path / "local"
    cluster = LocalCluster(folder)
    cluster.start()
    draft = folder / "cluster.json.draft"
    draft.mkdir()  # so that the file cannot be written, as on a full disk
    token = token_of(folder)
    assert cluster.stop() == [1]
    until(lambda: not carriers(token), "the end of its processes")
    assert LocalCluster(folder).status().state == "stopped"
    draft.rmdir()
    cluster.wipe()
    assert not folder.exists()
