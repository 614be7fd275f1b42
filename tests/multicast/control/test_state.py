"""What operators and what collectors state lies in two topics, and no order holds between them."""

from contextlib import closing
from dataclasses import replace
from functools import cache
from itertools import combinations

import pytest

from multicast.control import (
    ControlReader,
    ControlState,
    collectors_partition,
    control_partition,
    control_topics,
    ends_record,
    genesis,
    markers_record,
    plan_record,
    running_record,
)
from multicast.control.codecs import named_record
from multicast.control.state import EARLY_MAX
from multicast.drivers.memory.driver import MemoryDriver, MemoryLog
from multicast.drivers.protocol import Record
from multicast.errors import TopicMissing, UncoveredInterest, UnknownVersion
from multicast.order.records import encode
from multicast.order.runs import anchor, digest_of
from multicast.order.stream import OrderStream, StreamCheckpoint
from tests.helpers.plans import chain, from_start

FIRST = chain()
# Another layout, so that its streams are new ones.
SECOND = replace(
    FIRST,
    epoch=2,
    base_epoch=1,
    collectors=tuple(replace(node, stream=node.stream + 4) for node in FIRST.collectors),
)
OPERATORS, COLLECTORS = control_partition(FIRST.topic), collectors_partition(FIRST.topic)


def named(plan, name, offset, slot, time_ms=1):
    """Make the statement of a checkpoint of a stream's start, which stands at this offset."""
    state = OrderStream(plan, name, from_start(plan)).checkpoint()
    raw = encode(anchor(plan, name), state)
    return named_record(StreamCheckpoint(plan.epoch, name, offset, raw), time_ms, slot)


@cache
def stated_by_operators():
    first = plan_record(genesis(FIRST.topic), FIRST, attempt="1")
    second = plan_record(digest_of(first[1]), SECOND, attempt="1")
    ends = {log.name: 0 for log in FIRST.logs}
    markers = markers_record(digest_of(second[1]), 1, ends, attempt="1")
    return [first, second, markers, ends_record(digest_of(markers[1]), 1, ends, attempt="1")]


@cache
def stated_by_collectors():
    """Checkpoints of both epochs that replace each other, are deleted, or are no checkpoints."""
    (_, false), (key, value) = named(FIRST, "K1", 3, (0, 0)), named(SECOND, "K2", 4, (0, 3))
    return [
        named(FIRST, "K1", 2, (0, 0), 9),
        running_record(1, "K1"),
        named(SECOND, "K1", 5, (0, 0), 5),  # replaces one of the first epoch
        named(SECOND, "K1", 6, (0, 1), 6),
        named(FIRST, "K1", 7, (0, 1), 7),  # replaces one of the second
        named(FIRST, "K1", 8, (0, 2), 8),
        (b"checkpoint/K1/0/2", false.replace(b'"epoch":1', b'"epoch":2')),  # of another stream
        (key, value),
        (key, None),
        running_record(2, "K1"),
        named(SECOND, "K2", 9, (1, 0), 4),
        (b"checkpoint/K9/0/0", value),
        (b"plan/1/x/y", stated_by_operators()[0][1]),
    ]


def read(order):
    """Read what operators ("o") and collectors ("c") state in this order."""
    state = ControlState(FIRST.topic)
    topics = {"o": (OPERATORS, stated_by_operators()), "c": (COLLECTORS, stated_by_collectors())}
    topics = {who: (partition, enumerate(said)) for who, (partition, said) in topics.items()}
    for who in order:
        partition, said = topics[who]
        offset, (key, value) = next(said)
        state.read_from(partition, Record(offset, value, key))
    return state


def test_whoever_has_read_both_topics_as_far_has_the_same_state_whatever_came_first():
    mine, theirs = len(stated_by_operators()), len(stated_by_collectors())
    expected = read("o" * mine + "c" * theirs)
    offsets = {name: [p.offset for p in expected.checkpoints(2, name)] for name in ("K1", "K2")}
    assert offsets == {"K1": [5], "K2": [9]}
    assert [point.offset for point in expected.checkpoints(1, "K1")] == [7]
    assert (expected.void, expected.early) == (3, {})
    for plans in combinations(range(2 + theirs), 2):
        order = ["o" if place in plans else "c" for place in range(2 + theirs)]
        assert read([*order, "o", "o"]) == expected, order
    assert read("c" * theirs + "o").checkpoints(2, "K1") == []


def test_a_statement_in_the_topic_of_the_others_is_void():
    state = ControlState(FIRST.topic)
    (first, *others), stated = stated_by_operators(), stated_by_collectors()
    for key, value in (first, *others):
        state.read_collectors(Record(0, value, key))
    assert (state.void, state.plans) == (4, [])
    state.read(Record(0, first[1], first[0]))
    for key, value in stated[:2]:
        state.read(Record(0, value, key))
    assert (state.void, state.running, state.checkpoint_keys) == (6, {}, {})


def test_of_the_statements_that_wait_for_their_plan_only_so_many_are_kept():
    state = ControlState(FIRST.topic)
    for number in range(EARLY_MAX + 7):
        state.read_collectors(Record(number, b'{"epoch":9}', b"checkpoint/N%d/0/0" % number))
    key, value = named(FIRST, "K1", 2, (0, 1))
    state.read_collectors(Record(EARLY_MAX + 7, value, key))
    assert (len(state.early), state.void) == (EARLY_MAX, 8)
    first = stated_by_operators()[0]
    state.read(Record(0, first[1], first[0]))
    assert [point.offset for point in state.checkpoints(1, "K1")] == [2], "the oldest went"
    assert len(state.early) == EARLY_MAX - 1


# -- reading ------------------------------------------------------------------------------------


def log_with(*, operators, collectors):
    log = MemoryLog(dict.fromkeys(control_topics(FIRST.topic), 1))
    for partition, said in ((OPERATORS, operators), (COLLECTORS, collectors)):
        for key, value in said:
            log.write(partition, value, key=key)
    return log


def test_a_reader_reads_the_plans_first_so_that_no_bound_meets_their_checkpoints():
    many = [(b"checkpoint/N%d/0/0" % number, b'{"epoch":9}') for number in range(EARLY_MAX)]
    stated = [named(SECOND, "K1", 5, (0, 0)), *many]
    log = log_with(operators=stated_by_operators(), collectors=stated)
    with closing(ControlReader(MemoryDriver(log), FIRST.topic)) as control:
        state = control.refresh()
        assert len(state.checkpoints(2, "K1")) == 1
        assert (state.void, len(state.early)) == (0, EARLY_MAX)
        assert control.position == 4
        key, value = running_record(2, "K1")
        log.write(COLLECTORS, value, key=key)
        assert control.refresh().running == {"K1": 2}
        assert control.positions == {OPERATORS: 4, COLLECTORS: len(stated) + 1}


@pytest.mark.parametrize(
    ("version", "error"), [(2, UnknownVersion), (3, TopicMissing), (None, UncoveredInterest)]
)
def test_where_collectors_have_no_topic_the_plan_says_why(version, error):
    log = MemoryLog({OPERATORS.topic: 1})
    if version is not None:
        plan = replace(FIRST, order_version=version)
        key, value = plan_record(genesis(FIRST.topic), plan, attempt="1")
        log.write(OPERATORS, value, key=key)
    with pytest.raises(error):
        ControlReader(MemoryDriver(log), FIRST.topic)
