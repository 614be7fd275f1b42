"""States and blocks' metadata as bytes: read back equal, or refused with one sentence."""

from dataclasses import replace

import pytest

from ordering_osn.chain.bundles.log_records import ConfigMarker, marker_body
from ordering_osn.chain.bundles.metadata import (
    BadBundleMetadata,
    BlockBundles,
    SetHead,
    Torn,
    check_whole,
    encode_block_bundles,
    metadata_of,
    newest_places,
    read_block_bundles,
)
from ordering_osn.chain.bundles.rule import BUNDLE_WINDOW_MAX, RuleState
from ordering_osn.chain.bundles.saved import BadState, encode_state, read_bare_head, read_head
from ordering_osn.chain.bundles.wire_format import message_field, number_field
from tests.ordering_osn.helpers.bundles import AB, Log, bundle, bundle_record, envelope
from tests.ordering_osn.helpers.pki import assert_one_sentence

IDS = tuple(bytes((number,)) * 32 for number in range(5))
MARKERS = (ConfigMarker("chain-a", 9, 2), ConfigMarker("chain-b", 0, 0))
STATES = [
    RuleState(AB, 0, window_max=3),
    RuleState(AB, 2**63 - 1, MARKERS[1:], window_max=3),
    RuleState(AB, 7, MARKERS, 2, IDS[:2], 3),
    RuleState(AB, 77, MARKERS, 5, IDS[2:], 3),
]


@pytest.mark.parametrize("state", STATES)
def test_a_head_is_completed_from_the_blocks(state):
    head = encode_state(state)
    assert read_head(head, IDS[: state.counted], window_max=3) == state


def test_a_head_needs_as_many_bundles_as_the_window_had():
    head = encode_state(STATES[3])
    assert read_head(head, IDS[2:], window_max=3) == STATES[3]
    with pytest.raises(BadState, match="the blocks hold 2 bundles of this set; 3 are needed"):
        read_head(head, IDS[3:], window_max=3)
    for window, text in ((IDS[:1] * 3, "an ID twice"), ((*IDS[:2], b"short"), "of a wrong length")):
        with pytest.raises(BadState, match=text):
            read_head(head, window, window_max=3)


def test_the_state_of_a_real_log_is_read_back_and_the_head_is_small():
    log = Log(window_max=BUNDLE_WINDOW_MAX)
    log.introduce()
    for number in range(20):
        assert log.fate(bundle_record(bundle(nonce=number))) == "COUNTS"
    assert len(encode_state(log.rule.head)) < 60
    assert read_head(encode_state(log.rule.head), log.rule.state.window) == log.rule.state


def changed(**what):
    return encode_state(replace(STATES[2], **what))


FULL = tuple(f"{number:03}" + "c" * 246 for number in range(64))
WHOLE = encode_state(STATES[2])


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"", "version 0, not 1"),
        (b"\xff", "cannot be decoded"),
        (b"\x08\2" + WHOLE[2:], "version 2, not 1"),
        (WHOLE + b"\x40\1", "not in its only encoding"),
        (WHOLE + b"\x30\3", "not in its only encoding"),
        (changed(window_max=4), "a window of 4, not 3"),
        (changed(chains=("chain-b", "chain-a")), "not those of a set"),
        (changed(chains=("chain-a", "chain-a")), "not those of a set"),
        (changed(chains=("chain-a",)), "not those of a set"),
        (changed(chains=("chain-a", "")), "not those of a set"),
        (changed(chains=("chain-a", "d" * 250)), "a chain's name of a wrong length"),
        (changed(chains=("chain-a", "chain-c")), "not those of its chains"),
        (changed(markers=MARKERS[::-1]), "not those of its chains"),
        (changed(markers=MARKERS[:1] * 2), "not those of its chains"),
        (changed(markers=MARKERS[:1]), "although a chain has no marker"),
        (changed(offset_next=1), "2 bundles counted before offset 1"),
        (changed(offset_next=2**63), "before offset 9223372036854775808"),
        (WHOLE[:2] + b"".join(message_field(2, b"c") for _ in range(65)), "a window of 0, not 3"),
        (WHOLE + message_field(4, b"") * 65, "the marker's chain has 0 bytes"),
        (bytes(66_000), "more than 65536"),
    ],
)
def test_other_bytes_are_no_state(raw, text):
    with pytest.raises(BadState, match=text) as caught:
        read_bare_head(raw, window_max=3)
    assert_one_sentence(caught.value)


def test_the_largest_head_is_within_the_limit():
    markers = tuple(ConfigMarker(chain, 2**64 - 1, 2**64 - 1) for chain in FULL)
    state = RuleState(FULL, 2**63 - 1, markers, 0, (), 3)
    assert read_bare_head(encode_state(state), window_max=3) == state


# -- blocks' metadata ------------------------------------------------------------------------------

ABC = ("chain-a", "chain-b", "chain-c")
ABC_STATE = RuleState(ABC, 9, window_max=3)


def test_a_blocks_metadata_is_read_back():
    made = bundle(ABC)
    parts = (metadata_of(made, "chain-b", 0), metadata_of(bundle(AB, nonce=2), "chain-b", 7))
    heads = (SetHead(AB, encode_state(STATES[0]), 6), SetHead(ABC, encode_state(ABC_STATE)))
    both = BlockBundles(parts, heads)
    assert read_block_bundles(encode_block_bundles(both)) == both
    assert read_block_bundles(b"") == BlockBundles()
    assert parts[0].siblings == (made.parts[0].digest, made.parts[2].digest)


