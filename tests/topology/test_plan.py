"""Whole plans: the worked examples, with their exact costs."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.helpers.plans import poster
from topology.check import check
from topology.interests import InterestFile, from_document
from topology.planner.solver import Infeasible, plan
from topology.planner.watch import Watch
from topology.tree import InvalidPlan, Plan

POSTER = {"C1": ["P1", "P2", "P3"], "C2": ["P2", "P3", "P4"], "C3": ["P3", "P4", "P5"]}


def interests(consumers, destinations=(), **more) -> InterestFile:
    partitions = sorted({name for interest in consumers.values() for name in interest})
    return from_document(
        {
            "topic": "A",
            "partitions": partitions,
            "destinations": [list(to) for to in destinations],
            "consumer": [{"name": n, "interest": list(i)} for n, i in consumers.items()],
            **more,
        }
    )


RING = {f"C{n}": [f"P{(n + k) % 5}" for k in range(3)] for n in range(5)}


def tree(document: Plan) -> dict[str, tuple[str, str | None, tuple[str, ...]]]:
    served = {node.name: [] for node in document.collectors}
    for entry in document.consumers:
        if entry.collector is not None:
            served[entry.collector].append(entry.name)
    return {
        node.name: (" ".join(node.bag), node.parent, tuple(served[node.name]))
        for node in document.collectors
    }


def test_the_posters_example_gets_the_posters_tree():
    document = plan(interests(POSTER))
    assert tree(document) == {
        "K1": ("P2 P3 P4", None, ("C2",)),
        "K2": ("P1 P2 P3", "K1", ("C1",)),
        "K3": ("P3 P4 P5", "K1", ("C3",)),
    }
    promised = document.objective
    assert (promised.hops, promised.foreign, promised.cost, promised.gap) == (13, 2, 33, 0)
    assert [node.stream for node in document.collectors] == [0, 1, 2]


def test_a_plan_is_read_as_it_was_written_and_names_the_version_of_its_order_records():
    made = plan(interests(POSTER))
    assert made.to_json()["order_version"] == 3
    assert Plan.from_json(json.loads(json.dumps(made.to_json()))) == made
    assert made.digest != replace(made, order_version=2).digest


@pytest.mark.parametrize(
    ("version", "says"),
    [
        (None, "order_version is 1; this program reads and writes version 3 of the order records"),
        (2, "order_version is 2; this program reads and writes version 3 of the order records"),
        (4, "order_version is 4; this program reads and writes version 3 of the order records"),
        ("3", "order_version is '3', not a whole number"),
    ],
)
def test_a_plan_with_order_records_of_an_unknown_version_is_refused(version, says):
    document = json.loads(json.dumps(plan(interests(POSTER)).to_json()))
    document["order_version"] = version
    if version is None:  # as an earlier program made it
        del document["order_version"]
    with pytest.raises(InvalidPlan, match=says):
        Plan.from_json(document)


def test_where_hops_decide_there_is_one_root():
    document = plan(interests(POSTER), phi=0.1)
    assert tree(document) == {"K1": ("P1 P2 P3 P4 P5", None, ("C1", "C2", "C3"))}
    assert (document.objective.hops, document.objective.foreign) == (9, 6)


def test_the_posters_example_with_a_cycle_is_a_path_that_the_least_interest_heads():
    document = plan(interests({**POSTER, "C4": ["P1", "P5"]}))
    assert tree(document) == {
        "K1": ("P1 P5", None, ("C4",)),
        "K2": ("P1 P2 P3 P5", "K1", ("C1",)),
        "K3": ("P2 P3 P4 P5", "K2", ("C2", "C3")),
    }
    # K2 passes on P5, K3 drops P1, and C1, C2 and C3 each drop one log of the four that they read.
    assert (document.objective.foreign, document.objective.cost) == (5, 67)


def test_many_interests_that_share_one_log_hang_below_a_root_that_serves_nobody():
    document = plan(interests({f"C{n}": ["P0", *(f"Q{n}{k}" for k in range(4))] for n in range(5)}))
    assert tree(document)["K1"] == ("P0", None, ())
    assert document.objective.foreign == 1


def test_an_interest_that_meets_one_log_reads_it_alone():
    document = plan(interests({"C1": ["P1"], "C2": ["P2"]}))
    assert document.collectors == ()
    assert [entry.collector for entry in document.consumers] == [None, None]
    check(document)


def test_parts_that_share_no_log_get_trees_of_their_own():
    document = plan(interests({"C1": ["P1", "P2"], "C2": ["P3", "P4"]}))
    assert [node.parent for node in document.collectors] == [None, None]


def test_an_interest_too_heavy_for_one_collector_is_named():
    file = interests(POSTER, rates={"P4": 5.0}, limits={"collector_rate_max": 6.0})
    with pytest.raises(Infeasible, match=r"collector_rate_max = 6 .* consumer C2 alone needs 7"):
        plan(file)


def test_a_capacity_that_rules_out_the_best_root_is_kept():
    with pytest.raises(Infeasible, match=r"collector_rate_max = 4 .* 5 at the least"):
        plan(interests(RING, limits={"collector_rate_max": 4.0}))
    pair = {"C1": ["P1", "P2", "P3"], "C2": ["P2", "P3", "P4"]}
    free = plan(interests(pair), phi=0.01)
    assert [node.bag for node in free.collectors] == [("P1", "P2", "P3", "P4")]
    held = plan(interests(pair, limits={"collector_rate_max": 3.0}), phi=0.01)
    assert len(held.collectors) == 2
    assert held.objective.cost > free.objective.cost


def test_levels_are_kept():
    document = plan(interests(POSTER, limits={"levels_max": 1}))
    assert len(document.collectors) == 1
    assert document.objective.cost == 69, "9 hops, and 6 entries that a consumer drops"


def test_the_number_of_collectors_is_kept_by_the_integer_program():
    assert len(plan(interests(POSTER)).collectors) == 3
    document = plan(interests(POSTER, limits={"collectors_max": 2}))
    assert (len(document.collectors), document.objective.cost) == (2, 42)
    apart = interests({"C1": ["P1", "P2"], "C2": ["P3", "P4"]}, limits={"collectors_max": 1})
    with pytest.raises(Infeasible, match=r"collectors_max = 1 .* 2 parts"):
        plan(apart)


def test_work_beyond_a_soft_limit_is_paid_for():
    consumers = {**POSTER, "C4": ["P1", "P5"]}
    document = plan(interests(consumers, limits={"collector_rate_wanted": 3.9}))
    assert (document.objective.cost, document.objective.excess) == (69, pytest.approx(0.2))
    document = plan(interests(consumers, limits={"collector_rate_wanted": 4.0}))
    assert (document.objective.cost, document.objective.excess) == (67, 0)
    check(document)


def test_a_hop_costs_what_the_link_costs():
    hosts = {
        "names": ["here", "there"],
        "latency": [[1, 30], [30, 1]],
        "leaders": {"P1": "here", "P2": "here", "P3": "here", "P4": "here", "P5": "here"},
    }
    document = plan(interests(POSTER, hosts=hosts))
    assert {node.host for node in document.collectors} == {"here"}
    assert document.objective.cost == 33
    check(document)


def many(count=28) -> InterestFile:
    dice = random.Random(3)
    names = [f"P{n}" for n in range(24)]
    return interests({f"C{n}": dice.sample(names, 4) for n in range(count)})


def test_progress_tells_what_is_tried_and_the_cost_so_far_which_falls_to_that_of_the_plan():
    shown = []
    watch = Watch(lambda sentence, cost: shown.append((sentence, cost)))

    made = plan(many(), effort=0.1, watch=watch)

    assert shown[0] == ("28 interests", 0.0)
    costs = [cost for sentence, cost in shown if "annealing" in sentence]
    assert len(costs) > 3
    assert costs[0] > costs[-1] >= made.objective.cost == shown[-1][1]


@pytest.mark.parametrize("moves", [0, 1, 200])
def test_a_search_that_is_stopped_gives_the_best_plan_so_far(moves):
    asked = []

    def stopped() -> bool:
        asked.append(None)
        return len(asked) > moves

    made = plan(many(), effort=10.0, watch=Watch(stopped=stopped))

    check(made)
    assert len(asked) < moves + 20, "no loop goes on"
    assert made.objective.gap is None


def test_two_parts_are_told_with_the_sum_of_their_costs():
    shown = []
    watch = Watch(lambda sentence, cost: shown.append((sentence, cost)))

    plan(interests({"C1": ["P1", "P2"], "C2": ["P3", "P4"]}), watch=watch)

    assert [cost for _, cost in shown] == [0, 2, 2, 4]


REPEATED = """
import sys
from tests.topology.test_plan import many, plan
sys.stdout.buffer.write(plan(many(), effort=0.1).canonical())
"""


@pytest.mark.campaign
def test_one_input_gives_one_plan_under_two_hash_seeds():
    plans = [
        subprocess.run(
            [sys.executable, "-c", REPEATED],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            cwd=Path(__file__).parents[2],
        ).stdout
        for seed in ("1", "2")
    ]
    assert plans[0] == plans[1]
    assert Plan.from_json(json.loads(plans[0])).objective.gap is None, "the heuristic was at work"


def test_the_digest_of_a_plan_that_was_read_is_that_of_what_it_said():
    # Programs that know other fields of a plan must agree on the tags of its streams.
    document = json.loads(poster().canonical())
    more = {**document, "a later field": 1}
    read = Plan.from_json(more)
    assert read.digest != poster().digest
    assert Plan.from_json(document).digest == poster().digest
    assert replace(read, epoch=2).digest == replace(poster(), epoch=2).digest
