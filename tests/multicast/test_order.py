"""The order record's bytes, and the acceptance rule under everything that a log can do to it."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.collector import Append, Collector, CollectorLimits, SaveCheckpoint
from multicast.errors import ProtocolViolation, UnknownVersion
from multicast.order import (
    OFFSET_MAX,
    OrderRecord,
    OrderStream,
    ParentNext,
    RecordKind,
    Run,
    UndecodableRecord,
    Void,
    anchor,
    coalesce,
    decode,
    digest_of,
    encode,
)
from tests.helpers.plans import chain, from_start

offsets = st.integers(0, OFFSET_MAX)
records = st.builds(
    OrderRecord,
    kind=st.sampled_from(RecordKind),
    previous=st.binary(min_size=16, max_size=16),
    parent_next=st.builds(ParentNext, offsets, offsets),
    runs=st.lists(
        st.builds(
            lambda log, first, length: Run(log, first, first + length),
            st.integers(0, 2**32 - 1),
            st.integers(0, OFFSET_MAX - 2**32),
            st.integers(1, 2**32 - 1),
        ),
        max_size=20,
    ).map(tuple),
    writer=st.integers(0, 2**64 - 1),
    time_ms=st.integers(0, 2**64 - 1),
)


def own(previous: bytes, *runs: Run, writer: int = 0) -> bytes:
    return encode(OrderRecord(RecordKind.OWN, previous, ParentNext(0, 0), runs, writer))


def stream(name: str = "K1") -> OrderStream:
    plan = chain()
    return OrderStream(plan, name, from_start(plan))


@given(records)
def test_what_is_encoded_is_decoded_to_the_same_record(record):
    assert decode(encode(record)) == record


@given(st.binary(max_size=200))
def test_any_bytes_decode_to_what_encodes_to_them_or_are_refused(raw):
    try:
        record = decode(raw)
    except UndecodableRecord:
        return
    assert encode(record) == raw


@given(records, st.data())
def test_a_record_cut_short_or_made_longer_is_refused(record, data):
    raw = encode(record)
    cut = data.draw(st.integers(0, len(raw) - 1))
    for wrong in (raw[:cut], raw + b"\0"):
        with pytest.raises(UndecodableRecord):
            decode(wrong)


def test_the_layout_is_the_one_in_the_protocol_document():
    record = OrderRecord(RecordKind.OWN, bytes(range(16)), ParentNext(5, 9), (Run(7, 1, 4),), 2, 3)
    assert encode(record).hex() == (
        "544f"  # magic "TO"
        "01"  # version
        "000102030405060708090a0b0c0d0e0f"  # previous
        "01"  # kind: own
        "0000000000000002"  # writer
        "0000000000000003"  # time_ms
        "0000000000000005"  # parent_next: records
        "0000000000000009"  # parent_next: offset
        "0001"  # runs
        "00000007"  # log
        "0000000000000001"  # first
        "00000003"  # length
    )


def test_a_record_that_extends_the_anchor_counts_and_the_next_extends_it():
    read = stream()
    first = own(anchor(read.plan, "K1"), Run(0, 0, 3))
    assert isinstance(read.read(0, first), OrderRecord)
    assert isinstance(read.read(1, own(digest_of(first), Run(1, 0, 2), Run(0, 3, 4))), OrderRecord)
    assert read.state.positions == {0: 4, 1: 2}


def test_of_two_records_that_extend_the_same_state_the_first_counts():
    read = stream()
    begin = anchor(read.plan, "K1")
    assert isinstance(read.read(0, own(begin, Run(0, 0, 3), writer=1)), OrderRecord)
    assert read.read(1, own(begin, Run(0, 0, 2), writer=2)) is Void.STALE
    assert read.state.positions[0] == 3


def test_what_a_loser_pipelined_behind_its_record_is_void_too():
    read = stream()
    begin = anchor(read.plan, "K1")
    lost = own(begin, Run(0, 0, 2), writer=2)
    behind = own(digest_of(lost), Run(0, 2, 3), writer=2)
    read.read(0, own(begin, Run(0, 0, 3), writer=1))
    assert [read.read(1, lost), read.read(2, behind)] == [Void.STALE, Void.STALE]


def test_a_doubled_record_counts_once():
    read = stream()
    raw = own(anchor(read.plan, "K1"), Run(0, 0, 3))
    assert isinstance(read.read(0, raw), OrderRecord)
    assert read.read(1, raw) is Void.STALE


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (OrderRecord(RecordKind.OWN, b"", ParentNext(0, 0), (Run(0, 1, 2),)), "a gap"),
        (
            OrderRecord(RecordKind.OWN, b"", ParentNext(0, 0), (Run(2, 0, 1),)),
            "a log of another bag",
        ),
        (OrderRecord(RecordKind.OWN, b"", ParentNext(0, 0), ()), "an own record without runs"),
        (
            OrderRecord(RecordKind.OWN, b"", ParentNext(1, 1), (Run(0, 0, 1),)),
            "own, with a parent moved",
        ),
        (
            OrderRecord(RecordKind.PARENT, b"", ParentNext(1, 1), (Run(0, 0, 1),)),
            "a root has no parent",
        ),
        (
            OrderRecord(RecordKind.FREEZE, b"", ParentNext(0, 0), (Run(0, 0, 1),)),
            "a freeze with runs",
        ),
        (
            OrderRecord(RecordKind.OWN, b"", ParentNext(0, 0), (Run(0, 0, 2), Run(0, 1, 3))),
            "an overlap in one record",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_record_with_the_right_previous_and_impossible_content_is_void(record, why):
    read = stream()
    raw = encode(OrderRecord(record.kind, read.state.digest, record.parent_next, record.runs))
    assert read.read(0, raw) is Void.IMPOSSIBLE, why
    assert isinstance(read.read(1, own(read.state.digest, Run(0, 0, 1))), OrderRecord)


def test_a_child_may_not_order_what_its_parent_decides_nor_the_reverse():
    read = stream("K2")
    begin = read.state.digest
    assert read.read(0, own(begin, Run(1, 0, 1))) is Void.IMPOSSIBLE
    relay = OrderRecord(RecordKind.PARENT, begin, ParentNext(1, 1), (Run(2, 0, 1),))
    assert read.read(1, encode(relay)) is Void.IMPOSSIBLE
    relay = OrderRecord(RecordKind.PARENT, begin, ParentNext(1, 1), (Run(1, 0, 1),))
    assert isinstance(read.read(2, encode(relay)), OrderRecord)


def test_nothing_counts_after_a_freeze():
    read = stream()
    freeze = encode(OrderRecord(RecordKind.FREEZE, read.state.digest, ParentNext(0, 0), ()))
    assert isinstance(read.read(0, freeze), OrderRecord)
    assert read.read(1, own(digest_of(freeze), Run(0, 0, 1))) is Void.FROZEN


def test_foreign_bytes_are_void_and_change_nothing():
    read = stream()
    before = read.state.copy()
    for offset, raw in enumerate([b"", None, b"x" * 500, b"TO"]):
        assert read.read(offset, raw) is Void.FOREIGN
    assert read.state == before


def test_a_newer_version_that_extends_the_stream_stops_the_reader():
    read = stream()
    newer = bytearray(own(read.state.digest, Run(0, 0, 1)))
    newer[2] = 2
    stale = bytearray(own(b"\1" * 16, Run(0, 0, 1)))
    stale[2] = 2
    assert read.read(0, bytes(stale)) is Void.STALE
    with pytest.raises(UnknownVersion, match="version 2"):
        read.read(1, bytes(newer))


def test_records_of_another_epoch_or_collector_never_count():
    read = stream()
    other = anchor(chain(epoch=2), "K1"), anchor(read.plan, "K2")
    for offset, begin in enumerate(other):
        assert read.read(offset, own(begin, Run(0, 0, 1))) is Void.STALE


def test_a_reader_from_a_checkpoint_goes_on_like_one_from_the_start():
    read = stream()
    raws = []
    for offset in range(5):
        raws.append(own(read.state.digest, Run(0, offset, offset + 1)))
        read.read(offset, raws[-1])
        if offset == 2:
            point = read.checkpoint()
    late = OrderStream(read.plan, "K1", from_start(read.plan), point)
    assert late.read(2, raws[2]) is None
    for offset in (3, 4):
        assert isinstance(late.read(offset, raws[offset]), OrderRecord)
    assert late.state == read.state


def test_a_checkpoint_that_the_log_belies_is_a_named_error():
    read = stream()
    raw = own(read.state.digest, Run(0, 0, 1))
    read.read(0, raw)
    late = OrderStream(read.plan, "K1", from_start(read.plan), read.checkpoint())
    with pytest.raises(ProtocolViolation, match="checkpoint"):
        late.read(0, raw + b"!")


@given(st.lists(st.builds(Run, st.integers(0, 2), st.integers(0, 9), st.integers(10, 19))))
def test_coalescing_keeps_the_order_of_every_single_offset(runs):
    def spelled(some):
        return [(run.log, offset) for run in some for offset in range(run.first, run.next)]

    assert spelled(coalesce(runs)) == spelled(runs)


@settings(max_examples=150)
@given(seed=st.integers(0, 2**32), writers=st.integers(1, 3), pending=st.integers(1, 4))
def test_competing_writers_with_lost_doubled_and_late_appends_make_one_gapless_order(
    seed, writers, pending
):
    # Init: instances of one root, each knows another part of the log and of the ends.
    rng = random.Random(seed)
    log: list[bytes] = []
    ends = {0: 0, 1: 0}
    limits = CollectorLimits(
        run_length_max=rng.randint(1, 4), pending_max=pending, checkpoint_every=3
    )

    def instance() -> Collector:
        born = Collector(stream(), None, writer=rng.getrandbits(64), limits=limits)
        born.own_end(len(log))
        return born

    def read(core: Collector, most: int) -> None:
        for offset in range(core.own.offset_next, min(len(log), core.own.offset_next + most)):
            core.own_read(offset, log[offset])

    cores = [instance() for _ in range(writers)]
    late: list[bytes] = []

    # Test: a faulty phase, then one without faults.
    for _ in range(rng.randint(10, 120)):
        who = rng.randrange(writers)
        match rng.randrange(6):
            case 0:
                ends[rng.randrange(2)] += rng.randint(1, 5)
            case 1:
                for number, end in ends.items():
                    cores[who].log_end(number, rng.randint(0, end))
            case 2:
                for action in cores[who].step(0):
                    if isinstance(action, Append):
                        fate = rng.random()
                        if fate < 0.5:
                            log.append(action.raw)
                        if 0.4 < fate < 0.75:
                            late.append(action.raw)
                        if fate > 0.7:
                            cores[who].append_failed()
            case 3:
                read(cores[who], rng.randint(1, 5))
            case 4:
                if late:
                    log.append(late.pop(rng.randrange(len(late))))
            case 5:
                if rng.random() < 0.3:
                    cores[who] = instance()
    survivor = instance()
    for number, end in ends.items():
        survivor.log_end(number, end)
    while survivor.own.offset_next < len(log) or survivor.lag:
        read(survivor, len(log))
        log += [action.raw for action in survivor.step(0) if isinstance(action, Append)]

    # Check: a reader of the raw log finds every offset once, in order; all instances agree.
    judge = stream()
    seen: dict[int, int] = {0: 0, 1: 0}
    for offset, raw in enumerate(log):
        judged = judge.read(offset, raw)
        if isinstance(judged, OrderRecord):
            for run in judged.runs:
                assert run.first == seen[run.log]
                seen[run.log] = run.next
    assert seen == ends
    for core in cores:
        read(core, len(log))
        assert core.own.state == judge.state


def test_a_stream_with_few_records_has_a_checkpoint_soon_and_then_every_six_hours():
    core = Collector(stream(), None, writer=1)
    core.own_end(0)
    minute_ms = 60 * 1000
    saved = []
    for minute in range(0, 24 * 60, 5):
        core.log_end(0, minute + 1)
        for now_ms in (minute * minute_ms, minute * minute_ms + 1):
            for action in core.step(now_ms):
                if isinstance(action, Append):
                    core.own_read(core.own.offset_next, action.raw)
                elif isinstance(action, SaveCheckpoint):
                    saved.append((minute, action.checkpoint.offset))
    assert [minute for minute, _ in saved] == [10, 375, 740, 1105]  # of a record every five minutes
    assert [offset for _, offset in saved] == [minute // 5 for minute, _ in saved]
