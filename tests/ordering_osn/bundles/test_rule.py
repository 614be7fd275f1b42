"""Each clause of the rule by which a bundle counts, by itself."""

import pytest

from ordering_osn.chain.bundles.bundle import encode_bundle
from ordering_osn.chain.bundles.log_records import (
    BundleRecord,
    ConfigMarker,
    encode_bundle_record,
)
from ordering_osn.chain.bundles.rule import (
    BundleRule,
    BundleVoid,
    IgnoredAs,
    MarkerTaken,
    RecordIgnored,
    VoidReason,
)
from ordering_osn.chain.bundles.wire_format import message_field, numbers_field
from ordering_osn.chain.records import Connect, Regular, RegularKind, TimeToCut, encode
from tests.ordering_osn.helpers.bundles import AB, Log, bundle, bundle_record, envelope, marker

ABC = ("chain-a", "chain-b", "chain-c")


def ignored(outcome):
    assert isinstance(outcome, RecordIgnored)
    return outcome.counted_as


# -- markers ---------------------------------------------------------------------------------------


def test_no_bundle_counts_before_every_chain_has_a_marker():
    log = Log(ABC)
    record = bundle_record(bundle(ABC))

    assert log.fate(record) == "NO_MARKER chain-a"
    log.step(marker("chain-b"))
    log.step(marker("chain-a"))
    assert log.fate(record) == "NO_MARKER chain-c"
    log.step(marker("chain-c"))
    assert log.fate(record) == "COUNTS"


def test_a_bundle_admitted_under_an_older_config_of_any_chain_is_void():
    for chain in AB:
        log = Log()
        log.introduce(sequence=3)
        log.step(marker(chain, 4))
        assert log.fate(bundle_record(bundle(), 3, 3)) == f"STALE {chain}"


def test_a_bundle_admitted_under_a_config_that_no_marker_names_yet_is_void():
    for chain in AB:
        log = Log()
        log.introduce(sequence=3)
        stamps = [4 if name == chain else 3 for name in AB]
        assert log.fate(bundle_record(bundle(), *stamps)) == f"AHEAD {chain}"


def test_where_several_stamps_are_wrong_the_first_chain_is_named():
    log = Log()
    log.introduce(sequence=3)
    assert log.fate(bundle_record(bundle(), 9, 2)) == "AHEAD chain-a"
    assert log.fate(bundle_record(bundle(), 2, 9)) == "STALE chain-a"


def test_copies_of_a_marker_count_once():
    log = Log()
    taken = log.step(marker("chain-a", 3))
    assert taken == MarkerTaken(ConfigMarker("chain-a", 30, 3))
    before = log.rule.state

    assert ignored(log.step(marker("chain-a", 3))) is IgnoredAs.MARKER_COPY
    assert log.rule.state.markers == before.markers


def test_an_older_marker_never_takes_the_place_of_a_newer_one():
    log = Log()
    log.introduce(sequence=3)

    assert ignored(log.step(marker("chain-a", 2))) is IgnoredAs.MARKER_OLDER
    assert log.rule.marker("chain-a") == ConfigMarker("chain-a", 30, 3)
    assert log.fate(bundle_record(bundle(), 3, 3)) == "COUNTS"


@pytest.mark.parametrize(
    ("block", "sequence"), [(30, 4), (31, 3), (29, 3), (30, 2), (29, 4), (31, 2)]
)
def test_a_marker_that_contradicts_the_newest_one_changes_nothing(block, sequence):
    log = Log()
    log.introduce(sequence=3)

    contradicting = marker("chain-a", sequence, block=block)
    assert ignored(log.step(contradicting)) is IgnoredAs.MARKER_CONTRADICTS
    assert log.rule.marker("chain-a") == ConfigMarker("chain-a", 30, 3)


def test_a_marker_of_a_chain_outside_the_set_changes_nothing():
    log = Log()
    assert ignored(log.step(marker("chain-c"))) is IgnoredAs.MARKER_ELSEWHERE
    assert log.rule.state.markers == ()


def test_a_marker_that_nobody_can_read_changes_nothing():
    log = Log()
    assert ignored(log.step(marker("chain-a") + b"\0")) is IgnoredAs.MARKER_MALFORMED
    assert ignored(log.step(message_field(17, b""))) is IgnoredAs.MARKER_MALFORMED
    assert log.rule.state.markers == ()


# -- the window, and expiry ------------------------------------------------------------------------


def test_a_bundle_that_counted_does_not_count_again_under_any_stamps():
    log = Log()
    log.introduce(sequence=3)
    made = bundle()
    assert log.fate(bundle_record(made, 3, 3)) == "COUNTS"

    assert log.fate(bundle_record(made, 3, 3)) == "DUPLICATE"
    log.step(marker("chain-b", 4))
    assert log.fate(bundle_record(made, 3, 3)) == "DUPLICATE"
    assert log.fate(bundle_record(made, 3, 4)) == "DUPLICATE"


def test_a_void_bundle_does_not_enter_the_window_so_it_counts_with_new_stamps():
    log = Log()
    log.introduce(sequence=3)
    made = bundle()
    assert log.fate(bundle_record(made, 2, 3)) == "STALE chain-a"
    assert log.rule.state.window == ()

    assert log.fate(bundle_record(made, 3, 3)) == "COUNTS"
    assert log.rule.state.window == (made.id,)


