"""Whether a new plan replaces the running tree: drift does not, a real change does."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import pytest

from bench.harness.interests import acyclic, local
from tests.topology.test_plan import POSTER, interests
from topology.changes import differences, with_kept_names, with_running_logs
from topology.check import check
from topology.hysteresis import MARGIN_DEFAULT, weighed
from topology.interests import InterestFile, PlanLimits
from topology.planner.solver import solve
from topology.tree import Plan

INPUTS = {
    "poster": interests(POSTER),
    "poster with a cycle": interests({**POSTER, "C4": ["P1", "P5"]}),
    "local": local(2, 16, 9, 6),
    "acyclic": acyclic(0, 16, 8),
}


def planned(file: InterestFile, running: Plan | None = None, *, effort: float = 0.1) -> Plan:
    if running is None:
        return solve(file, effort=effort).plan
    made = solve(with_running_logs(file, running), base_epoch=running.epoch, effort=effort).plan
    return with_kept_names(running, made)


def weigh(running: Plan, file: InterestFile, margin: float = MARGIN_DEFAULT):
    return weighed(running, planned(file, running), margin=margin)


def at_rates(file: InterestFile, rate: float = 100.0, **others: float) -> InterestFile:
    return replace(file, rates={**dict.fromkeys(file.partitions, rate), **others})


RUNNING = {name: planned(at_rates(file)) for name, file in INPUTS.items()}


def drifted(file: InterestFile, factors: Sequence[float]) -> InterestFile:
    """Multiply each rate and then each weight by the next factor."""
    left = iter(factors)
    return replace(
        file,
        rates={log: 100 * next(left) for log in file.partitions},
        consumers=tuple(replace(entry, weight=next(left)) for entry in file.consumers),
    )


@pytest.mark.parametrize("name", ["poster", "poster with a cycle"])
def test_no_drift_by_a_tenth_turns_a_small_tree_over(name):
    """Between two trees the gain is largest with each rate and weight at an end of its range."""
    file = INPUTS[name]
    ends = product((0.9, 1.1), repeat=len(file.partitions) + len(file.consumers))
    for factors in ends:
        choice = weigh(RUNNING[name], drifted(file, factors))
        assert choice.chosen is RUNNING[name], factors
        assert choice.gain < MARGIN_DEFAULT


@pytest.mark.timeout(1200)  # four plans with uneven rates: 50 s of CPU, on a busy machine 150 s
@pytest.mark.parametrize("name", ["local", "acyclic"])
def test_rates_and_weights_that_drift_by_a_tenth_leave_the_tree_alone(name):
    file = INPUTS[name]
    dice = random.Random(4)
    for _ in range(4):
        factors = [
            dice.uniform(0.9, 1.1) for _ in range(len(file.partitions) + len(file.consumers))
        ]
        choice = weigh(RUNNING[name], drifted(file, factors))
        assert choice.kept
        assert choice.chosen is RUNNING[name]


@pytest.mark.parametrize("log", ["P2", "P4"])
def test_a_rate_five_times_as_high_turns_the_posters_tree_over(log):
    running = RUNNING["poster"]
    choice = weigh(running, at_rates(INPUTS["poster"], **{log: 500.0}))
    assert not choice.kept
    assert choice.gain > MARGIN_DEFAULT
    assert choice.new.cost == pytest.approx((1 - choice.gain) * choice.running.cost)
    assert (choice.chosen.epoch, choice.chosen.base_epoch) == (2, 1)
    assert choice.moves.logs
    check(choice.chosen)


def test_an_interest_that_the_tree_cannot_serve_is_planned_whatever_the_margin():
    running = RUNNING["poster"]
    more = interests({**POSTER, "C4": ["P1", "P5"]})
    choice = weigh(running, at_rates(more), margin=1.0)
    assert (choice.kept, choice.tree, choice.running, choice.gain) == (False, None, None, None)
    assert choice.why_not == "no collector of it orders all logs of consumer C4"
    assert choice.chosen.subscription("C4") is not None


def test_a_limit_that_the_running_tree_breaks_is_planned_whatever_the_margin():
    file = interests({"C1": ["P1", "P2"], "C2": ["P2", "P3"], "C3": ["P3", "P4"]})
    running = planned(file)
    assert any(node.parent for node in running.collectors)
    choice = weigh(running, replace(file, limits=PlanLimits(levels_max=1)), margin=1.0)
    assert not choice.kept
    assert "levels_max" in choice.why_not


def test_a_new_consumer_that_the_tree_serves_joins_it():
    running = RUNNING["poster"]
    choice = weigh(running, at_rates(interests({**POSTER, "C4": ["P1", "P2", "P3"]})))
    assert choice.kept
    assert differences(running, choice.chosen) == ("consumer C4 is new",)
    assert choice.chosen.subscription("C4").collector == running.subscription("C1").collector
    assert (choice.chosen.epoch, choice.chosen.base_epoch) == (2, 1)
    check(choice.chosen)


def test_a_consumer_that_is_gone_leaves_the_tree_only_if_that_gains_enough():
    running = RUNNING["poster"]
    fewer = interests({name: POSTER[name] for name in ("C1", "C2")})
    fewer = at_rates(replace(fewer, partitions=running.partitions))
    stays = weigh(running, fewer, margin=0.9)
    assert stays.kept
    assert differences(running, stays.chosen) == ("consumer C3 is gone",)
    goes = weigh(running, fewer)
    assert (goes.kept, goes.moves.gone) == (False, ("K3",))
    # What is left behind is foreign work: K3 passes on its three logs, and drops one of K1's.
    assert goes.running.foreign - goes.new.foreign == pytest.approx(400)


def test_the_margin_is_what_a_new_plan_must_gain():
    file = at_rates(INPUTS["poster"], P4=500.0)
    gain = weigh(RUNNING["poster"], file).gain
    assert not weigh(RUNNING["poster"], file, margin=gain - 0.01).kept
    assert weigh(RUNNING["poster"], file, margin=gain + 0.01).kept
