"""Waits behind another log: what is excused, the bound, and whether they settle; recoveries."""

import pytest

from bench.nemesis.histories import AcceptedDeliveries
from bench.nemesis.recovery import RecoveryFigures, recoveries
from bench.nemesis.waits import SETTLE_S, TIMES, FaultTime, judge_waits

S = 10**9


def deliveries(waits):
    """Give a message each 100 ms from 40 s on, by how long each waits, in seconds."""
    accepted = [40 * S + number * S // 10 for number in range(len(waits))]
    at = [acc + round(wait * S) for acc, wait in zip(accepted, waits, strict=True)]
    return AcceptedDeliveries(accepted, accepted, at)


def judged(waits, *incidents, present=((0, 1000 * S),), starved=()):
    delivered = {("C1", "P2"): deliveries(waits), ("C1", "P1"): deliveries([])}
    return judge_waits(incidents, delivered, present={"C1": present}, starved=starved)


def refused(at_s):
    """Give a fault of a producer, in which all others run."""
    return FaultTime("refused", at_s * S, (at_s + 1) * S, excused=False)


def test_a_message_that_waits_longer_than_the_bound_is_found_and_told_with_its_fault():
    waits = [0.01] * 200 + [2.5] + [0.01] * 200
    (finding,) = judged(waits, refused(50)).findings
    assert finding.startswith("C1 delivered 1 messages to P2 later than 2 s")
    assert finding.endswith("up to 2.50 s, after refused (incident 0).")


@pytest.mark.parametrize(
    "excused",
    [
        pytest.param({"present": [(0, 60 * S), (62 * S, 999 * S)]}, id="killed"),
        pytest.param({"starved": [(59 * S, 0), (60 * S, 0), (64 * S, 2 * S)]}, id="starved"),
    ],
)
def test_while_its_consumer_is_away_or_no_core_is_free_no_message_waits(excused):
    waits = [0.01] * 200 + [2.5] + [0.01] * 200
    assert judged(waits, refused(50), **excused).findings == []


def test_waits_that_are_longer_for_good_are_found_though_they_are_short():
    before, during = [0.01] * 300, [0.05] * 310
    settled = judged([*before, *during, *[0.012] * 200], refused(70))
    assert settled.findings == []
    figures = settled.kinds["refused"]
    assert [figures[time]["p99_s"] for time in TIMES] == [0.01, 0.05, 0.012]
    median, tail = [0.05] * 200, [0.01] * 190 + [0.9] * 10
    for waits, named in ((median, "p50"), (tail, "p99")):
        (finding,) = judged([*before, *during, *waits], refused(70)).findings
        assert finding.startswith(f"{SETTLE_S:g} s after refused {named} ")


def test_a_fault_has_recovered_when_each_pair_has_delivered_a_message_that_was_sent_after_it():
    begun = [10 * S, 20 * S, 30 * S]
    waits = {"P1": [11, 22, 31], "P2+P3": [11, 25, 31], "P9": [99, 99, 99]}
    delivered = {
        ("C1", to): AcceptedDeliveries(begun, begun, [at * S for at in each])
        for to, each in waits.items()
    }
    del delivered["C1", "P9"]
    load = dict.fromkeys(waits, begun)
    faults = [("killed", 12 * S), ("killed", 27 * S), ("late", 30 * S)]
    found = recoveries(faults, load=load, delivered=delivered, interests={"C1": ["P1", "P2"]})
    assert found == {
        "killed": RecoveryFigures(2, 0, 4.0, 13.0, 13.0),
        "late": RecoveryFigures(1, 0, None, None, None),
    }
    found = recoveries(faults[:1], load=load, delivered=delivered, interests={"C1": ["P9"]})
    assert found["killed"].unrecovered == 1
