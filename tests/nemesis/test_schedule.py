"""The nemesis' schedule: one seed gives one list of faults, and the list is fair."""

from collections import Counter

import pytest

from bench.nemesis import cli
from bench.nemesis.schedule import Card, schedule
from multicast.local.cluster import DEFAULT_VERSION

CARDS = [Card(f"kind {number}", (0.5 * number, number), 1 + number % 2) for number in range(9)]


def test_a_schedule_is_the_same_on_every_machine_and_day():
    first, second = schedule(1, CARDS, faults=2)
    assert (first.kind, first.hold_s, first.seed) == ("kind 5", 4.472, 121751464)
    assert (second.kind, second.at_s) == ("kind 6", 6.005)


@pytest.mark.parametrize("seed", range(20))
def test_every_kind_comes_before_any_comes_a_third_time(seed):
    counts = Counter()
    for planned in schedule(seed, CARDS, faults=60):
        counts[planned.kind] += 1
        if max(counts.values()) == 3:
            break
    assert len(counts) == len(CARDS)


def test_kafka_is_installed_before_the_run_loses_the_machines_network(monkeypatch):
    done = []
    monkeypatch.setattr(cli, "in_own_namespace", lambda argv: ["/unshare", "--", *argv])
    monkeypatch.setattr(cli, "install", lambda version, **_: done.append(version))
    monkeypatch.setattr(cli.os, "execv", lambda program, _: done.append(program))
    cli._enter_namespaces()
    assert done == [DEFAULT_VERSION, "/unshare"]
