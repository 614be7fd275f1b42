"""Announcements: their bytes, what they promise, and what a collector orders early for them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.collector import Append, Collector, CollectorLimits, Fill
from multicast.announcements import (
    DEBT_TICKS,
    LOGS_MAX,
    TOKEN_BYTES,
    Announcement,
    Count,
    Promises,
    decode,
    encode,
)
from multicast.order import OrderStream, Run
from multicast.order import decode as decode_order
from tests.helpers.plans import chain, from_start

TOKEN = b"12345678"


def promises(*, promised_max=1000):
    return Promises(promised_max)


counts = st.builds(
    Count, st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)
)


@given(st.integers(0, 2**64 - 1), st.lists(counts, max_size=LOGS_MAX))
def test_an_announcement_reads_back(producer, entries):
    raw = encode(TOKEN, Announcement(producer, entries))
    assert decode(TOKEN, raw) == Announcement(producer, entries)
    assert len(raw) < 1232  # fits into the smallest IPv6 packet of 1,280 bytes, with its headers


def test_what_is_meant_for_somebody_else_is_ignored():
    raw = encode(TOKEN, Announcement(7, [Count(0, 1, 0)]))
    assert len(TOKEN) == TOKEN_BYTES
    for wrong in (b"", b"TA", raw[:-1], raw + b"?", b"XX" + raw[2:], raw[:2] + b"\x09" + raw[3:]):
        assert decode(TOKEN, wrong) is None
    assert decode(b"87654321", raw) is None


@given(st.binary(max_size=200))
def test_noise_is_no_announcement_and_no_error(raw):
    assert decode(TOKEN, raw) is None or raw[3 : 3 + TOKEN_BYTES] == TOKEN


def test_lost_repeated_and_late_announcements_change_nothing():
    made = promises()
    made.announced(1, sent=3, settled=0)  # the first two were lost
    made.announced(1, sent=3, settled=0)
    made.announced(1, sent=2, settled=0)
    assert made.promised == 3
    made.grown(3)
    made.grown(5)  # five more were lost
    made.announced(1, sent=9, settled=8)
    assert made.promised == 1


def test_a_debt_that_is_forgotten_is_not_made_up_for():
    made = promises()
    made.announced(1, sent=1, settled=0)
    made.grown(3)
    for _ in range(2 * DEBT_TICKS):
        made.tick()
    assert made.promised == 0
    made.announced(1, sent=4, settled=3)  # the log has contained the second and third for long
    assert made.promised == 1


def test_after_a_long_silence_only_what_is_on_its_way_is_promised():
    made = promises()
    made.announced(1, sent=1, settled=0)
    made.grown(1)
    made.announced(1, sent=500, settled=498)
    assert made.promised == 2


def test_what_was_held_back_and_came_meanwhile_leaves_no_debt():
    made = promises()
    made.announced(1, sent=1, settled=0)
    made.grown(2)  # the second followed the first so closely that it was not announced
    made.announced(1, sent=3, settled=2)
    assert made.promised == 1


def test_what_comes_before_its_announcement_is_no_promise():
    made = promises()
    made.grown(1)
    made.announced(1, sent=1, settled=0)
    assert made.promised == 0


def test_what_nobody_announces_is_forgotten_in_the_end():
    made = promises()
    made.grown(5)
    for _ in range(DEBT_TICKS):
        made.tick()
    assert made.promised == -5  # their announcements may still come
    for _ in range(DEBT_TICKS):
        made.tick()
    made.announced(1, sent=1, settled=0)
    assert made.promised == 1


def test_a_producer_that_was_introduced_gets_credit_for_what_is_stored_already():
    made = promises()
    made.announced(1, sent=0, settled=0)
    made.grown(1)
    made.announced(1, sent=3, settled=1)
    assert made.promised == 2
    for forgiven in range(1, 4):  # whose debt was forgiven before: no credit
        late = promises()
        late.announced(1, sent=0, settled=0)
        late.grown(forgiven)
        for _ in range(2 * DEBT_TICKS):
            late.tick()
        late.announced(1, sent=forgiven + 1, settled=forgiven)
        assert late.promised == 1


def test_while_plain_producers_write_nothing_is_promised():
    made = promises()
    sent = 0
    for _ in range(20):
        for _ in range(10):
            made.grown(2)  # one that was announced, one that was not
            sent += 1
            made.announced(1, sent=sent, settled=sent - 1)
            assert made.promised <= 0
        made.tick()


def test_a_producer_cannot_promise_without_bound():
    made = promises(promised_max=10)
    made.announced(1, sent=2**60, settled=0)
    assert made.promised == 10
    made.announced(2, sent=5, settled=6)  # no producer of ours sends that
    assert made.promised == 10


class Stand:
    """A collector of one log whose appends are stored at once."""

    def __init__(self, **limits):
        plan = chain()
        stream = OrderStream(plan, "K1", from_start(plan))
        self.core = Collector(stream, None, writer=1, limits=CollectorLimits(**limits))
        self.core.own_end(0)
        self.sent = 0
        self.stored = 0

    def announce(self, count):
        self.sent += count
        self.core.announced(Announcement(1, [Count(0, self.sent, self.sent - count)]))

    def step(self):
        """Carry out appends; give the runs that were ordered and the fills that are asked for."""
        runs, fills = [], []
        for action in self.core.step(0):
            match action:
                case Append(raw):
                    runs += decode_order(raw).runs
                    self.core.own_read(self.stored, raw)
                    self.stored += 1
                case Fill():
                    fills.append(action)
        return runs, fills


def test_an_announced_message_is_ordered_before_it_is_there():
    stand = Stand()
    stand.announce(1)
    assert stand.step() == ([], [])  # where the log ends is not known yet
    stand.core.log_end(0, 5)
    assert stand.step() == ([Run(0, 0, 5)], [])
    stand.announce(2)
    assert stand.step() == ([Run(0, 5, 7)], [])
    stand.core.log_end(0, 7)
    assert stand.step() == ([], [])
    assert stand.core.early == 0


@pytest.mark.parametrize("early_max", [0, 3])
def test_no_more_than_the_cap_is_ordered_ahead(early_max):
    stand = Stand(early_max=early_max)
    stand.core.log_end(0, 0)
    stand.announce(10)
    stand.step()
    assert stand.core.early == early_max


def test_a_hole_is_filled_one_by_one_after_two_ticks():
    stand = Stand()
    stand.core.log_end(0, 0)
    stand.announce(2)  # and the producer dies
    stand.step()
    stand.core.tick()
    assert stand.step() == ([], [])
    stand.core.tick()
    assert stand.step() == ([], [Fill(0, 2)])
    stand.core.tick()
    stand.core.tick()
    assert stand.step() == ([], [])  # one is outstanding
    stand.core.filled(0, 1)
    assert stand.step() == ([], [Fill(0, 2)])
    stand.core.filled(0, 2)
    stand.core.log_end(0, 2)
    assert stand.step() == ([], [])
    stand.announce(1)
    assert stand.step() == ([Run(0, 2, 3)], [])


def test_what_grows_is_no_hole():
    stand = Stand()
    stand.core.log_end(0, 0)
    stand.announce(5)
    stand.step()
    for end in range(1, 5):
        stand.core.tick()
        stand.core.log_end(0, end)
        assert stand.step() == ([], [])


def test_after_a_fill_that_failed_nothing_is_ordered_early():
    stand = Stand()
    stand.core.log_end(0, 0)
    stand.announce(1)
    stand.step()
    stand.core.tick()
    stand.core.tick()
    assert stand.step() == ([], [Fill(0, 1)])
    stand.core.filled(0, None)
    stand.announce(3)
    assert stand.step() == ([], [])
    stand.core.tick()
    assert stand.step() == ([], [Fill(0, 1)])  # and the hole is not given up
    stand.core.log_end(0, 4)
    assert stand.step() == ([Run(0, 1, 4)], [])


def test_an_epoch_that_ends_orders_nothing_early():
    stand = Stand()
    stand.core.log_end(0, 1)
    stand.core.freeze_after({0: 2})
    stand.announce(5)
    assert stand.step() == ([Run(0, 0, 1)], [])
