"""Which stream is read in which epoch: a test a sentence of `multicast/control/sources.py`."""

from dataclasses import replace

import pytest

from multicast.consuming.cursor import Cursor
from multicast.consuming.subscription import SubscriptionRequest, interest_at
from multicast.control import ControlState, genesis, plan_record
from multicast.control.sources import (
    first_epoch,
    last_epoch,
    log_starts,
    retained_whole,
    single_log_end,
    single_log_start,
    source_of,
)
from multicast.drivers.protocol import Record
from multicast.errors import UsageError
from multicast.order.runs import digest_of
from tests.helpers.plans import chain
from topology.carry_over import Retained

ALL = retained_whole(chain())


def test_an_interest_that_meets_one_log_reads_that_log_whatever_the_plan_names():
    assert source_of(chain(), ("P4",), "K1") == "@P4"


def test_any_other_interest_reads_the_named_collector_else_the_smallest_bag_that_covers_it():
    assert source_of(chain(), ("P1", "P2"), "K2") == "K2"
    assert source_of(chain(), ("P1", "P2"), None) == "K1"
    assert source_of(chain(), ("P1", "P4"), None) is None


def test_a_source_lasts_from_the_epoch_in_which_it_began_to_the_last_that_retains_it():
    # Epochs 1 to 5: K1 is replaced after 1 and after 3, P4 never.
    logs = Retained(frozenset(), frozenset({"P4"}))
    retained = {1: logs, 2: ALL, 3: logs, 4: ALL, 5: ALL}.__getitem__
    spans = [
        (first_epoch(retained, epoch, "K1"), last_epoch(retained, epoch, "K1", newest=5))
        for epoch in range(1, 6)
    ]
    assert spans == [(1, 1), (2, 3), (2, 3), (4, None), (4, None)]
    assert first_epoch(retained, 5, "@P4") == 1
    assert last_epoch(retained, 1, "@P4", newest=5) is None


def test_an_epoch_has_begun_once_all_before_have_ended_and_a_log_begins_where_it_ended_last():
    plan = replace(chain(), epoch=3)
    assert log_starts(plan, {2: {"P1": 7}}) is None
    starts = log_starts(plan, {1: {"P1": 5, "P2": 6}, 2: {"P1": 7}})
    assert starts is not None
    assert (starts["P1"], starts["P2"], starts["P3"]) == (7, 6, plan.log("P3").first)


def test_a_single_log_consumer_reads_to_the_marker_and_goes_back_only_where_a_loss_was_accepted():
    ends = {1: {"P1": 7}, 2: {"P1": 8}, 3: {"P1": 12}}
    markers = {1: {"P1": 9}, 2: {}}  # in epoch 1 a stream froze before the marker

    def spans(is_cut):
        log = ends, markers, is_cut
        of = range(1, 5)
        return [(single_log_start(*log, e, "P1"), single_log_end(*log, e, "P1")) for e in of]

    never = spans(lambda *_: False)
    assert never == [(None, 9), (9, 9), (9, 12), (12, None)]  # of epoch 2 nothing, nothing twice
    assert spans(lambda epoch, _: epoch == 1) == [(None, 7), (7, 8), (8, 12), (12, None)]
    assert spans(lambda epoch, _: epoch == 2) == [(None, 9), (9, 8), (8, 12), (12, None)]


def test_a_log_that_is_read_alone_may_be_kept_from_a_plan_before_some_partitions_existed():
    first = chain()
    later = replace(first, epoch=2, partitions=(*first.partitions, "P5"))
    state = ControlState("A")
    key, value = plan_record(genesis("A"), first, attempt="1")
    state.read(Record(0, value, key))
    key, value = plan_record(digest_of(value), later, attempt="1")
    state.read(Record(1, value, key))
    assert state.retained(1).logs >= {"P4"}
    wanted = SubscriptionRequest.of(None, ("P4", "P5"))
    cursor = Cursor(1, "@P4", 0, 0, 0)
    assert interest_at(state, wanted, cursor) == ("P4",)
    with pytest.raises(UsageError, match="partition P9 does not exist"):
        interest_at(state, SubscriptionRequest.of(None, ("P4", "P9")), cursor)
