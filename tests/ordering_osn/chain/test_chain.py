"""The core of a chain: the contract's rows about records, and the metadata of blocks."""

import pytest

from ordering_osn.chain.actions import Cause, Ignore, Refuse
from ordering_osn.chain.blocks import consenter_of, header_hash, is_config
from ordering_osn.chain.chain import Chain
from ordering_osn.chain.records import (
    Connect,
    Regular,
    RegularKind,
    TimeToCut,
    Unparseable,
    decode,
    encode,
)
from ordering_osn.chain.state import state_from
from ordering_osn.protos import KafkaMessage
from tests.ordering_osn.helpers.cores import (
    Stepped,
    config,
    creation,
    genesis,
    made,
    metadata,
    normal,
    payload_data,
    rules,
    sealed,
    sized,
    update,
)


def causes(actions):
    return [action.counted_as for action in actions]


# -- records ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "record",
    [
        Regular(b"payload", 3, RegularKind.CONFIG, 7),
        Regular(b"", 0, RegularKind.UNKNOWN),
        TimeToCut(0),
        TimeToCut(2**64 - 1),
        Connect(),
    ],
)
def test_a_record_reads_back_as_it_was_written(record):
    assert decode(encode(record)) == record


@pytest.mark.parametrize(
    "raw",
    [
        None,
        b"",
        b"\xff",
        b"no record",
        KafkaMessage(regular={"class": 3}).SerializeToString(),
        KafkaMessage(regular={"class": -1}).SerializeToString(),
    ],
)
def test_an_unparseable_record_is_counted_and_skipped(raw):
    with pytest.raises(Unparseable):
        decode(raw)
    stepped = Stepped(rules(messages_max=1))

    assert causes(stepped.step(raw)) == [Cause.UNPARSEABLE]

    stepped.normal("a")
    assert stepped.named == [["a"]]
    assert metadata(stepped.writes[0])[0] == 2, "it has a position like any other"


def test_k12_a_connect_is_ignored():
    stepped = Stepped()

    assert stepped.step(Connect()) == (Ignore("a CONNECT record", Cause.CONNECT),)
    assert stepped.chain.wanted_cut is None


# -- section 2: metadata ----------------------------------------------------------------------


def test_k6_the_metadata_of_the_last_block_are_where_a_chain_starts_again():
    stepped = Stepped(rules(messages_max=1), position=4, last_original=2, last_resubmitted_config=4)
    stepped.normal("a", original=3)
    block = sealed(stepped.writes[0])

    state = state_from([block, genesis()])

    assert (state.position.number, state.last_original, state.last_resubmitted_config) == (5, 3, 4)
    assert state.position.cursor == "cursor 5"
    assert state.height == 2
    assert state.previous_hash == header_hash(block.header)


def test_k6_a_genesis_block_has_position_minus_three():
    state = state_from([genesis()])

    assert (state.position.number, state.last_original, state.last_resubmitted_config) == (-3, 0, 0)
    assert state.height == 1
    assert Chain("chain-a", rules(), state).ingress_open


def test_a_chain_without_blocks_does_not_start():
    with pytest.raises(ValueError, match="genesis block"):
        state_from([])


def test_nothing_cut_advances_the_last_original_in_memory():
    stepped = Stepped(position=5)
    stepped.normal("a", original=4)

    assert not stepped.writes
    assert causes(stepped.normal("again", original=4)) == [Cause.COPY]
    stepped.step(TimeToCut(1))
    assert metadata(stepped.writes[0]) == (8, 4, 0)


def test_a_block_that_ends_with_the_message_carries_its_position_and_its_original():
    stepped = Stepped(rules(messages_max=2), position=5)
    stepped.normal("a")
    stepped.normal("b", original=4)

    assert stepped.named == [["a", "b"]]
    assert metadata(stepped.writes[0]) == (7, 4, 0)


def test_k15_a_block_that_the_message_overflows_carries_the_position_before_it():
    stepped = Stepped(rules(messages_max=2, bytes_preferred=1000))
    for name, size in (("a", 600), ("b", 600), ("c", 300)):
        stepped.normal(name, envelope=sized(name, size))

    assert stepped.named == [["a"], ["b", "c"]]
    assert [metadata(write)[0] for write in stepped.writes] == [1, 3]


