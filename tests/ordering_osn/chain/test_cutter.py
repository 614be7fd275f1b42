"""Where a block ends: table BC of the contract, row by row, and properties for every input."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordering_osn.chain import blockcutter
from ordering_osn.chain.blockcutter import BLOCK_BYTES_MAX, BatchLimits, BlockCutter
from ordering_osn.node.cut_timer import CutTimer
from tests.ordering_osn.helpers.cores import Stepped, rules, sealed, sized

# Row: limits; messages as (name, size); what each comes to: batches, and whether some are pending.
TABLE = {
    "BC1 one below the limits waits": ((2, 100), [("a", 40)], [([], True)]),
    "BC2 the last that the count allows ends the batch": (
        (2, 100),
        [("a", 40), ("b", 40)],
        [([], True), (["ab"], False)],
    ),
    "BC3 below count and bytes all wait": (
        (3, 100),
        [("a", 40), ("b", 40)],
        [([], True), ([], True)],
    ),
    "BC4 one above the preferred bytes is alone": ((3, 30), [("a", 40)], [(["a"], False)]),
    "BC5 one that would overflow begins the next batch": (
        (3, 50),
        [("a", 40), ("b", 40)],
        [([], True), (["a"], True)],
    ),
    "BC6 one above the preferred bytes ends what is pending and is alone": (
        (3, 50),
        [("a", 40), ("B", 1000)],
        [([], True), (["a", "B"], False)],
    ),
    "the preferred bytes are reached exactly: it waits": (
        (3, 80),
        [("a", 40), ("b", 40)],
        [([], True), ([], True)],
    ),
    "one of exactly the preferred bytes waits": ((3, 40), [("a", 40)], [([], True)]),
    "one of a byte more than preferred is alone": ((3, 39), [("a", 40)], [(["a"], False)]),
    "a batch of one message": ((1, 100), [("a", 40), ("b", 40)], [(["a"], False), (["b"], False)]),
    "what overflowed counts in the next batch": (
        (2, 50),
        [("a", 40), ("b", 40), ("c", 5)],
        [([], True), (["a"], True), (["bc"], False)],
    ),
    "bytes are counted anew after a cut": (
        (9, 100),
        [("a", 60), ("b", 60), ("c", 40), ("d", 1)],
        [([], True), (["a"], True), ([], True), (["bc"], True)],
    ),
    "an empty message counts": ((2, 10), [("a", 0), ("b", 0)], [([], True), (["ab"], False)]),
    "one alone leaves nothing behind": (
        (2, 30),
        [("A", 40), ("b", 10), ("c", 10)],
        [(["A"], False), ([], True), (["bc"], False)],
    ),
}


@pytest.mark.parametrize("row", TABLE)
def test_a_message_ends_the_batches_that_the_table_says(row):
    limits, messages, expected = TABLE[row]
    cutter = BlockCutter()

    found = [cutter.ordered(name.encode(), size, BatchLimits(*limits)) for name, size in messages]

    as_text = [([b"".join(batch).decode() for batch in batches], left) for batches, left in found]
    assert as_text == expected


# Row: limits, sizes (a second apart), and the times that the cut blocks took to fill.
FILLS = {
    "BC1": ((2, 1000), [400], []),
    "BC2": ((2, 1000), [400, 400], [1.0]),
    "BC3": ((3, 1000), [400, 400], []),
    "BC4": ((3, 300), [400], [0.0]),
    "BC5": ((3, 500), [400, 400], [1.0]),
    "BC6": ((3, 500), [400, 10_000], [1.0, 0.0]),
    "what overflowed fills from when it came": ((2, 700), [400, 400, 250], [1.0, 1.0]),
}


@pytest.mark.parametrize("row", FILLS)
def test_a_block_fills_from_its_first_message_to_its_cut(row):
    (messages_max, preferred), sizes, expected = FILLS[row]
    stepped = Stepped(rules(messages_max=messages_max, bytes_preferred=preferred))
    timer, fill_times = CutTimer(), []

    for now, size in enumerate(sizes):
        before = len(stepped.writes)
        stepped.normal(f"t{now}", envelope=sized(f"t{now}", size))
        cut = [write.block.header.number for write in stepped.writes[before:]]
        fill_times += [timer.fill_time_s(block, float(now)) for block in cut]
        timer.observe(stepped.chain.wanted_cut, float(now))

    assert fill_times == expected


def test_bc7_no_orderer_config_is_fatal():
    class Without:
        @property
        def parameters(self):
            raise LookupError("the config has no Orderer group")

    with pytest.raises(LookupError, match="no Orderer group"):
        Stepped(Without())


@pytest.mark.parametrize("limits", [(0, 100), (-1, 100), (1, 0)])
def test_limits_that_let_no_message_in_are_refused(limits):
    with pytest.raises(ValueError, match="room for a message"):
        BatchLimits(*limits)


def test_bc14_a_cut_of_nothing_is_an_empty_batch():
    cutter = BlockCutter()

    assert cutter.cut() == ()
    assert not cutter.pending


def test_the_limits_are_read_with_each_message():
    cutter = BlockCutter()
    cutter.ordered(b"a", 10, BatchLimits(9, 100))

    assert cutter.ordered(b"b", 10, BatchLimits(2, 100)) == (((b"a", b"b"),), False)


def test_no_config_lets_a_block_have_more_bytes_than_readers_take():
    cutter, limits = BlockCutter(), BatchLimits(2**32 - 1, 2**32 - 1)
    wholes = [BLOCK_BYTES_MAX // 2, BLOCK_BYTES_MAX - BLOCK_BYTES_MAX // 2, 1, BLOCK_BYTES_MAX]

    cut = [cutter.ordered(b"%d" % at, 1, limits, whole=whole) for at, whole in enumerate(wholes)]

    assert cut == [((), True), ((), True), (((b"0", b"1"),), True), (((b"2",),), True)]


def test_a_block_with_its_metadata_keeps_to_these_bytes(monkeypatch):
    monkeypatch.setattr(blockcutter, "BLOCK_BYTES_MAX", 5000)
    stepped = Stepped(rules(messages_max=1000))
    for number in range(40):
        stepped.normal(f"t{number}")
    blocks = [sealed(write) for write in stepped.writes]
    assert len(blocks) > 1
    assert max(block.ByteSize() for block in blocks) < 5000


@given(
    sizes=st.lists(st.integers(0, 120)),
    messages_max=st.integers(1, 5),
    preferred=st.integers(1, 100),
    cuts=st.sets(st.integers(0, 50)),
)
def test_bc18_the_batches_are_the_messages_and_keep_the_limits(
    sizes, messages_max, preferred, cuts
):
    cutter, limits, cut = BlockCutter(), BatchLimits(messages_max, preferred), []

    for number, size in enumerate(sizes):
        before = cutter.pending
        batches, pending = cutter.ordered(b"%d" % number, size, limits)
        assert len(batches) < 3
        assert pending == bool(cutter.pending)
        if len(batches) == 2:
            assert not pending
            assert batches[1] == (b"%d" % number,)
            assert before
        cut += batches
        if number in cuts and pending:
            cut.append(cutter.cut())
    if last := cutter.cut():
        cut.append(last)

    assert [message for batch in cut for message in batch] == [
        b"%d" % number for number in range(len(sizes))
    ]
    for batch in cut:
        assert 1 <= len(batch) <= messages_max
        assert len(batch) == 1 or sum(sizes[int(message)] for message in batch) <= preferred
