"""The rights that each role needs: the table of docs/operating.md, held on Kafka's own authorizer.

Each role works with what the table grants, and names each right that is left out by itself. One
role and one right are in every run of the tests, all others in the campaign.
"""

import json
import logging
import re
import subprocess
import sys
import urllib.request
import uuid
from base64 import b64encode
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from multicast.cli.commands import build
from multicast.control import control_partition, log_partition
from multicast.drivers import open_driver
from multicast.drivers.kafka import Admin, TopicSpec
from multicast.drivers.protocol import Appended, TopicPartition
from multicast.errors import AppendNotAuthorized, AuthenticationFailed, NotAuthorized
from ordering_osn.node.kafka_connection import KafkaConnection, Replicas
from tests.helpers.authorized import PASSWORD, RIGHTS, all_of, authorized_broker, named, names
from tests.helpers.driver_worlds import append_all
from tests.helpers.forged import far, forge
from tests.helpers.small import until
from tests.helpers.system import PATIENCE_S, System
from topology.interests import from_document
from topology.planner.solver import plan as solve

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(900)]
INTERESTS = {
    "topic": "A",
    "partitions": ["P1", "P2", "P3"],
    "destinations": [["P1", "P3"]],
    "consumer": [
        {"name": "C1", "interest": ["P1", "P2"]},
        {"name": "C2", "interest": ["P2", "P3"]},
    ],
}
PATIENT = ("--timeout", str(PATIENCE_S))
PLAN = solve(from_document(INTERESTS))
ALL = [part for node in PLAN.collectors for part in ("--node", node.name)]
# The role that most have who multicast, and the right to write to the log of a set.
ALWAYS = ("send --ordered-librdkafka", "send-Write-topic-A.groups")
SETS = ('"P1"', '"P2"', '"P1", "P3"')
MESSAGES = "".join(f'{{"to": [{to}], "payload": "x"}}\n' for to in SETS)


def each(*roles):
    cases = [(role, right) for role in roles for right in RIGHTS[role]]
    return [case(f"{role}-{'-'.join(right)}", role, right) for role, right in cases]


def case(name, *parameters):
    return pytest.param(*parameters, id=name, marks=() if name in ALWAYS else pytest.mark.campaign)


@pytest.fixture(scope="module")
def broker():
    with authorized_broker() as started:
        yield started


@pytest.fixture(scope="module")
def system(broker, tmp_path_factory):
    """A topic with its collectors, which the operator runs."""
    folder = tmp_path_factory.mktemp("system")
    with ExitStack() as opened:
        made = opened.enter_context(System(broker.operator, PLAN, folder))
        opened.enter_context(collectors(made.topic, {}, folder, *ALL, bootstrap=broker.operator))
        for arguments in (["send", "--ordered", *PATIENT], verb("receive --group", "g")):
            done = amcast(arguments, made.topic, {}, folder, bootstrap=broker.operator)
            assert done.exit_code == 0, done.output
        yield made


@contextmanager
def collectors(topic, client, folder, *arguments, bootstrap):
    """Run collectors in a process of their own; its output stands in "log"."""
    settings_file(folder, client)
    command = [sys.executable, "-m", "multicast", "collectors", "run", *arguments]
    command += ["-b", bootstrap, "-t", topic, "--web-port", "0"]
    with (folder / "log").open("wb") as out:
        process = subprocess.Popen(command, cwd=folder, stdout=out, stderr=out)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def settings_file(folder, client):
    pairs = "".join(f'"{name}" = "{value}"\n' for name, value in client.items())
    (folder / "amcast.toml").write_text(f"[client]\n{pairs}")


def amcast(arguments, topic, client, folder, *, bootstrap, driver="librdkafka"):
    """Run a verb in this process, as that user."""
    settings_file(folder, client)
    env = {"AMCAST_BOOTSTRAP": bootstrap, "AMCAST_TOPIC": topic, "AMCAST_DRIVER": driver}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return CliRunner().invoke(build(arguments), arguments, input=MESSAGES, env=env)


