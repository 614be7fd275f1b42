"""While a plan changes: an instance that stands ready reads on, and its engine hurries."""

from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial

import pytest

from collectors.engine import core_runner
from collectors.engine.engine import Engine
from collectors.engine.instance import CollectorInstance
from collectors.engine.log_end_loop import LogEndLoop
from collectors.engine.read_ahead import ReadAhead
from collectors.engine.stream_loop import StreamBatch
from collectors.reconfiguration.drain import drain
from collectors.reconfiguration.survey import refuse_damaged
from multicast.control import (
    ControlReader,
    ends_record,
    log_partition,
    markers_record,
    running_record,
    stream_partition,
)
from multicast.drivers.memory.driver import MemoryDriver
from multicast.drivers.memory.logs import MemoryLog
from multicast.drivers.protocol import Record
from multicast.order.records import COUNT_MAX, OwnRecord, Ticket, encode
from multicast.order.runs import anchor, digest_of
from tests.helpers.plans import chain, tag_in
from tests.helpers.small import Small, until
from topology.tree import Subscription

PLAN = chain()
# The next one retains no collector, and its streams lie in the same partitions.
NEXT = replace(chain(epoch=2), consumers=(*PLAN.consumers, Subscription("C9", ("P1", "P2"), "K1")))
K1 = stream_partition(NEXT, "K1")
ENDS = {log.name: 0 for log in PLAN.logs}
FOREIGN = [b"", None, b"amcast?"]


def tickets(plan, messages=1, log=0, *, began=b"e"):
    tag = anchor(2, "K1", began) if plan.epoch > 1 else tag_in(plan, "K1")
    return encode(tag, OwnRecord((Ticket(log, messages, 0),)))


def read_ahead(own=K1, **bounds):
    return ReadAhead([K1], own, earlier={tag_in(PLAN, "K1")}, **bounds)


def endings(system):
    """What ends the first epoch: markers and ends, and the digest of the ends."""
    marks = markers_record(system.previous, 1, ENDS, attempt="1")
    ends = ends_record(digest_of(marks[1]), 1, ENDS, attempt="1")
    return marks, ends, digest_of(ends[1])


def batch(first, *values):
    records = [Record(first + place, value, None) for place, value in enumerate(values)]
    return StreamBatch(K1, records, first + len(values))


def test_what_is_of_no_earlier_epoch_is_kept_and_how_far_each_stream_is_read():
    ahead = read_ahead()
    assert ahead.batches() == []
    ahead.take([batch(10, tickets(PLAN), tickets(NEXT), *FOREIGN)])
    ahead.take([batch(15, tickets(NEXT, 2), tickets(PLAN))])
    ahead.take([StreamBatch(K1, [], 30)])
    foreign = [Record(12 + place, value, None) for place, value in enumerate(FOREIGN)]
    kept = [Record(11, tickets(NEXT), None), *foreign, Record(15, tickets(NEXT, 2), None)]
    assert ahead.batches() == [StreamBatch(K1, kept, 30)]


def test_of_the_parents_stream_all_records_are_kept_as_relays_name_the_last_one():
    ahead = read_ahead(own=None)
    ahead.take([batch(10, tickets(NEXT), tickets(PLAN), *FOREIGN)])
    (kept,) = ahead.batches()
    assert [record.offset for record in kept.records] == [10, 11, 12, 13, 14]


@pytest.mark.parametrize("bound", [{"records_max": 2}, {"bytes_max": 80}])
def test_a_stream_of_which_enough_is_kept_is_named_once(bound):
    ahead = read_ahead(**bound)
    assert ahead.take([batch(10, tickets(NEXT), tickets(PLAN))]) == []
    assert ahead.take([batch(12, tickets(NEXT))]) == [K1]
    assert ahead.take([batch(13, tickets(NEXT))]) == []
    assert ahead.full == [K1]


@contextmanager
def ready():
    """A collector of an epoch that has been proposed; also the system and the engine."""
    with Small(PLAN) as system:
        system.propose(NEXT)
        with Engine(system.driver, PLAN.topic) as engine:
            node = CollectorInstance(engine, "K1")
            engine.add(node)
            until(lambda: node.is_open)
            yield system, engine, node


