"""What a node does with the bundles that it took in."""

import pytest

from ordering_osn.chain.bundles.intake import BundleIntake, IntakeFull
from ordering_osn.chain.bundles.rule import BundleCounts, BundleVoid, RecordIgnored, VoidReason
from tests.ordering_osn.helpers.bundles import bundle

MADE = bundle()
LATER = [reason for reason in VoidReason if reason.may_count_later]


def void(reason, made=MADE, chain="chain-b"):
    return BundleVoid(made.id, reason, chain, "")


def posted(intake=None):
    intake = intake or BundleIntake(posts_max=2)
    intake.take_in(MADE)
    intake.posted(MADE.id)
    return intake


def settles(intake, outcome):
    """Whether an outcome asks nothing more of the node, and the bundle is not open behind it."""
    return intake.read(outcome) is None and intake.get(MADE.id) is None


def test_a_bundle_that_counts_is_settled_once():
    intake = posted()
    assert settles(intake, BundleCounts(MADE))
    assert intake.read(BundleCounts(MADE)) is None
    assert len(intake) == 0


@pytest.mark.parametrize("reason", [VoidReason.DUPLICATE, VoidReason.EXPIRED])
def test_what_cannot_count_later_is_settled_for_good(reason):
    """A duplicate counted before: by another node's record, or before this node took it in."""
    assert settles(posted(), void(reason))


@pytest.mark.parametrize("reason", LATER)
def test_what_may_count_later_is_judged_again_so_often_and_no_more(reason):
    intake = posted()
    assert intake.read(void(reason)) == MADE
    intake.posted(MADE.id)
    assert settles(intake, void(reason))


def test_a_second_copy_does_not_ask_for_a_second_post():
    intake = posted()
    assert intake.read(void(VoidReason.STALE)) == MADE
    assert intake.read(void(VoidReason.STALE)) is None
    assert intake.get(MADE.id) == MADE
    assert settles(intake, BundleCounts(MADE))


def test_records_of_other_nodes_settle_what_is_open_here():
    intake = BundleIntake()
    intake.take_in(MADE)
    assert intake.read(void(VoidReason.STALE)) is None
    assert settles(intake, BundleCounts(MADE))
    intake.posted(MADE.id)  # too late
    assert len(intake) == 0


def test_what_was_refused_is_forgotten_and_can_be_taken_in_again():
    intake = posted()
    intake.forget(MADE.id)
    intake.forget(MADE.id)
    assert intake.read(void(VoidReason.STALE)) is None
    intake.take_in(MADE)
    assert intake.get(MADE.id) == MADE


def test_records_of_others_ask_nothing():
    other = bundle(nonce=2)
    intake = posted()
    assert intake.read(BundleCounts(other)) is None
    assert intake.read(void(VoidReason.STALE, other)) is None
    assert intake.read(BundleVoid(b"", VoidReason.MALFORMED, "", "")) is None
    assert intake.read(RecordIgnored("")) is None
    assert len(intake) == 1


def test_the_open_bundles_are_bounded_by_their_bytes_and_room_comes_back():
    sizes = [len(MADE.content) + sum(len(part.envelope) for part in MADE.parts)] * 2
    intake = BundleIntake(bytes_max=sum(sizes))
    intake.take_in(MADE)
    intake.take_in(bundle(nonce=2))
    with pytest.raises(IntakeFull, match="holds 2 bundles") as caught:
        intake.take_in(bundle(nonce=3))
    assert caught.value.retriable
    intake.read(BundleCounts(MADE))
    intake.take_in(bundle(nonce=3))