def verb(role, group):
    return {
        "send": ["send", *PATIENT],
        "send --ordered": ["send", "--ordered", *PATIENT],
        "receive": ["receive", "--name", "C1", "--until-end", *PATIENT],
        "receive --group": ["receive", "--name", "C1", "--until-end", "--group", group, *PATIENT],
        "topology history": ["topology", "history"],
        "topology plan --from-cluster": [
            *("topology", "plan", "interests.toml", "--from-cluster"),
            *("--window", "0.1", "--out", "plan.json"),
        ],
        "collectors status": ["collectors", "status"],
        "topology verify": ["topology", "verify"],
        "doctor": ["doctor", "--patience", "0"],
    }[role]


ALONE = ("send", "send --ordered", "receive", "receive --group")
DRIVERS = ("kafka-python", "librdkafka")


@pytest.mark.parametrize(
    ("role", "driver"), [case(f"{role}-{one}", role, one) for role in ALONE for one in DRIVERS]
)
def test_a_client_works_with_the_rights_of_its_role(broker, system, tmp_path, role, driver):
    group = f"g-{driver}"
    client = broker.user(*named(all_of(role), system.topic, group))
    done = amcast(
        verb(role, group), system.topic, client, tmp_path, bootstrap=broker.users, driver=driver
    )
    assert done.exit_code == 0, (done.output, done.exception)


@pytest.mark.parametrize(("role", "right"), each(*ALONE))
def test_a_client_says_which_right_it_misses(broker, system, tmp_path, role, right):
    rights = [one for one in all_of(role) if one != right]
    client = broker.user(*named(rights, system.topic, "g"))
    for driver in DRIVERS:
        arguments = verb(role, "g")
        done = amcast(
            arguments, system.topic, client, tmp_path, bootstrap=broker.users, driver=driver
        )
        error = done.exception
        assert isinstance(error, NotAuthorized), (driver, done.output, error)
        assert names(str(error), right, system.topic), (driver, error)
        assert (error.exit_code, error.retriable) == (1, False)
        assert (role != "send --ordered") or "3 accepted" in done.output


NOTES = ("topology verify", "doctor")  # they go on without what they may not see
LOOKS = ("topology history", "topology plan --from-cluster", "collectors status", *NOTES)


@pytest.mark.campaign
@pytest.mark.parametrize("role", LOOKS)
def test_a_look_sees_all_with_the_rights_of_its_role(broker, system, tmp_path, role):
    write_interests(tmp_path, system.topic)
    works(broker, system.topic, role, tmp_path, verb(role, "g"))


@pytest.mark.parametrize(("role", "right"), each(*LOOKS))
def test_a_look_says_what_it_may_not_see(broker, system, tmp_path, role, right):
    rights = [one for one in all_of(role) if one != right]
    client = broker.user(*named(rights, system.topic, "g"))
    write_interests(tmp_path, system.topic)
    done = amcast(verb(role, "g"), system.topic, client, tmp_path, bootstrap=broker.users)
    said = f"{done.output} {done.exception}"
    assert names(said, right, system.topic), said
    # No collectors run, and who may see that is warned.
    assert done.exit_code == (0 if role in NOTES and "warn " not in said else 1), said


def write_interests(folder, topic):
    lines = [f"topic = {json.dumps(topic)}"]
    lines += [f"{name} = {json.dumps(INTERESTS[name])}" for name in ("partitions", "destinations")]
    for one in INTERESTS["consumer"]:
        lines += ["[[consumer]]", *(f"{name} = {json.dumps(value)}" for name, value in one.items())]
    (folder / "interests.toml").write_text("\n".join(lines))


NODE = "collectors run --node"
HOSTS = (NODE, "collectors run", "the check when collectors start")


@pytest.mark.campaign
@pytest.mark.parametrize("role", HOSTS)
def test_collectors_order_and_fill_with_the_rights_of_their_role(broker, tmp_path, role):
    with System(broker.operator, PLAN, tmp_path) as system:
        order_early(system)
        client = broker.user(*named(all_of(role), system.topic, "g"))
        nodes = [] if role == "collectors run" else ALL
        with collectors(system.topic, client, tmp_path, *nodes, bootstrap=broker.users):
            holes = [log_partition(log) for log in system.plan.logs if log.name in HOLES]
            stable = system.driver.last_stable_offsets
            until(lambda: min(stable(holes).values()), PATIENCE_S)
            folder = tmp_path / "operator"
            folder.mkdir()
            sent = amcast(
                ["send", "--ordered", *PATIENT], system.topic, {}, folder, bootstrap=broker.operator
            )
            assert sent.exit_code == 0, (sent.output, sent.exception)
            checks = [one for one in RIGHTS[HOSTS[2]] if role != HOSTS[2]]
            missed = (right for right in checks if not says(tmp_path, right, system.topic))
            until(lambda: next(missed, None) is None, PATIENCE_S)
        log = (tmp_path / "log").read_text()
        assert role != HOSTS[2] or "lacks" not in log
        assert "Traceback" not in log


