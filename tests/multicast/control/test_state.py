"""What operators and what collectors state lies in two topics, and no order holds between them."""

from contextlib import closing
from dataclasses import replace
from functools import cache
from itertools import combinations
from pathlib import Path

import pytest

from bench.pipeline.rule import PlannedOrder, Statement, read_control
from bench.pipeline.ticket_rule import StreamReading
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
from multicast.control.documents import Ended
from multicast.control.state import EARLY_BYTES_MAX, EARLY_MAX
from multicast.drivers.memory.driver import MemoryDriver, MemoryLog
from multicast.drivers.protocol import Record
from multicast.errors import TopicMissing, UncoveredInterest, UnknownVersion
from multicast.order.records import Loss, SeenEnd, encode
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
    began = digest_of(stated_by_operators()[{1: 0, 2: 3}[plan.epoch]][1])
    stream = OrderStream(plan, name, from_start(plan), began=began)
    raw = encode(stream.shape.tag, stream.checkpoint())
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
    assert (state.void, state.advertised.running, state.checkpoint_keys) == (6, {}, {})


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


def test_of_the_statements_that_wait_for_their_plan_only_so_many_bytes_are_kept():
    state, large = ControlState(FIRST.topic), EARLY_BYTES_MAX // 3
    value = b'{"epoch":9%s}' % (b" " * large)
    for number in range(4):
        state.read_collectors(Record(number, value, b"checkpoint/N%d/0/0" % number))
    assert [key[-5:-4] for key in state.early] == [b"2", b"3"]


def test_of_an_epoch_that_began_otherwise_no_checkpoint_counts_and_tags_differ():
    first, second, markers, _ = stated_by_operators()
    ends = {log.name: 1 for log in FIRST.logs}
    other = ends_record(digest_of(markers[1]), 1, ends, attempt="1")
    states = []
    for last in (stated_by_operators()[3], other):
        state = ControlState(FIRST.topic)
        for key, value in (first, second, markers, last):
            state.read(Record(0, value, key))
        key, value = named(SECOND, "K1", 5, (0, 0))
        state.read_collectors(Record(0, value, key))
        states.append(state)
    assert [len(state.checkpoints(2, "K1")) for state in states] == [1, 0]
    assert states[1].void == 1
    assert len({state.tag(2, "K1") for state in states}) == 2
    assert len({state.tag(1, "K1") for state in states}) == 1


def test_the_tag_that_the_page_computes_as_an_example_is_ours():
    page = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text(encoding="utf-8")
    assert f"K1's tag in epoch 1 is `{anchor(1, 'K1', bytes(16)).hex()}`" in page


def test_a_stream_begins_with_what_the_last_ends_of_its_logs_say_of_them():
    first, second, markers, _ = stated_by_operators()
    ended = Ended(seen={"P1": [(9, 4, 77)], "P2": [(3, 1, 0), (2**40, 1, 0)]}, lost={"P2": 2})
    ends = {log.name: 0 for log in FIRST.logs}
    state = ControlState(FIRST.topic)
    last = ends_record(digest_of(markers[1]), 1, ends, attempt="1", ended=ended)
    for key, value in (first, second, markers, last):
        state.read(Record(0, value, key))
    assert state.opened(1, "K1").state.seen == {}
    begun, p1, p2 = state.opened(2, "K1"), SECOND.number("P1"), SECOND.number("P2")
    assert begun.state.seen == {p1: (SeenEnd(p1, 9, 4, 77),), p2: (SeenEnd(p2, 3, 1),)}
    assert begun.state.lost == {p2: 2}
    assert (begun.marked.seen, begun.marked.lost) == (
        tuple(each for log in sorted(begun.state.seen) for each in begun.state.seen[log]),
        (Loss(p2, 2),),
    )
    order = PlannedOrder()
    said = [Statement(*each) for each in (first, second, markers, last)]
    read_control(FIRST.topic, said, order)
    rule = next(each for each in order.rules if (each.epoch, each.collector) == (2, "K1"))
    judge = StreamReading(rule)
    assert judge.seen == {p1: [(4, 9, 77)], p2: [(1, 3, 0)]}
    assert (judge.lost, rule.anchor) == ({p2: 2}, state.tag(2, "K1"))


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
        assert control.refresh().advertised.running == {"K1": 2}
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
    driver = MemoryDriver(log)
    asked = []
    driver.log_start_offsets = lambda logs: asked.extend(logs) or log.log_start_offsets(logs)
    with pytest.raises(error):
        ControlReader(driver, FIRST.topic)
    # Whoever asks for a topic that is not there waits for it.
    assert (COLLECTORS in asked) == (error is not UnknownVersion)
