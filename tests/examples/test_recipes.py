"""`examples/recipes`: consensus, versions and locks on the order, on systems in memory."""

import json
import random
import sys
from pathlib import Path

import pytest

from multicast.testing import system

sys.path.append(str(Path(__file__).parents[2] / "examples" / "recipes"))
from recipes import Guarded, RecipeState, Replica

from multicast.errors import UsageError

TO = {"P1", "P2"}
NAMES = ("C1", "C2", "C3", "C4", "C5")
INTERESTS = {"consumers": dict.fromkeys(NAMES, TO), "destinations": [TO]}


def follow_all(double, members):
    double.settle()
    for replica, consumer in members:
        replica.follow(consumer.until_end())


@pytest.fixture
def group():
    with system(INTERESTS, seed=3) as double:
        consumers = [double.consumer(name) for name in NAMES]
        yield double, [(Replica(double.producer(), each, TO), each) for each in consumers]


def random_commands(seed, count):
    rng = random.Random(seed)
    for _ in range(count):
        name = rng.choice("abc")
        yield rng.choice(
            [
                {"do": "propose", "instance": f"i{rng.randrange(50)}", "value": rng.randrange(99)},
                {"do": "set", "path": name, "data": rng.randrange(9), "version": rng.randrange(4)},
                {"do": "acquire", "lock": name, "owner": rng.choice(NAMES)},
                {"do": "release", "lock": name, "token": rng.randrange(6)},
            ]
        )


def test_of_five_proposals_one_is_decided_everywhere_and_a_crash_does_not_change_it(group):
    double, members = group
    instances = 1000  # with five proposals each
    for number in range(instances):
        for name, (replica, _) in zip(NAMES, members, strict=True):
            replica.send("propose", instance=str(number), value=name)
        if number == instances // 2:
            double.crash("K1")
            double.restart("K1")
    follow_all(double, members)
    decided = members[0][0].state.decided
    assert len(decided) == instances
    assert set(decided.values()) <= set(NAMES)
    assert all(replica.state.decided == decided for replica, _ in members)
    again = Replica(double.producer(), double.restart(members[0][1]), TO)
    assert again.call("propose", instance="0", value="late") == decided["0"]


def test_replicas_have_one_state_at_one_position_whatever_is_sent(group):
    double, members = group
    rng = random.Random(1)
    for command in random_commands(2, 400):
        rng.choice(members)[0].send(**command)
    follow_all(double, members)
    assert len({replica.state.as_text() for replica, _ in members}) == 1


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"hello",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"do": "set", "path": "/a", "version": 0, "data": ' + b"[" * 200 + b"]" * 200 + b"}",
        b"[1]",
        b'{"do": 1}',
        b'{"do": "propose", "instance": [1], "value": 1}',
        b'{"do": "set", "path": {}, "data": 1, "version": 0}',
        b'{"do": "acquire", "lock": ["a"], "owner": "me"}',
        b'{"do": "release", "lock": {}, "token": 1}',
    ],
)
def test_a_foreign_message_changes_nothing_at_any_replica(group, payload):
    double, members = group
    double.producer().multicast(payload, to=TO)
    assert members[0][0].call("set", path="/a", data="x", version=0) == 1
    follow_all(double, members)
    assert {json.dumps(replica.state.versions) for replica, _ in members} == {'{"/a": [1, "x"]}'}
    assert members[0][0].state.holders == {}


def test_what_is_no_command_is_refused_before_it_is_sent(group):
    _, ((replica, _), *_) = group
    for do, fields in [
        ("propose", {"instance": [1], "value": 1}),
        ("aquire", {"lock": "leader", "owner": "me"}),
        ("set", {"path": "/a", "data": "x"}),
        ("set", {"path": "/a", "data": [[] for _ in range(200)], "version": 0}),
    ]:
        with pytest.raises(UsageError, match=f"{do} with .* is no command"):
            replica.call(do, **fields)
    assert replica.call("release", lock="leader", token=None) is False


def test_a_set_at_a_wrong_version_changes_nothing_at_anybody(group):
    double, members = group
    (first, _), (second, _) = members[:2]
    assert first.call("set", path="/a", data="x", version=0) == 1
    assert second.call("set", path="/a", data="y", version=0) is None
    assert second.call("set", path="/a", data="y", version=1) == 2
    follow_all(double, members)
    assert {json.dumps(replica.state.versions) for replica, _ in members} == {'{"/a": [2, "y"]}'}


@pytest.mark.parametrize("seed", range(20))
def test_a_command_that_is_applied_twice_in_a_row_has_the_effect_of_one(seed):
    once, twice = RecipeState(), RecipeState()
    for command in random_commands(seed, 200):
        once.apply(command)
        twice.apply(command)
        twice.apply(command)
        assert once.as_text() == twice.as_text()


def test_two_workers_that_read_the_latest_flavour_differ_and_proposals_make_them_equal(group):
    """Ask what flavour to make: what is read at two times differs, what is decided does not."""
    double, ((asked, _), (first, one), (second, other), *_) = group
    rng = random.Random(4)
    differed = 0
    for number in range(100):
        instance = f"round {number}"
        version = asked.state.versions.get("flavour", (0, None))[0]
        asked.call("set", path="flavour", data="vanilla", version=version)
        double.settle()
        first.follow(one.until_end())
        read_by_first = first.state.versions["flavour"][1]
        asked.call("set", path="flavour", data="chocolate", version=version + 1)
        double.settle()
        second.follow(other.until_end())
        read_by_second = second.state.versions["flavour"][1]
        differed += read_by_first != read_by_second

        proposers = [(first, read_by_first), (second, read_by_second)]
        rng.shuffle(proposers)
        made = [replica.call("propose", instance=instance, value=v) for replica, v in proposers]
        assert made[0] == made[1] == proposers[0][1]
    assert differed == 100


def test_a_replica_may_be_behind_and_is_not_once_it_read_to_a_position(group):
    _, ((first, _), (second, _), *_) = group
    message_id = first.send("set", path="/a", data="new", version=0)
    assert first.read_at_least(message_id).versions == {"/a": (1, "new")}
    assert second.state.versions == {}
    assert second.read_at_least(message_id).versions == {"/a": (1, "new")}


def test_a_lock_has_one_holder_and_a_frozen_one_is_kept_out_by_its_token(group):
    _, ((first, _), (second, _), (third, _), *_) = group
    resource = Guarded()
    token = first.call("acquire", lock="leader", owner="first")
    assert second.call("acquire", lock="leader", owner="second") is None
    assert resource.write("first", token)
    # Now the first one is frozen. The second takes it for dead, and releases by its token.
    assert second.call("release", lock="leader", token=token)
    newer = second.call("acquire", lock="leader", owner="second")
    assert newer > token
    assert resource.write("second", newer)
    assert not resource.write("first again", token)
    assert not first.call("release", lock="leader", token=token)
    assert third.call("acquire", lock="leader", owner="third") is None
    assert resource.writes == ["first", "second"]