def test_an_instance_that_stands_ready_misses_no_record_of_its_epoch():
    with ready() as (system, _, node):
        # Tickets of a producer that has learned of the new epoch before the collectors.
        marks, ends, began = endings(system)
        for _ in range(3):
            system.log.write(K1, tickets(PLAN))
            system.log.write(K1, tickets(NEXT, began=began))
        system.write(marks)
        system.write(ends)
        until(lambda: node.begun and node.core.own.offset_next == 6)
        system.log.write(K1, tickets(NEXT, began=began))
        until(lambda: node.core.own.offset_next == 7)
        until(lambda: node.core.own.count == 4)
        assert not node.core.void, "those of the epoch before were left out"
        assert node.error is None


def test_an_epoch_that_is_written_long_before_it_begins_is_kept_up_to_a_bound(monkeypatch):
    monkeypatch.setattr(core_runner, "ReadAhead", partial(ReadAhead, records_max=5))
    with ready() as (system, engine, node):
        marks, ends, began = endings(system)
        for _ in range(20):
            system.log.write(K1, tickets(NEXT, began=began))
        until(lambda: engine.live._subscriptions[K1][node._runner].paused)
        for _ in range(20):
            system.log.write(K1, tickets(NEXT, began=began))
        written = system.driver.last_stable_offsets([K1])[K1]
        kept = len(node._runner._ahead.batches()[0].records)
        system.write(marks)
        system.write(ends)
        until(lambda: node.begun and node.core.own.count == written)
        assert kept <= 20, "what came after it was full was left in the stream"
        assert node.error is None


def test_an_engine_that_starts_while_the_plan_changes_hurries_until_the_epoch_has_begun():
    with Small(PLAN) as system:
        system.propose(NEXT)
        with Engine(system.driver, PLAN.topic) as engine:
            assert engine.ends.hurries
            assert engine.live._is_urgent()
            system.write(markers_record(system.previous, 1, ENDS, attempt="1"))
            system.write(ends_record(system.previous, 1, ENDS, attempt="1"))
            until(lambda: not engine.ends.hurries and not engine.live._is_urgent())


def test_questions_for_the_ends_are_frequent_while_the_plan_changes():
    ends = LogEndLoop(MemoryDriver(MemoryLog({"A": 1})), None, failed=pytest.fail)
    sink = object()
    all_ordered = {sink: 0}
    usual = ends._spacing_s(all_ordered)
    ends.hurries = True
    assert ends._spacing_s(all_ordered) < usual / 5
    assert ends._spacing_s({sink: None}) < usual / 5, "of a standby, too"


def test_a_plan_that_was_not_refused_ends_the_epoch_however_many_offsets_lack_a_message():
    with Small(PLAN) as system:
        logs = [log for log in PLAN.logs if log.name in PLAN.own_logs("K1")]
        for log in logs:
            raw = tickets(PLAN, COUNT_MAX, PLAN.number(log.name))
            system.log.write(stream_partition(PLAN, "K1"), raw)
        control = ControlReader(system.driver, PLAN.topic)
        refuse_damaged(
            system.driver, control.refresh()
        )  # `apply` does so before it changes a thing
        system.propose(NEXT)
        control.refresh()
        drain(system.driver, control, 1, timeout_s=60, say=lambda _: None)
        assert control.refresh().begun_epoch == 2
        ends = system.driver.high_watermarks([log_partition(log) for log in logs])
        control.close()
        assert sum(ends.values()) >= len(logs) * COUNT_MAX


def test_the_record_of_an_earlier_epochs_instance_that_came_late_does_not_stay():
    # `apply` would wait for the next epoch's collector, and `doctor` would say that none is open.
    with ready() as (system, engine, _):
        until(lambda: "K1" in engine.control.advertised.collectors_open(2))
        system.write(running_record(1, "K1", None))
        with closing(ControlReader(system.driver, PLAN.topic)) as control:
            until(lambda: "K1" in control.refresh().advertised.collectors_open(2))