def test_the_window_holds_the_newest_bundles_that_counted_and_no_more():
    log = Log(window_max=3)
    log.introduce()
    made = [bundle(nonce=number) for number in range(4)]
    for each in made[:3]:
        assert log.fate(bundle_record(each)) == "COUNTS"
    assert log.fate(bundle_record(made[0])) == "DUPLICATE"  # does not renew its place
    assert log.fate(bundle_record(made[3])) == "COUNTS"

    assert log.rule.state.window == tuple(each.id for each in made[1:])
    assert log.rule.state.counted == 4
    assert log.fate(bundle_record(made[1])) == "DUPLICATE"
    assert log.fate(bundle_record(made[0])) == "COUNTS"  # forgotten: an expiry prevents this


def test_a_bundle_counts_at_its_expiry_and_not_behind_it():
    log = Log()
    log.introduce()
    assert log.fate(bundle_record(bundle(expiry=100)), offset=100) == "COUNTS"
    assert log.fate(bundle_record(bundle(expiry=100, nonce=2)), offset=101) == "EXPIRED"
    assert log.fate(bundle_record(bundle(expiry=0, nonce=3))) == "COUNTS"


def test_an_expired_bundle_is_final_whatever_its_stamps_are():
    log = Log()
    assert log.fate(bundle_record(bundle(expiry=1), 7, 7), offset=2) == "EXPIRED"


def test_only_what_new_stamps_or_markers_can_change_is_posted_again():
    later = [reason for reason in VoidReason if reason.may_count_later]
    assert later == [VoidReason.NO_MARKER, VoidReason.STALE, VoidReason.AHEAD]


# -- what is in the wrong place, or cannot be read -------------------------------------------------


@pytest.mark.parametrize("chains", [("chain-a", "chain-c"), ABC, ("chain-b", "chain-c")])
def test_a_bundle_for_other_chains_than_those_of_the_log_is_void(chains):
    log = Log()
    log.introduce()
    assert log.fate(bundle_record(bundle(chains))) == "WRONG_CHAINS"
    assert log.rule.state.window == ()


def test_a_bundle_for_some_chains_of_the_log_is_void():
    log = Log(ABC)
    log.introduce()
    assert log.fate(bundle_record(bundle(AB))) == "WRONG_CHAINS"


@pytest.mark.parametrize("addressed_to", [("chain-a",), (*AB, "chain-c"), ()])
def test_a_record_that_is_not_addressed_to_the_whole_set_means_nothing(addressed_to):
    """Not all chains of the set read it, so it must not decide anything."""
    log = Log()
    log.introduce()
    record = bundle_record(bundle())

    assert ignored(log.step(record, addressed_to=addressed_to)) is IgnoredAs.NOT_FOR_ALL
    assert ignored(log.step(marker("chain-a", 5), addressed_to=addressed_to)) is (
        IgnoredAs.NOT_FOR_ALL
    )
    assert log.fate(record) == "COUNTS"


def test_the_order_in_which_the_addressees_are_named_does_not_matter():
    log = Log()
    log.introduce()
    assert log.fate(bundle_record(bundle()), addressed_to=frozenset(AB)) == "COUNTS"
    assert log.fate(bundle_record(bundle(nonce=2)), addressed_to=AB[::-1]) == "COUNTS"


def test_a_bundle_record_that_nobody_can_read_is_void_for_all():
    log = Log()
    log.introduce()
    record = bundle_record(bundle())
    made = encode_bundle(bundle())
    forged = [
        record[:-1],
        record + b"\0",
        record + record,
        message_field(16, b""),
        message_field(16, message_field(1, b"")),
        message_field(16, message_field(1, made)),  # no stamps
        message_field(16, message_field(1, made) + numbers_field(2, (0,))),
        message_field(16, message_field(1, made) + numbers_field(2, (0, 0, 0))),
        message_field(16, numbers_field(2, (0, 0)) + message_field(1, made)),  # another order
        message_field(16, message_field(1, made) + numbers_field(2, (0, 0)) + b"\x18\1"),
    ]
    for raw in forged:
        outcome = log.step(raw)
        assert isinstance(outcome, BundleVoid), raw
        assert (outcome.reason, outcome.bundle_id, outcome.chain) == (VoidReason.MALFORMED, b"", "")
        assert outcome.info
    assert log.rule.state.window == ()
    assert log.fate(record) == "COUNTS"


def test_other_records_of_the_log_mean_nothing():
    log = Log()
    log.introduce()
    state = log.rule.state
    legacy = Regular(envelope("chain-a+chain-b"), 0, RegularKind.NORMAL)
    others = [None, b"", b"\xff", encode(Connect()), encode(TimeToCut(3)), encode(legacy)]
    for raw in others:
        assert ignored(log.step(raw)) is IgnoredAs.OTHER
    after = log.rule.state
    assert (after.markers, after.window, after.counted) == (
        state.markers,
        state.window,
        state.counted,
    )
    assert after.offset_next == state.offset_next + len(others)


def test_records_go_in_once_and_in_order():
    log = Log()
    log.step(None, offset=7)
    with pytest.raises(AssertionError, match="in the order of their offsets"):
        log.step(None, offset=7)


def test_a_saved_state_is_a_copy():
    log = Log()
    log.introduce()
    state = log.rule.state
    log.fate(bundle_record(bundle()))
    assert state.window == ()
    assert BundleRule(state).state == state


def test_a_stamp_of_each_chain_is_needed():
    with pytest.raises(AssertionError, match="a stamp for each chain"):
        encode_bundle_record(BundleRecord(bundle(), (0,)))
