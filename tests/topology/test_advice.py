"""The least changes that make cyclic interests acyclic, against trying every single change."""

from __future__ import annotations

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.topology.test_plan import POSTER, interests
from topology.acyclicity import is_acyclic
from topology.advice import advised
from topology.interests import InterestFile
from topology.planner.hypergraph import logs_met
from topology.repairs import NAMES_MAX, Change, ChangeKind, RepairAction, applied, repairs

CYCLIC = {**POSTER, "C4": ["P1", "P5"]}
TRIANGLE = {"X": "AB", "Y": "BC", "Z": "CA"}
SEVERAL = {f"{name}{n}": [f"{log}{n}" for log in logs] for n in range(5)
           for name, logs in TRIANGLE.items()}  # fmt: skip


def acyclic(file: InterestFile) -> bool:
    return is_acyclic(frozenset(logs) for logs in logs_met(file).values() if len(logs) > 1)


def sentences(kind, given_advice):
    return [p.sentence for p in given_advice.proposals if p.kind is kind]


def test_the_posters_example_with_a_cycle_has_a_least_change():
    given_advice = advised(interests(CYCLIC))
    assert sentences(ChangeKind.INTERESTS, given_advice)[:2] == [
        "let C1 no longer take P1",
        "let C3 no longer take P5",
    ]
    assert given_advice.proposals[0].loses
    assert given_advice.sentence == "let C1 no longer take P1: then the interests are acyclic"
    assert given_advice.sets_cannot


def test_the_least_change_loses_nothing_if_there_is_such_a_change():
    given_advice = advised(interests(TRIANGLE))
    assert given_advice.sentence == "let X also take C: then the interests are acyclic"
    assert [p.loses for p in given_advice.proposals] == [False, False, False]


def test_a_change_of_the_destination_sets_is_proposed_with_where_the_messages_go():
    sets = [("P1", "P2"), ("P2", "P3"), ("P1", "P3")]
    apart = {"X": ["P1"], "Y": ["P2"], "Z": ["P3"]}
    bare = advised(interests(apart, sets))
    assert sentences(ChangeKind.DESTINATIONS, bare)[0] == (
        "do not declare P1+P2 (nobody can multicast to it then)"
    )
    assert all(p.loses for p in bare.proposals if p.kind is ChangeKind.DESTINATIONS)
    covered = advised(interests(apart, [*sets, ("P1", "P2", "P3")]))
    least = next(p for p in covered.proposals if p.kind is ChangeKind.DESTINATIONS)
    assert least.sentence == "do not declare P1+P2 (its messages go to P1+P2+P3)"
    assert not least.loses


def test_five_cycles_need_more_names_than_are_tried():
    given_advice = advised(interests(SEVERAL))
    assert given_advice.proposals == ()
    assert given_advice.sentence == (
        "no change of up to 4 names was found that removes every cycle"
    )


# -- oracles --------------------------------------------------------------------------------

files = st.builds(
    lambda takes, sets: interests(
        {f"C{number}": sorted(interest) for number, interest in enumerate(takes)}, sets
    ),
    st.lists(
        st.frozensets(st.sampled_from("ABCDE"), min_size=1, max_size=3), min_size=3, max_size=6
    )
    .map(lambda takes: [*takes, frozenset("ABCDE"[:1])])
    .filter(lambda takes: len(frozenset().union(*takes)) == 5),
    st.lists(st.sampled_from(["AB", "BC", "CD", "ABC", "BDE"]), unique=True, max_size=3),
)


def every_single(file: InterestFile, kind: ChangeKind):
    if kind is ChangeKind.DESTINATIONS:
        for to in file.destinations:
            yield Change(RepairAction.UNDECLARE, "+".join(to))
        return
    for entry in file.consumers:
        for name in file.partitions:
            if name not in entry.interest:
                yield Change(RepairAction.TAKE, entry.name, name)
            elif len(entry.interest) > 1:
                yield Change(RepairAction.LEAVE, entry.name, name)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(files)
def test_single_changes_are_the_same_as_by_trying_all(file):
    assume(not acyclic(file))
    for kind in ChangeKind:
        tried = {change for change in every_single(file, kind) if acyclic(applied(file, [change]))}
        answer = repairs(file, kind)
        if tried:
            assert {changes[0] for changes in answer} == tried
        for changes in answer:
            assert acyclic(applied(file, changes))
            assert (1 if tried else 2) <= len(changes) <= NAMES_MAX