def test_the_position_before_an_overflow_counts_records_that_were_not_ordered():
    stepped = Stepped(rules(bytes_preferred=1000))
    stepped.normal("a", envelope=sized("a", 600))
    stepped.step(b"no record")
    stepped.normal("b", envelope=sized("b", 600))

    assert metadata(stepped.writes[0])[0] == 2


def test_a_copy_that_overflows_a_block_is_found_when_it_comes_again():
    """Fabric's: the last original does not advance, and another node's copy is ordered again."""
    stepped = Stepped(rules(bytes_preferred=1000), position=5, last_original=2)
    stepped.normal("a", envelope=sized("a", 600))
    stepped.normal("b", original=4, envelope=sized("b", 600))

    assert causes(stepped.normal("b", original=4, envelope=sized("b", 601))) == [Cause.COPY]
    stepped.step(TimeToCut(2))

    assert stepped.named == [["a"], ["b"]]
    assert [metadata(write) for write in stepped.writes] == [(6, 2, 0), (9, 4, 0)]


def test_k19_two_blocks_carry_the_old_and_the_new_position_and_original():
    stepped = Stepped(rules(bytes_preferred=1000), position=5, last_original=2)
    stepped.normal("a", envelope=sized("a", 600))
    stepped.normal("B", original=4, envelope=sized("B", 1001))

    assert stepped.named == [["a"], ["B"]]
    assert [metadata(write) for write in stepped.writes] == [(6, 2, 0), (7, 4, 0)]


def test_k20_a_config_behind_pending_messages_makes_two_blocks():
    stepped = Stepped(position=5, last_original=2)
    stepped.normal("a")
    stepped.config("c", original=4)

    assert stepped.named == [["a"], ["config 1"]]
    assert [metadata(write) for write in stepped.writes] == [(6, 2, 0), (7, 4, 4)]
    assert [write.config for write in stepped.writes] == [False, True]


def test_k17_a_config_stands_alone_in_its_block():
    stepped = Stepped()
    stepped.config("c", messages_max=1)
    stepped.normal("a")

    assert stepped.named == [["config 1"], ["a"]]
    assert metadata(stepped.writes[0]) == (1, 0, 0)
    assert [is_config(write.block) for write in stepped.writes] == [True, False]


def test_a_block_cut_by_time_keeps_the_config_that_was_posted_again():
    """Fabric's: it is written as 0, and a node that starts there opens its ingress too early."""
    stepped = Stepped(rules(sequence=1))
    stepped.normal("a")
    stepped.config("c", seq=0)
    assert not stepped.chain.ingress_open
    stepped.step(TimeToCut(1))

    assert metadata(stepped.writes[0]) == (3, 0, 2)
    again = Chain("chain-a", rules(sequence=1), state_from([sealed(stepped.writes[0]), genesis()]))
    assert not again.ingress_open


def test_the_metadata_hold_the_cursor_of_the_record_that_they_name():
    stepped = Stepped(rules(bytes_preferred=1000))
    stepped.normal("a")
    stepped.normal("B", envelope=sized("B", 2000))

    assert [consenter_of(sealed(write)).cursor for write in stepped.writes] == [
        b"cursor 1",
        b"cursor 2",
    ]


@pytest.mark.parametrize(
    ("last_original", "resubmitted", "expected"),
    [(0, 0, True), (3, 0, True), (3, 3, True), (4, 3, True), (2, 3, False), (0, 1, False)],
)
def test_ingress_is_closed_at_start_iff_a_config_is_on_its_way(
    last_original, resubmitted, expected
):
    cursors = {"last_original": last_original, "last_resubmitted_config": resubmitted}
    assert Stepped(position=9, **cursors).chain.ingress_open is expected


# -- section 3: time-to-cut -------------------------------------------------------------------


def test_k7_k8_something_pending_wants_a_cut_until_it_is_read_and_cuts_the_next_block():
    stepped = Stepped(last_original=1, position=3)
    stepped.normal("a")

    assert stepped.chain.wanted_cut == (1, 4)
    stepped.step(TimeToCut(stepped.chain.wanted_cut[0]))

    assert stepped.named == [["a"]]
    assert stepped.chain.wanted_cut is None
    assert stepped.chain.height == 2
    assert metadata(stepped.writes[0]) == (5, 1, 0)


