"""The places of a block's entries: encoded as runs, and read in this one encoding only."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordering_osn.chain.entries import BadEntries, EntryPlace, encode_entries, read_entries
from ordering_osn.wire.multichain_pb2 import BlockEntries
from tests.ordering_osn.helpers.pki import assert_one_sentence

PLACES = st.lists(
    st.builds(
        EntryPlace, st.sampled_from(["a", "b", "a+b"]), st.integers(0, 4) | st.integers(0, 2**63)
    ),
    max_size=12,
)


def encoded(logs, *runs):
    return BlockEntries(
        logs=logs, runs=[{"log": log, "first": first, "count": count} for log, first, count in runs]
    ).SerializeToString()


@given(PLACES)
def test_places_are_read_back(places):
    assert read_entries(encode_entries(places), len(places)) == tuple(places)


def test_a_run_ends_where_the_log_changes_or_an_offset_is_left_out():
    places = [("a", 1), ("a", 2), ("b", 3), ("b", 4), ("a", 3), ("a", 5)]
    raw = encode_entries(EntryPlace(*place) for place in places)
    assert raw == encoded(["a", "b"], (0, 1, 2), (1, 3, 2), (0, 3, 1), (0, 5, 1))
    assert read_entries(raw, 6) == tuple(places)


@pytest.mark.parametrize(
    ("raw", "count", "why"),
    [
        (b"\xff", 0, "cannot be decoded"),
        (b"\x0a\x01\xff", 0, "cannot be decoded"),  # a log's name that is not UTF-8
        (encoded(["a"], (0, 1, 2)), 3, "the places of 2 entries; the block has 3"),
        (encoded(["a"], (0, 1, 2)), 1, "the places of 2 entries; the block has 1"),
        (b"", 1, "the places of 0 entries; the block has 1"),
        (encoded(["a"], (0, 0, 2**32 - 1)), 2, "the places of 4294967295 entries"),
        (encoded(["a"], (1, 1, 1)), 1, "by a number that is not in their list"),
        (encoded([], (0, 1, 1)), 1, "by a number that is not in their list"),
        (encoded(["a"], (0, 1, 1), (0, 2, 1)), 2, "another way"),  # one run as two
        (encoded(["a"], (0, 1, 1), (0, 7, 0)), 1, "another way"),  # an empty run
        (encoded(["a", "b"], (0, 1, 1)), 1, "another way"),  # a log of no entry
        (encoded(["a", "a"], (0, 1, 1), (1, 5, 1)), 2, "another way"),  # a log twice
        (encoded(["b", "a"], (1, 1, 1), (0, 1, 1)), 2, "another way"),  # in another order
        (encoded(["a"], (0, 1, 1)) + b"\x18\x01", 1, "another way"),  # an unknown field
    ],
)
def test_what_no_correct_node_writes_is_refused_in_one_sentence(raw, count, why):
    with pytest.raises(BadEntries, match=why) as refused:
        read_entries(raw, count)
    assert_one_sentence(str(refused.value))
