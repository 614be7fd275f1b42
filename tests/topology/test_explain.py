"""What a consumer's order costs, and because of whom: worked examples, and sums that must agree."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.topology.test_plan import POSTER, interests
from topology.changes import interests_of, with_interests
from topology.check import figures
from topology.explain import ForeignCause, ForeignWork, explained, explanations, remedy
from topology.planner.solver import plan
from topology.repairs import Change, RepairAction, applied
from topology.tree import CollectorSpec


def test_the_posters_first_consumer_pays_for_the_second():
    explanation = explained(plan(interests(POSTER)), "C1")
    assert explanation.logs == ("P1", "P2", "P3")
    assert explanation.collectors == ("K2", "K1")
    assert explanation.ways == ((("K2",), ("P1",)), (("K1", "K2"), ("P2", "P3")))
    assert explanation.work == (ForeignWork("K2", "drops", ("P4",), 1.0),)
    assert explanation.causes == (ForeignCause("C2", 1.0, ("P4",)),)
    # K1 appends 3; K2 appends 3 and drops 1; C1 reads 3.
    assert (explanation.foreign, explanation.handled, explanation.genuineness) == (1, 10, 0.9)


def test_a_log_that_is_passed_on_is_charged_to_those_who_read_it_in_other_directions():
    explanation = explained(plan(interests({**POSTER, "C4": ["P1", "P5"]})), "C1")
    assert explanation.work == (
        ForeignWork("C1", "drops", ("P5",), 1.0),
        ForeignWork("K2", "passes on", ("P5",), 1.0),
    )
    assert explanation.causes == (
        ForeignCause("C3", 1.0, ("P5",)),
        ForeignCause("C4", 1.0, ("P5",)),
    )


def test_who_reads_in_the_same_direction_is_no_cause():
    made = plan(interests({"d": "AD", "s": "ADS", "y": "AY"}))
    bags = {"K1": ("A",), "K2": ("A", "D", "S"), "K3": ("A", "Y")}
    reads = {"d": "K2", "s": "K2", "y": "K3"}
    made = replace(
        made,
        collectors=tuple(
            CollectorSpec(name, bag, None if name == "K1" else "K1", stream)
            for stream, (name, bag) in enumerate(bags.items())
        ),
        consumers=tuple(replace(e, collector=reads[e.name]) for e in made.consumers),
    )
    explanation = explained(made, "d")
    assert [(work.worker, work.does) for work in explanation.work] == [
        ("d", "drops"),
        ("K1", "passes on"),
    ]
    assert explanation.causes == (ForeignCause("s", 1.0, ("S",)), ForeignCause("y", 1.0, ("A",)))


def test_a_log_that_nobody_needs_any_more_has_no_cause():
    made = plan(interests(POSTER))
    fewer = replace(made, consumers=made.consumers[:2])
    tree = replace(fewer, collectors=tuple(
        replace(node, bag=("P1", "P2", "P3", "P5") if node.name == "K2" else node.bag)
        for node in made.collectors if node.name != "K3"))  # fmt: skip
    explanation = explained(tree, "C1")
    # C1 drops P5, and K2 passes it on. K2 drops P4, which C2 wants.
    assert (explanation.foreign, explanation.leftover) == (3, 2)
    assert [cause.consumer for cause in explanation.causes] == ["C2"]


def test_a_genuine_consumer_has_no_causes_and_needs_no_remedy():
    made = plan(interests(POSTER))
    explanation = explained(made, "C2")
    assert (explanation.work, explanation.causes, explanation.genuineness) == ((), (), 1.0)
    assert remedy(made, explanation) is None
    assert [entry.consumer for entry in explanations(made)] == ["C1", "C3"]


def test_a_consumer_of_one_log_has_no_collectors():
    made = plan(interests({**POSTER, "C4": ["P1"]}))
    explanation = explained(made, "C4")
    assert (explanation.collectors, explanation.ways, explanation.handled) == ((), (), 0)


def test_rates_count():
    made = plan(interests(POSTER, rates={"P4": 7, "P1": 0}))
    for entry in made.consumers:
        explanation = explained(made, entry.name)
        assert explanation.wanted == sum(made.rates.get(log, 1.0) for log in explanation.logs)


def test_an_unknown_consumer_is_a_key_error():
    with pytest.raises(KeyError):
        explained(plan(interests(POSTER)), "C9")


def test_the_remedy_says_what_it_changes_in_the_same_tree():
    made = plan(interests(POSTER))
    best = remedy(made, explained(made, "C1"))
    assert best.change == "let C1 also take P4"
    assert (best.loses, best.foreign, best.cost_before, best.cost) == (False, 0, 33, 25)
    file = applied(interests_of(made), [Change(RepairAction.TAKE, "C1", "P4")])
    assert figures(with_interests(made, file)).cost == 25


# Each consumer has a partition of its own, so it keeps one whatever it gives up.
plans = st.lists(
    st.frozensets(st.sampled_from("ABCDEF"), min_size=1, max_size=4), min_size=2, max_size=6
).map(
    lambda takes: plan(
        interests({f"C{n}": [*sorted(take), f"own{n}"] for n, take in enumerate(takes)})
    )
)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(plans)
def test_all_explanations_together_are_the_plans_foreign_work(made):
    work = {w for entry in made.consumers for w in explained(made, entry.name).work}
    assert sum(w.entries for w in work) == pytest.approx(figures(made).foreign)
    for entry in made.consumers:
        explanation = explained(made, entry.name)
        assert sum(c.entries for c in explanation.causes) == pytest.approx(explanation.foreign)
        assert entry.name not in [cause.consumer for cause in explanation.causes]
        wanted = {log for cause in explanation.causes for log in cause.logs}
        assert wanted == {log for w in explanation.work for log in w.logs}


@settings(max_examples=25, deadline=None, derandomize=True)
@given(plans)
def test_a_consumer_whose_causes_give_up_what_they_cost_it_becomes_genuine(made):
    name = made.consumers[0].name
    for _ in range(len(made.logs)):
        causes = explained(made, name).causes
        if not causes:
            break
        changes = [
            Change(RepairAction.LEAVE, cause.consumer, log)
            for cause in causes
            for log in cause.logs
        ]
        made = with_interests(made, applied(interests_of(made), changes))
    assert explained(made, name).foreign == 0


@settings(max_examples=25, deadline=None, derandomize=True)
@given(plans)
def test_a_remedy_helps_if_there_is_one(made):
    for explanation in explanations(made):
        best = remedy(made, explanation)
        assert best is None or best.foreign < explanation.foreign


def test_what_three_equal_needs_cost_no_single_change_spares():
    """The junction passes on for all three; without one of them still for two."""
    made = plan(interests({f"C{n}": ["A", f"own{n}"] for n in range(3)}))
    explanation = explained(made, "C0")
    assert explanation.work == (ForeignWork("K1", "passes on", ("A",), 1.0),)
    assert explanation.causes == (ForeignCause("C1", 0.5, ("A",)), ForeignCause("C2", 0.5, ("A",)))
    assert remedy(made, explanation) is None
