"""The code of docs/recipes.md and docs/workers.md runs as it stands there, on systems in memory."""

import random
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from multicast.errors import HandlerFailed
from multicast.testing import system

DOCS = Path(__file__).parents[3] / "docs"
TO = {"P1", "P2"}
NAMES = ("C1", "C2", "C3", "C4", "C5")
INTERESTS = {"consumers": dict.fromkeys(NAMES, TO), "destinations": [TO]}


def code_of(page):
    marker = (
        r"<!-- tests/multicast/testing/test_recipes.py runs this block -->\n```python\n(.*?)```"
    )
    (block,) = re.findall(marker, (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)
    names = {}
    exec(compile(block, page, "exec"), names)
    return names


RECIPES = code_of("recipes.md")
State, Replica = RECIPES["State"], RECIPES["Replica"]


@pytest.fixture
def group():
    """Five replicas: the system, and each replica with its consumer."""
    with system(INTERESTS, seed=3) as double:
        consumers = [double.consumer(name) for name in NAMES]
        yield double, [(Replica(double.producer(), each, TO), each) for each in consumers]


def follow_all(double, members):
    double.settle()
    for replica, consumer in members:
        replica.follow(consumer.until_end())


def random_commands(seed, count):
    rng = random.Random(seed)
    for _ in range(count):
        name, number = rng.choice(b"abc"), rng.randrange(6)
        command = rng.choice(
            [b"propose %c %d", b"set %c %d x", b"acquire %c %d", b"release %c %d", b"nothing %c %d"]
        )
        yield command % (name, number)


def test_of_five_proposals_one_is_decided_everywhere_and_a_crash_does_not_change_it(group):
    double, members = group
    for number in range(200):
        for name, (replica, _) in zip(NAMES, members, strict=True):
            replica.producer.multicast(b"propose %d %s" % (number, name.encode()), to=TO)
        if number == 100:
            double.crash("K1")
            double.restart("K1")
    follow_all(double, members)
    decided = members[0][0].state.decided
    assert len(decided) == 200
    assert set(decided.values()) <= {name.encode() for name in NAMES}
    assert all(replica.state.decided == decided for replica, _ in members)
    again = Replica(double.producer(), double.restart(members[0][1]), TO)
    assert again.call(b"propose 0 late") == decided[b"0"]


def test_replicas_have_one_state_at_one_position_whatever_is_sent(group):
    double, members = group
    foreign = [None, b"", b"\xff", b"set", b"set a 1", b"release a b", b"propose a b c"]
    for payload in [*random_commands(2, 400), *foreign]:
        double.producer().multicast(payload, to=TO)
    follow_all(double, members)
    states = [vars(replica.state) for replica, _ in members]
    assert all(states[0].values())
    assert all(state == states[0] for state in states)


def test_a_set_at_a_wrong_version_changes_nothing_at_anybody(group):
    double, members = group
    (first, _), (second, _) = members[:2]
    assert first.call(b"set /a 0 x") == 1
    assert second.call(b"set /a 0 y") is None
    assert second.call(b"set /a 1 y") == 2
    follow_all(double, members)
    assert all(replica.state.versions == {b"/a": (2, b"y")} for replica, _ in members)


@pytest.mark.parametrize("seed", range(5))
def test_a_command_that_is_applied_twice_in_a_row_has_the_effect_of_one(seed):
    once, twice = State(), State()
    for command in random_commands(seed, 200):
        once.apply(command)
        twice.apply(command)
        twice.apply(command)
        assert vars(once) == vars(twice)


def test_two_workers_that_read_the_latest_flavour_differ_and_proposals_make_them_equal(group):
    """Ask what flavour to make: what is read at two times differs, what is decided does not."""
    double, ((asked, _), (first, one), (second, other), *_) = group
    rng = random.Random(4)
    for number in range(20):
        asked.call(b"set flavour %d vanilla" % (2 * number))
        double.settle()
        first.follow(one.until_end())
        asked.call(b"set flavour %d chocolate" % (2 * number + 1))
        double.settle()
        second.follow(other.until_end())
        read = [(each, each.state.versions[b"flavour"][1]) for each in (first, second)]
        assert read[0][1] != read[1][1]
        rng.shuffle(read)
        made = [replica.call(b"propose %d %s" % (number, flavour)) for replica, flavour in read]
        assert made[0] == made[1] == read[0][1]


def test_a_replica_may_be_behind_and_is_not_once_it_read_to_a_position(group):
    _, ((first, _), (second, _), *_) = group
    message_id = first.producer.multicast(b"set /a 0 new", to=TO).accepted()
    assert first.read_at_least(message_id).versions == {b"/a": (1, b"new")}
    assert second.state.versions == {}
    assert second.read_at_least(message_id).versions == {b"/a": (1, b"new")}


def test_a_lock_has_one_holder_and_the_tokens_of_its_holders_grow(group):
    _, ((first, _), (second, _), (third, _), *_) = group
    token = first.call(b"acquire leader first")
    assert second.call(b"acquire leader second") is None
    # The first one is frozen: the second takes it for dead, and releases by its token.
    assert second.call(b"release leader %d" % token)
    assert second.call(b"acquire leader second") > token
    assert first.call(b"release leader %d" % token) is False
    assert third.call(b"acquire leader third") is None


def test_each_message_has_one_effect_in_the_order_of_its_keys(tmp_path):
    names, path, failed = code_of("workers.md"), str(tmp_path / "done.db"), []
    transfer, accounts = names["transfer"], names["accounts"]

    def failing(message):
        transfer(message, path)
        if message.payload.startswith(b"250 ") and len(failed) < 3:
            failed.append(message)
            raise OSError("a full disk")

    names["transfer"] = failing
    with system(INTERESTS) as double:
        producer, consumer = double.producer(), double.consumer("C1")
        for number in range(400):
            to = [{"P1"}, {"P2"}, TO][number % 3]
            producer.multicast(b"%d a%d a%d" % (number, number % 7, number % 5), to=to)
        double.settle()
        with pytest.raises(HandlerFailed, match="a full disk"):
            names["work"](consumer, until_end=True)
        double.crash(consumer)
        names["work"](double.restart(consumer), until_end=True)
        order = [message.payload for message in double.drain(double.consumer("C2"))]
    with closing(sqlite3.connect(path)) as opened:
        done = [row[0] for row in opened.execute("SELECT payload FROM effects ORDER BY rowid")]
    assert sorted(done) == sorted(order)
    for key in (b"a%d" % number for number in range(7)):
        assert [e for e in done if key in e.split()] == [e for e in order if key in e.split()]
    assert accounts(failed[0]) == {b"a5", b"a0"}