PART = metadata_of(bundle(ABC), "chain-b", 3)
HEAD = message_field(1, encode_state(STATES[0]))


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (replace(PART, index=1 << 32), "only encoding"),
        (replace(PART, bundle_id=b"x"), "has not 32 bytes"),
        (replace(PART, siblings=(b"x", IDS[0])), "has not 32 bytes"),
        (replace(PART, siblings=IDS[:1]), "3 chains and 1 siblings"),
        (replace(PART, siblings=IDS[:3]), "3 chains and 3 siblings"),
        (replace(PART, chains=("chain-a",), siblings=()), "1 chains and 0 siblings"),
        (replace(PART, chains=ABC[::-1]), "not sorted"),
        (replace(PART, chains=("", *ABC[1:])), "wrong length"),
        (replace(PART, chains=(*ABC[:2], "d" * 250)), "wrong length"),
    ],
)
def test_a_part_that_cannot_be_is_refused(part, text):
    with pytest.raises(BadBundleMetadata, match=text) as caught:
        read_block_bundles(encode_block_bundles(BlockBundles((part,))))
    assert_one_sentence(caught.value)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (encode_block_bundles(BlockBundles((PART, PART))), "not sorted by index"),
        (b"\x1a\0", "only encoding"),
        (message_field(2, HEAD) + encode_block_bundles(BlockBundles((PART,))), "only encoding"),
        (message_field(1, number_field(9, 1)), "only encoding"),
        (message_field(1, message_field(2, bytes(32)) + message_field(3, b"c") * 65), "names 65"),
        (b"\x08\1", "only encoding"),
        (message_field(2, HEAD) * 2, "sets in a block's metadata are not sorted"),
        (message_field(2, HEAD + b"\x18\1"), "only encoding"),
        (message_field(2, HEAD + b"\x10\0"), "only encoding"),
        (message_field(2, message_field(1, b"\xff")), "cannot be decoded"),
    ],
)
def test_other_bytes_are_no_metadata(raw, text):
    with pytest.raises(BadBundleMetadata, match=text):
        read_block_bundles(raw)


def chain_of_blocks(*blocks):
    """Each block: the numbers of its bundles of AB, and the link. Gives a reader of metadata."""
    made = {number: bundle(AB, nonce=number) for number in range(20)}
    metadata = [BlockBundles()]
    for numbers, previous in blocks:
        parts = [metadata_of(made[number], "chain-a", 2 * i) for i, number in enumerate(numbers)]
        parts += [metadata_of(bundle(ABC), "chain-a", 2 * len(parts))]
        heads = (SetHead(AB, encode_state(STATES[0]), previous),)
        metadata.append(BlockBundles(tuple(parts), heads))
    asked_for = []

    def read(number):
        asked_for.append(number)
        return metadata[number]

    return read, asked_for, [made[number].id for number in range(20)]


def newest(chains, block, count, read):
    return tuple(place.bundle_id for place in newest_places(chains, block, count, read))


def test_the_windows_ids_are_read_along_the_links_and_no_other_block():
    read, asked_for, ids = chain_of_blocks(
        ([1, 2], 0), ([], 1), ([], 1), ([3], 1), ([4, 5], 4), ([], 5)
    )
    assert newest(AB, 6, 9, read) == tuple(ids[1:6])
    assert asked_for == [6, 5, 4, 1]
    del asked_for[:]
    assert newest(AB, 6, 3, read) == tuple(ids[3:6])
    assert asked_for == [6, 5, 4]
    assert newest(AB, 5, 1, read) == (ids[5],)
    assert newest(AB, 3, 2, read) == tuple(ids[1:3])
    assert newest(AB, 6, 0, read) == ()


def test_links_that_do_not_lead_back_are_refused():
    read, _, _ = chain_of_blocks(([1], 0), ([2], 2))
    with pytest.raises(BadBundleMetadata, match="block 2 names block 2 as an earlier one"):
        newest(AB, 2, 3, read)


def test_a_link_to_a_block_without_the_set_is_refused():
    read, _, _ = chain_of_blocks(([1], 0), ([2], 1))
    with pytest.raises(BadBundleMetadata, match="block 2 has no head of the set chain-a"):
        newest(ABC, 2, 3, read)


# -- is anything torn? -----------------------------------------------------------------------------


def in_blocks(made):
    return {
        part.chain: (metadata_of(made, part.chain, index), part.envelope)
        for index, part in enumerate(made.parts)
    }


ALL, TWO = in_blocks(bundle(ABC)), in_blocks(bundle(AB))
OTHERS = in_blocks(bundle(AB, nonce=2))
TORN = {
    "a part is missing": (
        {chain: ALL[chain] for chain in ("chain-a", "chain-c")},
        r"names chain-a\+chain-b\+chain-c; missing: chain-b",
    ),
    "a part too many": ({**TWO, "chain-c": TWO["chain-a"]}, "missing: no chain"),
    "a part in a chain that it is not for": (
        {"chain-c": TWO["chain-a"]},
        r"chain chain-c holds a part of a bundle for chain-a\+chain-b",
    ),
    "parts of two bundles": ({**TWO, "chain-b": OTHERS["chain-b"]}, "parts of two bundles"),
    "another envelope than the sibling says": (
        {**TWO, "chain-b": (TWO["chain-b"][0], envelope("chain-b", b"other"))},
        "chain chain-b holds another envelope than chain chain-a says",
    ),
}


@pytest.mark.parametrize("what", TORN)
def test_what_is_torn_is_a_witness_and_what_stands_in_all_its_chains_is_whole(what):
    check_whole(ALL)
    parts, text = TORN[what]
    with pytest.raises(Torn, match=text):
        check_whole(parts)


def test_a_marker_with_another_field_is_refused_inside_a_state():
    odd = message_field(4, marker_body(MARKERS[0]) + number_field(4, 1))
    with pytest.raises(BadState, match="not in its only encoding"):
        read_bare_head(WHOLE[:2] + odd, window_max=3)
