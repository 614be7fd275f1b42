"""`examples/accounts`: no account goes below zero, by properties in memory and on a real broker."""

import importlib.util
import json
import os
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multicast import Consumer, Producer
from multicast.local.jars import find_java
from multicast.testing import system
from tests.helpers.example_programs import EXAMPLES, example_system

FOLDER = EXAMPLES / "accounts"
_INTERESTS = tomllib.loads((FOLDER / "interests.toml").read_text())
INTERESTS = {
    "consumers": {c["name"]: set(c["interest"]) for c in _INTERESTS["consumer"]},
    "destinations": [set(to) for to in _INTERESTS["destinations"]],
}


def module():
    spec = importlib.util.spec_from_file_location("accounts_example", FOLDER / "accounts.py")
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made
    spec.loader.exec_module(made)
    return made


accounts = module()
_DEEP = b"[" * 100_000
FOREIGN = [b"", b"hello", b"\xff\xfe", b"null", b"5", b"{}", _DEEP, b'{"from": "P1"}'] + [
    json.dumps({"from": source, "to": target, "amount": amount}).encode()
    for source, target, amount in [
        ("P1", "P1", 5),
        ("P1", "P9", 5),
        ("P1", 2, 5),
        ("P1", "P2", 0),
        ("P1", "P2", -5),
        ("P1", "P2", "5"),
        ("P1", "P2", 5.5),
        ("P1", "P2", True),
        ("P1", "P2", 2**63),
        ("P1", "P2", 1_000_000_001),
    ]
]
FOREIGN += [b'{"from": "P1", "to": "P2", "amount": 5, "x": ' + b"[" * 200 + b"]" * 200 + b"}"]
PLACES = st.sampled_from(accounts.ACCOUNTS)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["send", "send", "transfer", "read"]),
        st.integers(0, 3),
        PLACES,
        PLACES,
        st.integers(1, 90),
    ),
    max_size=25,
)


def clerk(s, name):
    consumer = s.consumer(name)
    consumer.poll(0.1)
    return accounts.Clerk(
        s.producer(), accounts.BranchBalances(consumer, INTERESTS["consumers"][name])
    )


def prefixes(s):
    """The balances after each transfer, as a new reader of everything sees them."""
    money = dict.fromkeys(accounts.ACCOUNTS, accounts.START)
    for message in s.drain(s.consumer("audit", group="late", committed=False)):
        transfer = json.loads(message.payload)
        money[transfer["from"]] -= transfer["amount"]
        money[transfer["to"]] += transfer["amount"]
        yield dict(money)


@settings(max_examples=60)
@given(STEPS)
def test_no_account_goes_below_zero_and_all_readers_agree(steps):
    """Clerks send with whatever they have read so far, so their views are as old as can be."""
    with system(INTERESTS) as s:
        clerks = [clerk(s, name) for name in ("branch1", "branch2", "audit", "audit")]
        for step, who, source, target, amount in steps:
            one = clerks[who]
            if source == target or source not in one.balances.money:
                continue
            if step == "send":
                one.send(source, target, amount)
            elif step == "transfer":
                one.transfer(source, target, amount)
            else:
                s.settle()
                one.balances.apply(one.balances._consumer.until_end())
        s.settle()
        final = dict.fromkeys(accounts.ACCOUNTS, accounts.START)
        for final in prefixes(s):
            assert min(final.values()) >= 0
            assert sum(final.values()) == accounts.START * len(accounts.ACCOUNTS)
        for one in clerks:
            one.balances.apply(one.balances._consumer.until_end())
            assert one.balances.money == {name: final[name] for name in one.balances.money}


def test_without_the_condition_an_account_goes_below_zero():
    """The property can fail: the same transfers without `expect`."""
    with system(INTERESTS) as s:
        producer = s.producer()
        for _ in range(2):
            transfer = {"from": "P1", "to": "P2", "amount": 80}
            producer.multicast(json.dumps(transfer).encode(), to={"P1", "P2"})
        s.settle()
        assert [money["P1"] for money in prefixes(s)] == [20, -60]


def test_foreign_messages_change_nothing_and_are_named(capsys):
    with system(INTERESTS) as s:
        one = clerk(s, "audit")
        for payload in FOREIGN:
            s.producer().multicast(payload, to=accounts.ACCOUNTS)
        assert one.transfer("P1", "P2", 30)
        assert one.balances.money == {"P1": 70, "P2": 130, "P3": 100}
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "P1+P2+P3:0 is no transfer, and changes nothing"
    assert len(lines) == len(FOREIGN)


@pytest.mark.timeout(600)
def test_clerks_contend_on_a_broker_and_one_is_killed(kafka_cluster, tmp_path):
    with example_system(kafka_cluster.bootstrap, "accounts", tmp_path) as example:
        branches = ["P1", "P1,P2", "P2,P3"]
        with ThreadPoolExecutor() as pool:
            runs = [
                pool.submit(example.run, "clerk.py", "--branch", branch, "--seed", seed)
                for seed, branch in enumerate(branches)
            ]
            killed = example.killed_after(
                5, "clerk.py", "--branch", "P1,P2,P3", "--transfers", "1000"
            )
            lines = [line for run in runs for line in run.result()] + killed
        report = json.loads(example.run("audit.py")[0])
        done = sum(line.startswith("done") for line in lines)
        assert len(lines) == 3 * 20 + 5
        # The killed clerk may have made transfers that it did not print.
        assert report["transfers"] >= done > 0
        assert report["lowest"] >= 0
        again = json.loads(example.run("audit.py")[0])
        assert again == report


@pytest.mark.timeout(600)
def test_spark_gives_the_balances_of_a_consumer_at_every_position(
    kafka_cluster, tmp_path, monkeypatch
):
    monkeypatch.setenv("JAVA_HOME", os.fspath(find_java().home))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    with example_system(kafka_cluster.bootstrap, "accounts", tmp_path) as example:
        for seed, branch in enumerate(["P1,P2", "P2,P3"]):
            example.run("clerk.py", "--branch", branch, "--seed", seed)
        with Producer(example.system.bootstrap, topic=example.system.topic) as producer:
            for payload in FOREIGN:
                producer.multicast(payload, to=accounts.ACCOUNTS).accepted()
        example.run("clerk.py", "--branch", "P1", "--seed", 7)
        states = [json.loads(line) for line in example.run("history.py")]
        places = sorted({(state["epoch"], state["position"]) for state in states})
        epoch, position = middle = places[len(places) // 2]
        lines = example.run("history.py", "--then", f"{epoch}/{position}")
        then = [json.loads(line) for line in lines]

        # Check: a plain consumer has these balances after each message.
        money, expected, at_middle = dict.fromkeys(accounts.ACCOUNTS, accounts.START), [], None
        where = {"topic": example.system.topic, "interest": accounts.ACCOUNTS, "committed": False}
        with Consumer(example.system.bootstrap, **where) as consumer:
            transfers = list(accounts.transfers(consumer.until_end()))
        for place, (source, target, amount) in zip(places, transfers, strict=True):
            money[source] -= amount
            money[target] += amount
            expected += [
                {"epoch": place[0], "position": place[1], "account": name, "balance": money[name]}
                for name in sorted((source, target))
            ]
            if place == middle:
                at_middle = dict(money)
        assert states == expected
        known = {state["account"]: state["balance"] for state in then}
        assert dict.fromkeys(accounts.ACCOUNTS, accounts.START) | known == at_middle