@pytest.mark.parametrize(
    ("row", "block", "pending", "cause"),
    [
        ("K9 nothing pending", 1, False, Cause.CUT_EMPTY),
        ("K10 larger than expected", 2, True, Cause.CUT_FUTURE),
        ("K10 forged, far ahead", 2**64 - 1, True, Cause.CUT_FUTURE),
        ("K10 larger, nothing pending", 2, False, Cause.CUT_FUTURE),
        ("K11 stale", 0, True, Cause.CUT_STALE),
        ("K11 stale, nothing pending", 0, False, Cause.CUT_STALE),
    ],
)
def test_a_time_to_cut_of_no_use_is_counted_and_the_chain_goes_on(row, block, pending, cause):
    """Fabric's K9 and K10 end the loop: one forged record stops every node."""
    stepped = Stepped(rules(messages_max=2))
    if pending:
        stepped.normal("a")
    wanted = stepped.chain.wanted_cut

    assert causes(stepped.step(TimeToCut(block))) == [cause], row

    assert stepped.chain.height == 1
    assert stepped.chain.wanted_cut == wanted
    stepped.normal("b")
    stepped.step(TimeToCut(1))
    assert stepped.named == [["a", "b"] if pending else ["b"]]


def test_the_second_time_to_cut_of_a_block_is_stale():
    stepped = Stepped()
    stepped.normal("a")
    stepped.step(TimeToCut(1))
    stepped.normal("b")

    assert causes(stepped.step(TimeToCut(1))) == [Cause.CUT_STALE]
    assert stepped.chain.pending == 1


def test_the_timer_does_not_start_again_with_later_messages():
    stepped = Stepped()
    wanted = []
    for name in "abc":
        stepped.normal(name)
        wanted.append(stepped.chain.wanted_cut)

    assert wanted == [(1, 1)] * 3


def test_the_timer_starts_again_where_an_overflow_leaves_the_message_pending():
    stepped = Stepped(rules(bytes_preferred=1000))
    stepped.normal("a", envelope=sized("a", 600))
    stepped.normal("b", envelope=sized("b", 600))

    assert stepped.chain.wanted_cut == (2, 2)


def test_the_timer_stops_with_a_config_and_starts_anew_behind_it():
    stepped = Stepped()
    stepped.normal("a")
    stepped.config("c")
    assert stepped.chain.wanted_cut is None
    stepped.normal("b")

    assert stepped.chain.wanted_cut == (3, 3)


def test_k18_a_cut_stays_wanted_while_its_post_fails():
    """Fabric's timer is cleared before the send, and a lone transaction can wait for ever."""
    stepped = Stepped()
    stepped.normal("a")
    for _ in range(3):
        stepped.step(Connect())

    assert stepped.chain.wanted_cut == (1, 1)
    assert not stepped.writes


# -- section 4: regular records ---------------------------------------------------------------


@pytest.mark.parametrize("envelope", [b"", b"\xff\xff", normal("a")[:-3], made("a", b"")[:20]])
def test_k13_a_damaged_envelope_is_counted_and_the_chain_goes_on(envelope):
    stepped = Stepped(rules(messages_max=1))

    actions = stepped.step(Regular(envelope, 0, RegularKind.NORMAL))

    assert causes(actions) == [Cause.MALFORMED]
    assert isinstance(actions[0], Refuse)
    stepped.normal("b")
    assert stepped.named == [["b"]]


def test_k14_a_record_without_a_class_waits_and_is_cut():
    stepped = Stepped(rules(messages_max=2))
    stepped.normal("a", kind=RegularKind.UNKNOWN)
    assert not stepped.writes
    stepped.normal("b", kind=RegularKind.UNKNOWN)

    assert stepped.named == [["a", "b"]]
    assert metadata(stepped.writes[0]) == (2, 0, 0)


K16 = {
    "InvalidConfigEnv": (config(1, update("bad")), Cause.INVALID),
    "InvalidOrdererTxEnv": (creation(update("bad")), Cause.INVALID),
    "InvalidNormalEnv": (normal("bad"), Cause.INVALID),
    "ConfigUpdateEnv": (update("c"), Cause.MISPLACED),
}


@pytest.mark.parametrize("row", K16)
def test_k16_an_invalid_record_without_a_class_is_dropped(row):
    envelope, cause = K16[row]
    refused = [b"bad", payload_data(update("bad"))]
    stepped = Stepped(rules(messages_max=1, refuses=refused))

    assert causes(stepped.step(Regular(envelope, 0, RegularKind.UNKNOWN))) == [cause]
    assert not stepped.writes
    assert not stepped.chain.pending
