"""The fast checks against deliberately dumb ones, on many small histories."""

import itertools
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multicast import properties
from multicast.properties import check_all
from multicast.verification import acyclic
from tests.multicast.verification.test_properties import destination, run


def pairs_before(sequence):
    return set(itertools.combinations(dict.fromkeys(sequence), 2))


def dumb_cycle_length(sequences):
    """The fewest steps of any cycle, by trying all walks; 0 where there is none."""
    before = [pairs_before(sequence) for sequence in sequences]
    edges = set().union(*before)
    messages = sorted({message for edge in edges for message in edge})
    least = 0
    for start in messages:
        reached = {start}
        for steps in range(1, len(messages) + 1):
            reached = {two for one, two in edges if one in reached}
            if start in reached and (least == 0 or steps < least):
                least = steps
    return least


def dumb_prefix_violated(readings, interest):
    for (p, mine), (q, theirs) in itertools.permutations(readings, 2):
        common = [m for m in mine if m in theirs]
        if common != [m for m in theirs if m in mine]:
            return True
        wanted = [
            m
            for m in mine
            if m in theirs
            or (not set(interest[q]).isdisjoint(destination(m)) if q in interest else q == p)
            or (q not in interest and any(m in s for n, s in readings if n == q))
        ]
        holes = [m in theirs for m in wanted]
        if (
            True in holes
            and False in holes[holes.index(True) : len(holes) - holes[::-1].index(True)]
        ):
            return True
    return False


def dumb_replay_violated(readings):
    for consumer in {name for name, _ in readings}:
        mine = [sequence for name, sequence in readings if name == consumer]
        for one, two in itertools.permutations(mine, 2):
            shifts = {one.index(m) - two.index(m) for m in one if m in two}
            if len(shifts) > 1:
                return True
            for shift in shifts:
                if any(
                    0 <= place + shift < len(one) and one[place + shift] != m
                    for place, m in enumerate(two)
                ):
                    return True
        if dumb_cycle_length(mine):
            return True
    return False


def dumb_validity_violated(readings, interest, ended):
    """All of MESSAGES were acknowledged."""
    for i in ended:
        name, sequence = readings[i]
        together = {m for n, s in readings if n == name for m in s}
        for message in MESSAGES:
            log = message.rpartition(":")[0]
            passed = any(m.rpartition(":")[0] == log and m < message for m in sequence)
            if name in interest:
                wanted = not set(interest[name]).isdisjoint(destination(message))
            else:
                wanted = message in together
            if wanted and (message not in together or (passed and message not in sequence)):
                return True
    return False


def dumb_agreement_violated(readings, interest, ended):
    everything = {m for _, sequence in readings for m in sequence}
    for consumer in interest:
        mine = [i for i, (name, _) in enumerate(readings) if name == consumer]
        got = {m for i in mine for m in readings[i][1]}
        wanted = {m for m in everything if not set(interest[consumer]).isdisjoint(destination(m))}
        if any(i in ended for i in mine) and wanted - got:
            return True
    for i in ended:
        name, theirs = readings[i]
        sisters = {m for n, s in readings if n == name for m in s}
        for _, sequence in readings:
            common = [place for place, m in enumerate(sequence) if m in theirs]
            after = sequence[common[0] :] if common else []
            wanted = [
                m
                for m in after
                if (
                    not set(interest[name]).isdisjoint(destination(m))
                    if name in interest
                    else m in sisters
                )
            ]
            if set(wanted) - set(theirs):
                return True
    return False


MESSAGES = ["P1:0", "P1:1", "P2:0", "P2:1", "P1+P2:0", "P3:0"]