@pytest.mark.campaign
def test_collectors_say_which_right_they_miss(broker, tmp_path):
    rights = [*RIGHTS[NODE], *RIGHTS["collectors run"]]
    with ExitStack() as opened:
        waiting = {right: denied(broker, opened, tmp_path, right) for right in rights}

        def all_said():
            for right, (folder, topic) in list(waiting.items()):
                if says(folder, right, topic):
                    del waiting[right]
            return not waiting

        until(all_said, PATIENCE_S, pause=0.05)
    logs = "".join(file.read_text() for file in tmp_path.rglob("log"))
    assert "Traceback" not in logs


def denied(broker, opened, home, right):
    """Run a topic's collectors without one right; messages and holes wait for them."""
    folder = home / "-".join(right).replace("*", "").replace(" ", "")
    (folder / "operator").mkdir(parents=True)
    system = opened.enter_context(System(broker.operator, PLAN, folder))
    done = amcast(
        ["send", *PATIENT], system.topic, {}, folder / "operator", bootstrap=broker.operator
    )
    assert done.exit_code == 0, done.output
    order_early(system)
    shared = right in RIGHTS["collectors run"]
    granted = [one for one in all_of("collectors run" if shared else NODE) if one != right]
    client = broker.user(*named(granted, system.topic, "g"))
    nodes = () if shared else ALL
    opened.enter_context(collectors(system.topic, client, folder, *nodes, bootstrap=broker.users))
    return folder, system.topic


def says(folder, right, topic):
    return names((folder / "log").read_text(errors="replace"), right, topic)


HOLES = ("P1", "P1+P3")


def order_early(system):
    """Order messages that never come: collectors are to fill the places."""
    for name in HOLES:
        forge(system, system.plan.top(name).name, far(name, 5))


APPLY = "topology apply"
PARTITIONS = ["P1", "P2", "P3", "P4", "P5"]
# Nobody decides the set of P4 and P5, until the second epoch.
FIRST = solve(
    from_document(
        {
            "topic": "A",
            "partitions": PARTITIONS,
            "destinations": [["P1", "P3"], ["P4", "P5"]],
            "consumer": [{"name": "C0", "interest": ["P1", "P2", "P3"]}],
        }
    )
)
SECOND = solve(
    from_document(
        {
            "topic": "A",
            "partitions": PARTITIONS,
            "destinations": [["P1", "P3"], ["P4", "P5"], ["P2", "P3"]],
            "consumer": [
                {"name": "C0", "interest": ["P1", "P2", "P3"]},
                {"name": "C1", "interest": ["P1", "P2"]},
                {"name": "C4", "interest": ["P4", "P5"]},
            ],
        }
    ),
    base_epoch=1,
)


def of_first(right):
    """Whether the first epoch of a topic needs a right; the others are for changing it."""
    return right[0] in ("Create", "DescribeConfigs") or right[1] == "the cluster"


def applied(plan, topic, client, folder, *, bootstrap):
    """Apply a plan as that user."""
    (folder / "plan.json").write_text(json.dumps(of_topic(plan, topic).to_json()))
    arguments = ["topology", "apply", "plan.json", *PATIENT]
    return amcast(arguments, topic, client, folder, bootstrap=bootstrap)


def of_topic(plan, topic):
    logs = [replace(log, topic=log.topic.replace("A", topic, 1)) for log in plan.logs]
    return replace(plan, topic=topic, logs=tuple(logs))


