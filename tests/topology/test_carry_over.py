"""Collectors and logs that a new plan leaves unchanged are retained."""

import json
from dataclasses import replace

import pytest

from tests.helpers.plans import by_hand
from topology.carry_over import retained
from topology.changes import differences, effects, refuse_moved_logs, with_kept_names
from topology.check import PlanRejected
from topology.rollback import back
from topology.tree import CollectorSpec, InvalidPlan, Log, Plan, Subscription

TWO_TREES = by_hand(
    ["P1", "P2", "P3", "P4", "P5", "P1+P2"],
    {
        "K1": (("P1", "P1+P2", "P2"), None),
        "K2": (("P1", "P1+P2"), "K1"),
        "K3": (("P3", "P4"), None),
    },
    {"C1": (("P1", "P2"), "K1"), "C2": (("P3", "P4"), "K3"), "C5": (("P5",), None)},
)
LEFT, RIGHT, ALONE = {"P1", "P2", "P1+P2"}, {"P3", "P4"}, {"P5"}


def after(**changes):
    return replace(TWO_TREES, epoch=2, base_epoch=1, **changes)


def kept(plan):
    kept = retained(TWO_TREES, plan)
    return set(kept.collectors), set(kept.logs)


def collectors(**changes):
    """Give the plan's collectors with some changes."""
    return tuple(replace(node, **changes.get(node.name, {})) for node in TWO_TREES.collectors)


def test_all_is_carried_over_where_nothing_changed_but_numbers_and_offsets():
    plan = after(
        logs=tuple(replace(log, first=7) for log in reversed(TWO_TREES.logs)),
        collectors=tuple(replace(node, stream_first=9) for node in TWO_TREES.collectors[::-1]),
        consumers=TWO_TREES.consumers[::-1],
    )
    assert kept(plan) == ({"K1", "K2", "K3"}, LEFT | RIGHT | ALONE)


MOVED = (replace(TWO_TREES.consumers[0], collector="K2"), *TWO_TREES.consumers[1:])
MORE = (*TWO_TREES.consumers, Subscription("C6", ("P4",), None))
WIDER = (*TWO_TREES.logs, Log("P4+P5", "A.groups", 1))


@pytest.mark.parametrize(
    ("changes", "left"),
    [
        ({"collectors": collectors(K2={"stream": 5})}, ({"K3"}, RIGHT | ALONE)),
        ({"collectors": collectors(K2={"bag": ("P1", "P1+P2", "P2")})}, ({"K3"}, RIGHT | ALONE)),
        ({"consumers": MOVED}, ({"K3"}, RIGHT | ALONE)),
        ({"consumers": MORE}, ({"K1", "K2"}, LEFT | ALONE)),
        # Else consumers would never read the log of the new set, and miss its messages.
        ({"logs": WIDER}, ({"K1", "K2"}, LEFT)),
        # A collector takes a lone log.
        ({"collectors": collectors(K3={"bag": ("P3", "P4", "P5")})}, ({"K1", "K2"}, LEFT)),
    ],
)
def test_a_tree_that_changed_in_collectors_consumers_or_logs_is_not(changes, left):
    assert kept(after(**changes)) == left


def test_a_plan_with_other_tickets_is_another_layout_that_retains_all():
    off = replace(TWO_TREES, epoch=2, base_epoch=1, tickets=False)
    assert differences(TWO_TREES, off) == ("producers write no tickets",)
    assert retained(TWO_TREES, off).collectors == {"K1", "K2", "K3"}
    assert Plan.parse(json.dumps(off.to_json()).encode()) == off
    assert off.digest != replace(off, tickets=True).digest
    assert not with_kept_names(off, TWO_TREES).tickets
    assert not back(off, TWO_TREES).tickets
    wider = replace(TWO_TREES, logs=(*TWO_TREES.logs, Log("P1+P4", "A.groups", 9)))
    assert not back(off, wider).tickets
    with pytest.raises(InvalidPlan, match="tickets is 'no'; give true or false"):
        Plan.parse(json.dumps({**off.to_json(), "tickets": "no"}).encode())


@pytest.mark.parametrize("change", [{"order_version": 4}, {"logs": 1}])
def test_another_version_retains_nothing_and_another_life_not_its_tree(change):
    if "logs" in change:
        change = {"logs": tuple(replace(log, life=int(log.name == "P1")) for log in TWO_TREES.logs)}
    kept = retained(TWO_TREES, replace(TWO_TREES, epoch=2, base_epoch=1, **change))
    assert TWO_TREES.top("P1").name not in kept.collectors
    assert bool(kept.collectors) is ("logs" in change)


def test_a_plan_without_a_running_log_or_with_it_elsewhere_or_in_an_earlier_life_is_refused():
    *others, last, wider = (replace(log, life=1) for log in TWO_TREES.logs)
    others.append(wider)
    running = replace(TWO_TREES, logs=(last, *others))
    for logs, says in (
        (others, "log P5 of epoch 1 is missing"),
        ([replace(last, partition=9), *others], "log P5 would move from A/4 to A/9"),
        ([replace(last, life=0), *others], "log P5 has life 1, and 0 in this plan"),
    ):
        with pytest.raises(PlanRejected, match=says):
            refuse_moved_logs(running, replace(running, logs=tuple(logs)))
    refuse_moved_logs(TWO_TREES, running)


def test_a_change_says_who_pauses_who_joins_and_who_is_gone():
    nobody = ("pause until the new epoch begins: nobody", "join: nobody", "gone: nobody")
    assert effects(TWO_TREES, after()) == nobody
    assert effects(TWO_TREES, after(collectors=collectors(K2={"stream": 5}))) == (
        "pause until the new epoch begins: consumers C1",
        "join: nobody",
        "gone: nobody",
    )
    other = (*TWO_TREES.consumers[1:], Subscription("C6", ("P4",), None))
    extra = (*TWO_TREES.collectors[:1], *TWO_TREES.collectors[2:], CollectorSpec("K4", (), None, 9))
    assert effects(TWO_TREES, after(consumers=other, collectors=extra)) == (
        "pause until the new epoch begins: consumers C2",
        "join: consumers C6; collectors K4",
        "gone: consumers C1; collectors K2",
    )
