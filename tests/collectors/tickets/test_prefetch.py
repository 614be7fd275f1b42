"""An instance that stands ready reads on, and begins behind what its epoch does not need."""

from dataclasses import replace

import pytest

from collectors.engine.log_end_loop import LogEndLoop
from collectors.engine.prefetch import Prefetch
from collectors.engine.stream_loop import StreamBatch
from multicast.control import stream_partition
from multicast.drivers.memory.driver import MemoryDriver
from multicast.drivers.memory.logs import MemoryLog
from multicast.drivers.protocol import Record
from multicast.order import anchor
from multicast.tickets.encoding import OwnRecord, Ticket, encode
from multicast.tickets.stream import TicketOrder
from tests.helpers.plans import chain, from_start

PLAN = replace(chain(), order_version=2)
BEFORE = replace(PLAN, epoch=7)
K1 = stream_partition(PLAN, "K1")
MARK = encode(anchor(PLAN, "K1"), OwnRecord())
TICKET = encode(anchor(PLAN, "K1"), OwnRecord((Ticket(0, 1, 0),)))
FOREIGN = [encode(anchor(BEFORE, "K1"), OwnRecord((Ticket(0, 1, 0),))), b"", None, b"amcast?"]


@pytest.fixture
def ready():
    return Prefetch({K1: anchor(PLAN, "K1")}, {K1: 10})


def take(ready, first, *values):
    records = [Record(first + place, value, None) for place, value in enumerate(values)]
    ready.take([StreamBatch(K1, records, first + len(values))])


def stream(first=10):
    opened = TicketOrder(PLAN, "K1", from_start(PLAN))
    opened.passed(first)
    return opened


def test_what_others_wrote_and_the_version_mark_are_passed(ready):
    take(ready, 10, MARK, *FOREIGN)
    take(ready, 15, *FOREIGN)
    opened = stream()
    assert ready.give(K1, opened)
    assert opened.offset_next == 19
    assert opened.state == TicketOrder(PLAN, "K1", from_start(PLAN)).state


def test_a_record_of_the_epoch_itself_is_left_to_the_core_and_all_behind_it(ready):
    take(ready, 10, *FOREIGN)
    take(ready, 14, FOREIGN[0], TICKET, FOREIGN[0])
    take(ready, 17, *FOREIGN)
    opened = stream()
    assert not ready.give(K1, opened), "it must be fetched again"
    assert opened.offset_next == 15


def test_offsets_without_records_are_passed(ready):
    ready.take([StreamBatch(K1, [], 30)])
    opened = stream()
    assert ready.give(K1, opened)
    assert opened.offset_next == 30


def test_a_stream_that_was_opened_further_on_stays_there(ready):
    take(ready, 10, *FOREIGN)
    opened = stream(first=100)
    assert not ready.give(K1, opened)
    assert opened.offset_next == 100


def test_questions_for_the_ends_are_frequent_while_the_plan_changes():
    ends = LogEndLoop(MemoryDriver(MemoryLog({"A": 1})), None, failed=pytest.fail)
    sink = object()
    all_ordered = {sink: 0}
    usual = ends._spacing_s(all_ordered)
    ends.hurries = True
    assert ends._spacing_s(all_ordered) < usual / 5
    assert ends._spacing_s({sink: None}) < usual / 5, "of a standby, too"