@st.composite
def small_histories(draw):
    """Readings of one order, some of them spoilt; consumers with and without an interest."""
    order = draw(st.permutations(MESSAGES))
    interest = {
        name: draw(st.sets(st.sampled_from(["P1", "P2", "P3"]), min_size=1))
        for name in ("C1", "C2", "C3")
    }
    readings = []
    for _ in range(draw(st.integers(1, 5))):
        name = draw(st.sampled_from(sorted(interest)))
        sequence = [m for m in order if not interest[name].isdisjoint(destination(m))]
        first, last = draw(st.integers(0, 2)), draw(st.integers(0, 2))
        sequence = sequence[first : max(first, len(sequence) - last)]
        for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
            if len(sequence) > 1:
                fault = draw(st.sampled_from(["drop", "move"]))
                message = sequence.pop(draw(st.integers(0, len(sequence) - 1)))
                if fault == "move":
                    sequence.insert(draw(st.integers(0, len(sequence))), message)
        readings.append((name, sequence))
    known = draw(st.sets(st.sampled_from(sorted(interest))))
    ended = draw(st.sets(st.integers(0, len(readings) - 1)))
    return readings, {name: interest[name] for name in sorted(known)}, ended


def of(readings, interest=None, ended=(), acked=""):
    return run(
        *(f"{name}/{number}: {' '.join(s)}" for number, (name, s) in enumerate(readings)),
        interest={name: " ".join(sorted(p)) for name, p in (interest or {}).items()},
        end=" ".join(f"{readings[i][0]}/{i}" for i in sorted(ended)),
        acked=acked,
    )


@pytest.mark.slow
@given(small_histories())
@settings(max_examples=300)
def test_the_fast_checks_agree_with_dumb_ones(small):
    readings, interest, ended = small
    history = of(readings, interest, ended, acked=" ".join(MESSAGES))
    assert (properties.validity(history) is not None) == dumb_validity_violated(
        readings, interest, ended
    )
    sequences = [sequence for _, sequence in readings]
    witness = properties.uniform_acyclic_order(history)
    assert len(witness.cycle if witness else ()) == dumb_cycle_length(sequences)
    assert (properties.uniform_prefix_order(history) is not None) == dumb_prefix_violated(
        readings, interest
    )
    assert (properties.replay(history) is not None) == dumb_replay_violated(readings)
    assert (properties.uniform_agreement(history) is not None) == dumb_agreement_violated(
        readings, interest, ended
    )
    assert (properties.log_order(history) is not None) == any(
        earlier.rpartition(":")[0] == later.rpartition(":")[0] and earlier > later
        for sequence in sequences
        for earlier, later in pairs_before(sequence)
    )


@pytest.mark.slow
@given(st.lists(st.permutations(range(6)).flatmap(
    lambda order: st.integers(0, 6).map(lambda n: order[:n])), max_size=5))  # fmt: skip
@settings(max_examples=300)
def test_every_cycle_is_one_and_none_is_shorter(sequences):
    core = acyclic.core([array("i", sequence) for sequence in sequences], 6)
    least = dumb_cycle_length(sequences)
    assert bool(core) == (least > 0)
    if core:
        steps = acyclic.shortest_cycle(core)
        assert len(steps) == least
        for step, following in zip(steps, (*steps[1:], steps[0]), strict=True):
            assert step.earlier < step.later
            assert (
                sequences[step.sequence][step.later]
                == sequences[following.sequence][following.earlier]
            )


def test_a_search_that_may_look_at_little_still_finds_a_cycle():
    ring = [array("i", [n, (n + 1) % 9]) for n in range(9)]
    steps = acyclic.shortest_cycle(acyclic.core(ring, 9), scan_max=1)
    assert len(steps) == 9


@pytest.mark.slow
@given(small_histories())
def test_a_report_is_the_same_as_its_single_checks_and_can_be_printed(small):
    history = of(*small)
    for entry in check_all(history).verdicts:
        single = getattr(properties, entry.guarantee.replace(" ", "_"))(history)
        assert single == entry.witness or entry.verdict == "not checked"
        assert (entry.verdict == "violated") == bool(entry.witness and entry.witness.sentences)
