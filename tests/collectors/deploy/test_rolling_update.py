"""A rolling update of collectors under load: no message is lost, doubled or out of order."""

import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.collectors.deploy.shared import SharedCollectors
from tests.collectors.test_replanning import Load, judged
from tests.helpers.plans import poster
from tests.helpers.system import PATIENCE_S, System, until

ROOT = Path(__file__).parents[3]
NAMES = ["C1", "C2", "C3"]
THIS = ("-m", "multicast")
# An earlier commit that writes order records of the same version (topology: `order_version`).
EARLIER = "ca90bfc05609af738d977bf0f219d5fdf2f7bf47"
PROGRAM = """
import sys
sys.path.insert(0, {folder!r})
import multicast, collectors
assert all(each.__file__.startswith({folder!r}) for each in (multicast, collectors))
from multicast.cli.main import main
main()
"""
pytestmark = pytest.mark.campaign


@pytest.fixture
def earlier(tmp_path):
    """What makes Python the command `amcast` of an earlier version."""
    rooms = ["amcast", "multicast", "topology", "collectors"]
    archive = ["git", "archive", EARLIER, *rooms]
    done = subprocess.run(archive, cwd=ROOT, capture_output=True, check=True)
    folder = tmp_path / "earlier"
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as opened:
        opened.extractall(folder, filter="data")
    return ("-c", PROGRAM.format(folder=str(folder)))


def messages_of(python, system, name):
    """The numbers of the messages that `amcast receive` of a version prints."""
    words = ["receive", "-b", system.bootstrap, "-t", system.topic, "-n", name, "--until-end"]
    done = subprocess.run(
        [sys.executable, *python, *words],
        capture_output=True, text=True, timeout=PATIENCE_S, check=True,
    )  # fmt: skip
    return [int(json.loads(line)["payload"]) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    "versions", ["one", pytest.param("two", marks=pytest.mark.needs("history"))]
)
def test_processes_that_restart_one_by_one_under_load_violate_nothing(
    versions, kafka_cluster, tmp_path, request
):
    # Init. With two versions: to this one, and one of the processes back again.
    before = THIS if versions == "one" else request.getfixturevalue("earlier")
    turns = [(0, THIS), (1, THIS)] if versions == "one" else [(0, THIS), (1, THIS), (1, before)]
    bootstrap = kafka_cluster.bootstrap
    with (
        System(bootstrap, poster(), tmp_path) as system,
        SharedCollectors(bootstrap, system.topic, tmp_path, processes=2, python=before) as shared,
    ):
        load = Load(system, NAMES)

        def receive(messages):
            until(lambda: all(len(got) > messages for got in load.received.values()), "deliveries")

        # Test.
        for count, (number, python) in enumerate(turns, 1):
            receive(100 * count)
            shared.stop(number)
            shared.start(number, python)

        # Check: each consumer has all messages, once, and so has one of the earlier version.
        load.end()
        assert judged(system, *NAMES).deliveries > 600
        if versions == "two":
            for name in NAMES:
                delivered = [number for _, number in load.received[name]]
                assert messages_of(before, system, name) == delivered