@pytest.mark.campaign
@pytest.mark.parametrize("again", [False, True])
def test_a_plan_is_applied_with_the_rights_of_the_role(broker, tmp_path, again):
    topic = f"t-{uuid.uuid4().hex[:8]}"
    client = broker.user(*named(all_of(APPLY), topic, "g"))
    if again:
        begin(broker, topic, tmp_path)
    plan = SECOND if again else FIRST
    done = applied(plan, topic, client, tmp_path, bootstrap=broker.users)
    assert done.exit_code == int(again), done  # a second epoch's collectors do not run here
    assert f"epoch {1 + again} of topic {topic} runs" in done.output
    assert "lacks" not in done.output


@pytest.mark.parametrize(("role", "right"), each(APPLY))
def test_an_apply_says_which_right_it_misses(broker, tmp_path, role, right):
    topic = f"t-{uuid.uuid4().hex[:8]}"
    client = broker.user(*named([one for one in all_of(role) if one != right], topic, "g"))
    again = not of_first(right)
    if again:
        begin(broker, topic, tmp_path)
    plan = SECOND if again else FIRST
    done = applied(plan, topic, client, tmp_path, bootstrap=broker.users)
    said = f"{done.output} {done.exception}"
    assert names(said, right, topic), said


def begin(broker, topic, folder):
    """Apply the first plan as the operator, multicast, and commit a cursor; nobody orders."""
    done = applied(FIRST, topic, {}, folder, bootstrap=broker.operator)
    assert done.exit_code == 0, done.output
    done = amcast(["send", *PATIENT], topic, {}, folder, bootstrap=broker.operator)
    assert done.exit_code == 0, done.output
    with open_driver("kafka-python", broker.operator) as driver:
        driver.commit(f"amcast.{topic}.g", {control_partition(topic): (0, "1/K1/0/0/0")})


@pytest.mark.campaign
def test_a_topic_is_adopted_and_repaired_with_the_rights_of_an_apply(broker, tmp_path):
    topic = f"t-{uuid.uuid4().hex[:8]}"
    with Admin(broker.operator) as operator:
        operator.create_topics({topic: TopicSpec(2)})
    adopt = ["adopt", topic, "--seconds", "0.1", "--apply"]
    works(broker, topic, APPLY, tmp_path, adopt, ["topology", "recover"])


@pytest.mark.campaign
def test_a_message_is_explained_and_exported_with_the_rights_of_a_reader(broker, system, tmp_path):
    commands = (["explain", "P1:0"], ["export", "--name", "C1", "--to", "table"])
    works(broker, system.topic, "receive", tmp_path, *commands)


def works(broker, topic, role, folder, *commands):
    client = broker.user(*named(all_of(role), topic, "g"))
    for arguments in commands:
        done = amcast(arguments, topic, client, folder, bootstrap=broker.users)
        assert (done.exit_code, "lacks" in done.output) == (0, False), (done, done.exception)


@pytest.mark.campaign
def test_partitions_are_added_with_the_right_to_alter_a_topic(broker):
    topic = f"t-{uuid.uuid4().hex[:8]}"
    with Admin(broker.operator) as operator:
        operator.create_topics({topic: TopicSpec(1)})
    rights = named(RIGHTS["adding partitions"], topic, "g")
    with Admin(broker.users, broker.user(*rights)) as user:
        user.add_partitions(topic, 2)
    seen = broker.user(("Describe", "topic", topic))
    with Admin(broker.users, seen) as user, pytest.raises(NotAuthorized) as raised:
        user.add_partitions(topic, 3)
    assert names(str(raised.value), RIGHTS["adding partitions"][0], topic)


@pytest.mark.campaign
@pytest.mark.parametrize("right", [None, *RIGHTS["osn run"]])
def test_an_ordering_node_reaches_the_log_or_says_which_right_it_misses(broker, system, right):
    rights = [one for one in all_of("osn run") if one != right]
    client = broker.user(*named(rights, system.topic, "g"))
    said = []
    reached = KafkaConnection(
        lambda: open_driver("librdkafka", broker.users, client),
        system.topic,
        open_replicas=lambda: Replicas(broker.users, client),
    )
    with closing(reached) as cluster:
        said += cluster.troubles(["P1"]).values()
        for step in (post, follow):
            try:
                step(cluster)
            except NotAuthorized as error:
                said.append(str(error))
    if right is None:
        assert not said
    else:
        assert said
        assert all(names(one, right, system.topic) for one in said), said


