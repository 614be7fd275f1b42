"""What `amcast generate compose` writes, run by podman-compose: images and all services.

Podman here knows no health of containers without systemd, so the test waits where compose would.
"""

import contextlib
import json
import shutil
import subprocess
import sys

import pytest

from bench.demo.setup import locked
from bench.osn.transactions import FOLDER as FABRIC
from multicast.drivers import open_driver
from multicast.drivers.protocol import TopicPartition
from tests.collectors.deploy.podman import Podman
from tests.helpers.driver_worlds import whole
from tests.helpers.system import until

pytestmark = [pytest.mark.slow, pytest.mark.campaign, pytest.mark.timeout(1800)]
pytestmark.append(pytest.mark.needs("podman", "runc", "debootstrap"))
OUTSIDE = ["-b", "127.0.0.1:19092"]
INTERESTS = """\
topic = "A"
partitions = ["P1", "P2", "P3", "chain-a"]
[[consumer]]
name = "chain-a"
interest = ["chain-a"]
[[consumer]]
name = "all"
interest = ["P1", "P2", "P3"]
[[consumer]]
name = "two"
interest = ["P1", "P2"]
"""
NEW_CONSUMER = '[[consumer]]\nname = "new"\ninterest = ["P2", "P3"]\n'
KAFKA, COLLECTORS = "amcast_kafka_1", ("amcast_collectors_1", "amcast_collectors_2")
NODE, COPIES = "amcast_osn_1", TopicPartition("ordered", 0)


