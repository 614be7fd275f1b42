"""Where a producer's tickets go: the stream of each log's top, in the epoch that has begun."""

from dataclasses import replace

from multicast.control import ControlState, ends_record, genesis, markers_record, plan_record
from multicast.drivers.protocol import Record, TopicPartition
from multicast.order.runs import digest_of
from multicast.producing.ticketing import places_of
from tests.helpers.plans import chain, tag_in
from topology.tree import CollectorSpec, Log, Subscription

# Two trees: K1 with K2 below it, and K3.
FIRST = replace(
    chain(),
    partitions=("P1", "P2", "P3", "P4", "P5", "P6"),
    logs=tuple(Log(f"P{n}", "A", n - 1) for n in range(1, 7)),
    collectors=(*chain().collectors, CollectorSpec("K3", ("P5", "P6"), None, 2)),
    consumers=(*chain().consumers, Subscription("C5", ("P5", "P6"), "K3")),
)


def state_of(*plans):
    """A control topic after ordinary changes from each plan to the next one."""
    state = ControlState("A")
    previous, statements = genesis("A"), []
    for plan in plans:
        statements.append(plan_record(previous, plan, attempt="1"))
        previous = digest_of(statements[-1][1])
        if plan.epoch > 1:
            positions = {log.name: 0 for log in plan.logs}
            for make in (markers_record, ends_record):
                statements.append(make(previous, plan.epoch - 1, positions, attempt="1"))
                previous = digest_of(statements[-1][1])
    for offset, (key, value) in enumerate(statements):
        state.read(Record(offset, value, key))
    assert state.begun_epoch == plans[-1].epoch
    return state


def test_each_log_with_a_collector_has_its_place_in_the_stream_of_its_top():
    places = places_of(state_of(FIRST), 1, {})
    assert sorted(places) == [TopicPartition("A", number) for number in (0, 1, 2, 4, 5)]
    first, second, third = (places["A", number] for number in (0, 1, 2))
    assert first.stream == second.stream == TopicPartition("A.Msg-TO", 0)
    assert first.book is second.book
    assert third.stream == TopicPartition("A.Msg-TO", 1)
    assert (first.number, third.number) == (0, 2)
    assert (first.tag, third.tag) == (tag_in(FIRST, "K1"), tag_in(FIRST, "K2"))


def test_a_tree_that_is_retained_keeps_tag_and_book_and_the_others_begin_anew():
    moved = replace(
        FIRST,
        epoch=2,
        base_epoch=1,
        logs=FIRST.logs[::-1],  # other numbers
        consumers=(*FIRST.consumers, Subscription("C6", ("P1", "P2"), "K1")),
    )
    before = places_of(state_of(FIRST), 1, {})
    state = state_of(FIRST, moved)
    after = places_of(state, 2, before)
    assert after["A", 4] == before["A", 4]
    assert after["A", 4].book is before["A", 4].book
    assert after["A", 0].tag == state.tag(2, "K1") != before["A", 0].tag
    assert after["A", 0].book is not before["A", 0].book
    assert after["A", 0].number == 5


def test_an_epoch_without_tickets_has_no_places_and_retains_all_trees():
    off = replace(FIRST, epoch=2, base_epoch=1, tickets=False)
    on = replace(FIRST, epoch=3, base_epoch=2)
    state = state_of(FIRST, off, on)
    assert places_of(state, 2, places_of(state, 1, {})) == {}
    again = places_of(state, 3, {})
    assert {place: one.tag for place, one in again.items()} == {
        place: one.tag for place, one in places_of(state, 1, {}).items()
    }