def post(cluster):
    with cluster.producer() as producer:
        for to in (["P1"], ["P1", "P3"]):
            producer.multicast(b"x", to=to).accepted(PATIENCE_S)


def follow(cluster):
    with cluster.consumer("P1", "") as consumer:
        assert list(consumer.until_end(timeout=PATIENCE_S))


@pytest.mark.campaign
@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize(
    "wrong",
    [
        ({"sasl.password": "guessed"}, "Invalid username or password"),
        ({"sasl.mechanism": "SCRAM-SHA-256"}, "mechanism"),
    ],
)
def test_who_is_not_accepted_is_told_so(broker, system, tmp_path, driver, wrong):
    client = {**broker.user(), **wrong[0]}
    done = amcast(
        ["send", *PATIENT], system.topic, client, tmp_path, bootstrap=broker.users, driver=driver
    )
    assert isinstance(done.exception, AuthenticationFailed), (done.output, done.exception)
    user = client["sasl.username"]
    assert re.search(rf"{broker.users} do not accept user {user} .*{wrong[1]}", str(done.exception))
    assert done.exception.exit_code == 1
    with pytest.raises(AuthenticationFailed, match=wrong[1]):
        Admin(broker.users, client)


@pytest.mark.campaign
@pytest.mark.parametrize("driver", DRIVERS)
def test_an_appender_that_was_denied_goes_on_once_the_right_is_granted(broker, system, driver):
    at = TopicPartition(system.topic, 0)
    client = broker.user(("Describe", "topic", system.topic))
    opened = open_driver(driver, broker.users, client)
    with opened, closing(opened.appender()) as appender:
        for _ in range(3):
            (outcome,) = append_all(appender, at, [b"x"])
            assert isinstance(outcome.error, AppendNotAuthorized), outcome.error
            assert outcome.error.definite
        broker.grant(client, ("Write", "topic", system.topic))
        until(lambda: isinstance(append_all(appender, at, [b"x"])[0], Appended))


@pytest.mark.campaign
def test_no_output_log_plan_page_or_process_list_holds_a_password(broker, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    topic = f"t-{uuid.uuid4().hex[:8]}"
    roles = (APPLY, *HOSTS, *ALONE, "doctor")
    rights = dict.fromkeys(right for role in roles for right in named(all_of(role), topic, "g"))
    client = broker.user(*rights)
    wrong = {**client, "sasl.password": f"{PASSWORD}!"}
    seen = [applied(PLAN, topic, client, tmp_path, bootstrap=broker.users).output]
    assert f"epoch 1 of topic {topic} runs" in seen[0]
    verbs = [verb(role, "g") for role in (*ALONE, "topology history", "collectors status")]
    verbs += [["doctor", "--verbose"], ["doctor", "-o", "json"], ["explain", "P1:0"]]
    with collectors(topic, client, tmp_path, bootstrap=broker.users) as process:
        for user, arguments in [(client, each) for each in verbs] + [(wrong, verbs[0])]:
            done = amcast(arguments, topic, user, tmp_path, bootstrap=broker.users)
            assert (user is wrong) == isinstance(done.exception, AuthenticationFailed), done
            seen.append(f"{done.output} {done.exception!r}")
        page = until(lambda: re.search(r"http://\S*(?=/status)", (tmp_path / "log").read_text()))[0]
        for path in ("/status", "/metrics"):
            with urllib.request.urlopen(page + path, timeout=PATIENCE_S) as answer:
                seen.append(answer.read().decode())
        seen.append(Path(f"/proc/{process.pid}/environ").read_text())
        for listed in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):  # it has ended
                seen.append(listed.read_text(errors="replace"))
    seen += [(tmp_path / name).read_text() for name in ("log", "plan.json")]
    seen += [f"{each.name}: {each.getMessage()}" for each in caplog.records]
    secrets = (PASSWORD, repr(PASSWORD)[1:-1], b64encode(PASSWORD.encode()).decode()[:12])
    assert "kafka" in caplog.text
    told = [text for text in seen if any(secret in text for secret in secrets)]
    assert {text[:40] for text in told} == set()
