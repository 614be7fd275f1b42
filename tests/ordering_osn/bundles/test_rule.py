"""Clauses of the rule by which a bundle counts; `test_rule_properties` asks for the whole rule."""

import pytest

from ordering_osn.chain.bundles.bundle import encode_bundle
from ordering_osn.chain.bundles.log_records import BundleRecord, ConfigMarker, encode_bundle_record
from ordering_osn.chain.bundles.rule import BundleRule, BundleVoid, RecordIgnored, VoidReason
from ordering_osn.chain.bundles.wire_format import message_field, numbers_field
from ordering_osn.chain.records import Connect, Regular, RegularKind, TimeToCut, encode
from tests.ordering_osn.helpers.bundles import AB, Log, bundle, bundle_record, envelope, marker

ABC = ("chain-a", "chain-b", "chain-c")


def ignored(outcome):
    assert isinstance(outcome, RecordIgnored)
    return outcome.info


@pytest.fixture
def log():
    """A log of two chains with their markers at config 0."""
    made = Log()
    made.introduce()
    return made


# -- markers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("block", "sequence"), [(30, 4), (31, 3), (29, 3), (30, 2), (29, 4), (31, 2)]
)
def test_a_marker_that_contradicts_the_newest_one_changes_nothing(block, sequence):
    log = Log()
    log.introduce(sequence=3)

    contradicting = marker("chain-a", sequence, block=block)
    assert ", after ConfigMarker(" in ignored(log.step(contradicting))
    assert log.rule.marker("chain-a") == ConfigMarker("chain-a", 30, 3)


def test_a_marker_of_a_chain_outside_the_set_changes_nothing():
    log = Log()
    assert "'chain-c', which is not in the set" in ignored(log.step(marker("chain-c")))
    assert log.rule.state.markers == ()


def test_a_marker_that_nobody_can_read_changes_nothing():
    log = Log()
    assert ignored(log.step(marker("chain-a") + b"\0"))
    assert ignored(log.step(message_field(17, b"")))
    assert log.rule.state.markers == ()


def test_a_bundle_that_counted_does_not_count_again_under_any_stamps():
    log = Log()
    log.introduce(sequence=3)
    made = bundle()
    assert log.fate(bundle_record(made, 3, 3)) == "COUNTS"

    assert log.fate(bundle_record(made, 3, 3)) == "DUPLICATE"
    log.step(marker("chain-b", 4))
    assert log.fate(bundle_record(made, 3, 3)) == "DUPLICATE"
    assert log.fate(bundle_record(made, 3, 4)) == "DUPLICATE"


# -- the window, and expiry ------------------------------------------------------------------------


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


def test_an_expired_bundle_is_final_whatever_its_stamps_are():
    log = Log()
    assert log.fate(bundle_record(bundle(expiry=1), 7, 7), offset=2) == "EXPIRED"


def test_only_what_new_stamps_or_markers_can_change_is_posted_again():
    later = [reason for reason in VoidReason if reason.may_count_later]
    assert later == [VoidReason.NO_MARKER, VoidReason.STALE, VoidReason.AHEAD]


# -- what is in the wrong place, or cannot be read -------------------------------------------------


@pytest.mark.parametrize("chains", [("chain-a", "chain-c"), ABC, ("chain-b", "chain-c")])
def test_a_bundle_for_other_chains_than_those_of_the_log_is_void(log, chains):
    assert log.fate(bundle_record(bundle(chains))) == "WRONG_CHAINS"
    assert log.rule.state.window == ()


def test_a_bundle_for_some_chains_of_the_log_is_void():
    log = Log(ABC)
    log.introduce()
    assert log.fate(bundle_record(bundle(AB))) == "WRONG_CHAINS"


@pytest.mark.parametrize("addressed_to", [("chain-a",), (*AB, "chain-c"), ()])
def test_a_record_that_is_not_addressed_to_the_whole_set_means_nothing(log, addressed_to):
    """Not all chains of the set read it, so it must not decide anything."""
    record = bundle_record(bundle())

    for raw in (record, marker("chain-a", 5)):
        assert ignored(log.step(raw, addressed_to=addressed_to)).startswith("a record for ")
    assert log.fate(record) == "COUNTS"


def test_the_order_in_which_the_addressees_are_named_does_not_matter(log):
    assert log.fate(bundle_record(bundle()), addressed_to=frozenset(AB)) == "COUNTS"
    assert log.fate(bundle_record(bundle(nonce=2)), addressed_to=AB[::-1]) == "COUNTS"


def test_a_bundle_record_that_nobody_can_read_is_void_for_all(log):
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


def test_other_records_of_the_log_mean_nothing(log):
    state = log.rule.state
    legacy = Regular(envelope("chain-a+chain-b"), 0, RegularKind.NORMAL)
    others = [None, b"", b"\xff", encode(Connect()), encode(TimeToCut(3)), encode(legacy)]
    for raw in others:
        assert ignored(log.step(raw)) == "neither a bundle nor a config marker"
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


def test_a_saved_state_is_a_copy(log):
    state = log.rule.state
    log.fate(bundle_record(bundle()))
    assert state.window == ()
    assert BundleRule(state).state == state


def test_a_stamp_of_each_chain_is_needed():
    with pytest.raises(AssertionError, match="a stamp for each chain"):
        encode_bundle_record(BundleRecord(bundle(), (0,)))
