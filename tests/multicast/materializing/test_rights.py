"""The rights of who writes copies or dead letters, held on Kafka's own authorizer."""

import uuid
from contextlib import closing

import pytest

from multicast import Consumer
from multicast.drivers import open_driver
from multicast.drivers.kafka import Admin, TopicSpec
from multicast.errors import NotAuthorized
from multicast.workers.dead_letters import DeadLetters
from tests.helpers.authorized import RIGHTS, all_of, authorized_broker, named, names
from tests.helpers.system import System
from tests.system.test_rights import ALL, PATIENT, PLAN, amcast, collectors

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def broker():
    with authorized_broker() as started:
        yield started


@pytest.fixture(scope="module")
def topic(broker, tmp_path_factory):
    folder = tmp_path_factory.mktemp("system")
    with (
        System(broker.operator, PLAN, folder) as made,
        collectors(made.topic, {}, folder, *ALL, bootstrap=broker.operator),
    ):
        send = ["send", "--ordered", *PATIENT]
        done = amcast(send, made.topic, {}, folder, bootstrap=broker.operator)
        assert done.exit_code == 0, done.output
        yield made.topic


def copied(broker, topic, client, to, folder):
    """Copy what C1 delivers; give what was wrong."""
    arguments = ["materialize", "C1", "--to", to, "--until-end", *PATIENT]
    return str(amcast(arguments, topic, client, folder, bootstrap=broker.users).exception or "")


def lettered(broker, topic, client, to, _):
    """Store the first message of C1 as a dead letter; give what was wrong."""
    with Consumer(broker.operator, topic=topic, name="C1", committed=False) as consumer:
        message = next(iter(consumer))
    try:
        with (
            open_driver("librdkafka", broker.users, client) as driver,
            closing(DeadLetters(driver, to)) as letters,
        ):
            letters.store(message, ValueError("no"))
    except NotAuthorized as error:
        return str(error)
    return ""


STORED = {"materialize": copied, "dead letters": lettered}


@pytest.mark.parametrize(
    ("role", "right"),
    [
        (role, right)
        for role in STORED
        for right in (None, *RIGHTS[role])
        if right != ("Read", "topic", "T")  # only who goes on reads the last copy
    ],
)
def test_copies_and_dead_letters_need_the_rights_of_their_role(
    broker, topic, tmp_path, role, right
):
    to = f"t-{uuid.uuid4().hex[:8]}"
    if role == "dead letters" or right not in (None, ("Create", "topic", "T")):
        with Admin(broker.operator) as operator:
            operator.create_topics({to: TopicSpec(1)})
    rights = [one for one in all_of(role) if one != right]
    client = broker.user(*named(rights, topic, "C1", to))
    said = STORED[role](broker, topic, client, to, tmp_path)
    assert said == "" if right is None else names(said, right, topic, "C1", to), said