def amcast(*words, given="", fails=False):
    """Run the command as a user outside of all containers; give what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "amcast", *map(str, words)],
        input=given,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert fails or done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def podman(tmp_path_factory):
    with Podman(tmp_path_factory.mktemp("podman")) as podman:
        podman.make_images()
        yield podman


@pytest.fixture(scope="module")
def project(podman, tmp_path_factory):
    """The folder with the generated files, the wheel and a plan, whose containers run."""
    folder = tmp_path_factory.mktemp("amcast")
    amcast("generate", "compose", "--out", folder)
    source = tmp_path_factory.mktemp("source") / "amcast"
    subprocess.run(["git", "clone", "--quiet", ".", source], check=True)
    build = f"from setuptools import build_meta as b; b.build_wheel({str(folder)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=source, check=True, capture_output=True)
    (folder / "amcast.lock").write_text("\n".join(locked(("collectors", "planner", "osn"))))
    plan(folder, INTERESTS)
    podman.compose(folder, "up", "--detach", "--build", "--scale", "collectors=2", "kafka")
    until(lambda: is_healthy(podman, KAFKA), "the broker", 300)
    podman.compose(folder, "up", "--detach", "--scale", "collectors=2")
    apply(podman)
    until(lambda: all(is_healthy(podman, name) for name in COLLECTORS), "the collectors", 300)
    yield folder
    podman.compose(folder, "down", "--volumes")


def plan(folder, interests, *options):
    (folder / "interests.toml").write_text(interests)
    amcast(
        "topology",
        "plan",
        folder / "interests.toml",
        "--out",
        folder / "plan.json",
        "--force",
        *options,
    )


def apply(podman):
    """Run the service that applies the plan to its end; give what it prints."""
    podman("wait", "amcast_apply_1")
    return podman("start", "--attach", "amcast_apply_1")


def is_healthy(podman, name):
    """Run the health check of the compose file."""
    return podman("healthcheck", "run", name, check=False).strip() in {"", "healthy"}


def confined(podman, name):
    """Whether a container is read-only, and has no capability."""
    facts = json.loads(podman("inspect", name))[0]
    return facts["HostConfig"]["ReadonlyRootfs"] and not facts["EffectiveCaps"]


def ordered(*bodies, to="P1"):
    """Send messages from outside, and wait until they are ordered."""
    amcast("send", *OUTSIDE, "--to", to, "--ordered", given="".join(f"{each}\n" for each in bodies))


def received(name="all"):
    lines = amcast("receive", *OUTSIDE, "--name", name, "--until-end").splitlines()
    return [json.loads(line)["payload"] for line in lines]


@pytest.mark.usefixtures("project")
def test_messages_from_inside_and_outside_are_ordered_without_any_right(podman):
    before = received()
    ordered("outside")
    run = ["run", "--rm", "--network", "amcast_default", "--interactive", "localhost/amcast:latest"]
    podman(*run, "send", "-b", "kafka:9092", "--to", "P3", "--ordered", given="inside\n")
    assert received() == [*before, "outside", "inside"]
    assert all(confined(podman, name) for name in COLLECTORS)


@pytest.mark.usefixtures("project")
def test_the_other_container_goes_on_over_a_kill_and_a_stop(podman):
    before, first, second = received(), *COLLECTORS
    podman("kill", first)
    ordered("killed")
    podman("start", first)
    until(lambda: is_healthy(podman, first), "the container after its start", 300)
    podman("stop", second)
    assert json.loads(podman("inspect", second))[0]["State"]["ExitCode"] == 0
    ordered("stopped")
    podman("start", second)
    until(lambda: is_healthy(podman, second), "the container after its stop", 300)
    assert received() == [*before, "killed", "stopped"]


def test_a_node_of_the_ordering_service_serves_clients_outside(podman, project):
    shutil.copy(FABRIC / "chain-a.block", project / "genesis.block")
    people = FABRIC / "crypto"
    node = people / "ordererOrganizations/example.com/orderers/orderer.example.com/msp"
    shutil.copytree(node, project / "msp")
    user = people / "peerOrganizations/org1.example.com/users/User1@org1.example.com/msp"
    podman.compose(project, "--profile", "osn", "up", "--detach", "join", "osn")
    until(lambda: is_healthy(podman, NODE), "the node", 300)
    signed = ["-n", "127.0.0.1:7050", "--msp", user, "--msp-id", "Org1MSP"]
    amcast("osn", "broadcast", FABRIC / "chain-a.envelopes", "--wait", *signed)
    blocks = amcast("osn", "deliver", "-c", "chain-a", *signed)
    podman("restart", NODE)
    until(lambda: is_healthy(podman, NODE), "the node after its restart", 300)
    assert amcast("osn", "deliver", "-c", "chain-a", *signed) == blocks
    assert blocks.count("\n") > 1
    assert confined(podman, NODE)


def test_a_copier_copies_what_a_consumer_delivers(podman, project):
    (project / ".env").write_text("CONSUMER=all\nTARGET=ordered\n")
    podman.compose(project, "--profile", "materialize", "up", "--detach", "materialize")
    with contextlib.closing(open_driver("librdkafka", OUTSIDE[1])) as driver:
        until(lambda: driver.topic_ids(["ordered"]), "the topic", 300)
        until(lambda: [row.value.decode() for row in whole(driver, COPIES)] == received(), "copies")
    assert confined(podman, "amcast_materialize_1")


def test_a_plan_is_changed_by_the_service_that_applies_it(podman, project):
    plan(project, INTERESTS + NEW_CONSUMER, "--from-cluster", *OUTSIDE)
    assert "epoch 2 of topic A runs" in apply(podman)
    ordered("new", to="P3")
    assert received("new")[-1] == "new"


@pytest.mark.usefixtures("project")
def test_a_broker_that_comes_back_under_another_address_is_found(podman):
    before = received()
    address = address_of(podman)
    podman("stop", KAFKA)
    # Another container has the address now.
    taken = ["--network", "amcast_default", "--ip", address, "--name", "amcast_other"]
    podman("network", "disconnect", "amcast_default", KAFKA)
    podman("run", "--detach", *taken, "--entrypoint", "sleep", "localhost/amcast:latest", "600")
    podman("network", "connect", "--alias", "kafka", "amcast_default", KAFKA)
    podman("start", KAFKA)
    until(lambda: is_healthy(podman, KAFKA), "the broker", 300)
    assert address_of(podman) != address
    until(lambda: all(is_healthy(podman, name) for name in COLLECTORS), "the collectors", 120)
    ordered("moved")
    assert received() == [*before, "moved"]
    podman("rm", "--force", "amcast_other")


def address_of(podman):
    networks = json.loads(podman("inspect", KAFKA))[0]["NetworkSettings"]["Networks"]
    return networks["amcast_default"]["IPAddress"]
