"""The checker of plans accepts sound plans, and rejects each broken one with the reason."""

from __future__ import annotations

import json

import pytest

from multicast.control.codecs import named_record
from multicast.order.records import CheckpointRecord, Loss, OwnLog, Position, SeenEnd, encode
from multicast.order.stream import StreamCheckpoint
from tests.helpers.plans import by_hand
from tests.topology.test_plan import POSTER, interests
from topology.check import (
    CHECKPOINT_BYTES_MAX,
    OWN_LOG_BYTES,
    RECORD_BYTES_MAX,
    PlanRejected,
    check,
    checkpoint_bytes,
    figures,
)
from topology.planner.solver import plan
from topology.tree import InvalidPlan, Plan

HOSTS = {"names": ["x", "y"], "latency": [[0.5, 3], [3, 0.5]], "leaders": {"P1": "x", "P5": "y"}}
LIMITS = {"collector_rate_max": 3, "levels_max": 2, "collectors_max": 3}


def sound() -> dict:
    return plan(interests(POSTER, limits=LIMITS)).to_json() | {}


def refusal(document: dict) -> str:
    text = json.dumps(document)  # as an operator may edit it
    with pytest.raises((PlanRejected, InvalidPlan)) as refused:
        check(Plan.from_json(json.loads(text)))
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_the_sound_plan_passes():
    check(Plan.from_json(json.loads(json.dumps(sound()))))


FIRST = {"name": "P3+P1", "topic": "A.groups", "partition": 0}
# What is set where in a sound plan, and a part of the refusal's sentence.
BROKEN = [
    ("consumers", 0, {"collector": "K1"}, "consumer C1 reads K1, which does not order P1"),
    ("consumers", 1, {"collector": None}, "C2 reads no collector, but 3 logs meet"),
    ("consumers", 1, {"interest": ["P2", "P7"]}, "consumer C2 subscribes to P7"),
    ("collectors", 2, {"parent": None}, "log P3 enters the order at K1 and K3"),
    ("collectors", 0, {"parent": "K3"}, "is its own ancestor"),
    ("collectors", 0, {"bag": ["P1", "P9"]}, "collector K1 holds an unknown log P9"),
    ("collectors", 1, {"parent": "K9"}, "K9"),
    ("collectors", 1, {"stream": 0}, "stream 0"),
    ("logs", 1, {"partition": 0}, "the plan has Kafka partition A/0 twice"),
    ("logs", slice(5, 5), [FIRST], "log 'P3+P1' is not named by its partitions, sorted"),
    ("partitions", slice(5, 5), ["P6"], "partition P6 has no log of its own"),
    ("objective", None, {"foreign": 0.0}, "states foreign work 0, and its tree has 2"),
    ("limits", None, {"levels_max": 1}, "collector K2 is at level 2, and levels_max is 1"),
    ("limits", None, {"collectors_max": 2}, "has 3 collectors, and collectors_max is 2"),
    (None, None, {"rates": {"P4": 2.0}}, "capacity: collector K1 handles 4 messages/s"),
    (None, None, {"base_epoch": 1}, "epoch 1 is not greater than its base epoch 1"),
    (None, None, {"schema_version": 2}, "schema_version is 2"),
]


@pytest.mark.parametrize(("part", "place", "changed", "says"), BROKEN)
def test_a_broken_plan_is_refused_with_the_reason(part, place, changed, says):
    document = json.loads(json.dumps(sound()))
    where = document[part] if part else document
    if isinstance(place, slice):
        where[place] = changed
    else:
        (where if place is None else where[place]).update(changed)
    assert says in refusal(document)


def test_a_missing_field_is_refused():
    document = json.loads(json.dumps(sound()))
    del document["collectors"][0]["bag"]
    assert "bag" in refusal(document)


def test_a_collector_on_no_host_of_the_plan_is_refused():
    document = json.loads(json.dumps(plan(interests(POSTER, hosts=HOSTS)).to_json()))
    check(Plan.from_json(document))
    document["collectors"][0]["host"] = "z"
    assert "is on z" in refusal(document)


def test_figures_are_counted_from_the_tree():
    computed = figures(plan(interests(POSTER)))
    assert [(s.hops, s.foreign, s.levels) for s in computed.shares] == [
        (5, 0, 2),
        (3, 0, 1),
        (5, 0, 2),
    ]
    assert [(s.load, s.passed_on, s.dropped) for s in computed.collectors] == [
        (3, 0, 0),
        (3, 0, 1),
        (3, 0, 1),
    ]
    # Handled: nine entries appended and two dropped by collectors, nine read by consumers.
    assert computed.genuineness == pytest.approx(18 / 20)
    assert computed.loads == (("K1", 3.0), ("K2", 3.0), ("K3", 3.0))


def test_what_is_passed_on_dropped_and_discarded_is_counted_where_it_is_done():
    document = plan(interests({**POSTER, "C4": ["P1", "P5"]}))
    computed = figures(document)
    assert [(s.load, s.passed_on, s.dropped) for s in computed.collectors] == [
        (2, 0, 0),
        (4, 1, 0),
        (4, 0, 1),
    ]
    assert [s.foreign for s in computed.shares] == [1, 1, 1, 0]
    assert computed.foreign == document.objective.foreign == 5


def of_one_collector(logs: int) -> Plan:
    names = [f"P{number:05}" for number in range(logs)]
    return by_hand(names, {"K1": (names, None)}, {"C1": (names[:2], "K1")})


def test_a_collector_of_so_many_logs_that_its_epoch_could_never_end_is_refused():
    most = (CHECKPOINT_BYTES_MAX - checkpoint_bytes(0, 0)) // OWN_LOG_BYTES
    with pytest.raises(PlanRejected, match=f"K1 has {most + 1} logs, .* {most} logs of its own: "):
        check(of_one_collector(most + 1))
    seen, lost = (SeenEnd(1, 0, 0),) * 4 * most, (Loss(1, 0),) * most
    own = (OwnLog(1, 0, 0, 0, held=False),) * most
    record = CheckpointRecord(0, 0, 0, own, (), 0, seen, lost)
    raw = encode(bytes(16), record)
    assert len(raw) == checkpoint_bytes(most, 0)
    statement = named_record(StreamCheckpoint(2**31, "K" * 249, 2**63 - 1, raw), 2**63 - 1, (26, 4))
    assert RECORD_BYTES_MAX - 500 > sum(map(len, statement)) > RECORD_BYTES_MAX - 1100
    inherited = CheckpointRecord(0, 0, 0, (), (Position(1, 0),) * most, 0, seen, lost)
    assert len(encode(bytes(16), inherited)) == checkpoint_bytes(0, most)
