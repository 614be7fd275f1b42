"""When a time-to-cut is due: the batch time-out after a block's first transaction, once."""

from ordering_osn.node.cut_timer import CutTimer

TIMEOUT_S = 2.0


def test_nothing_is_due_while_nothing_is_pending():
    timer = CutTimer()
    timer.observe(None, 0.0)
    assert timer.due_at(TIMEOUT_S) is None
    assert timer.expired(TIMEOUT_S, 9.0) is None


def test_a_cut_is_due_a_time_out_after_the_first_transaction_and_only_once():
    timer = CutTimer()
    timer.observe((3, 7), 1.0)
    timer.observe((3, 7), 2.5)
    assert timer.due_at(TIMEOUT_S) == 3.0
    assert timer.expired(TIMEOUT_S, 2.9) is None
    assert timer.expired(TIMEOUT_S, 3.0) == 3
    assert timer.expired(TIMEOUT_S, 9.0) is None
    assert timer.due_at(TIMEOUT_S) is None


def test_another_block_waits_for_its_own_time_out():
    timer = CutTimer()
    timer.observe((3, 7), 0.0)
    timer.observe((4, 9), 1.5)
    assert timer.expired(TIMEOUT_S, 3.0) is None
    assert timer.expired(TIMEOUT_S, 3.5) == 4


def test_after_a_reset_the_same_block_is_requested_again():
    timer = CutTimer()
    timer.observe((3, 7), 0.0)
    assert timer.expired(TIMEOUT_S, 2.0) == 3
    timer.reset()
    timer.observe((3, 7), 5.0)
    assert timer.expired(TIMEOUT_S, 7.0) == 3


def test_a_blocks_fill_time_counts_from_its_first_transaction():
    timer = CutTimer()
    timer.observe((3, 7), 1.0)
    assert timer.fill_time_s(3, 1.75) == 0.75
    assert timer.fill_time_s(4, 2.0) == 0.0
