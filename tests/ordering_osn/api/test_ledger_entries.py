"""The entries of a ledger with their places: where a reader begins, and which blocks it skips."""

from types import SimpleNamespace

import pytest

from ordering_osn.api.multi.ledger_entries import LedgerEntries
from ordering_osn.chain.entries import EntryPlace
from ordering_osn.ledger.errors import Pruned
from ordering_osn.ledger.ledger import Ledger
from tests.ordering_osn.helpers.bundles import AB, bundle, bundle_record, marker
from tests.ordering_osn.helpers.cores import CHANNEL, Stepped, genesis, rules, sealed
from tests.ordering_osn.helpers.ledgers import real_block

SET = "+".join(AB)


@pytest.fixture
def ledger(tmp_path):
    """Blocks 1 to 5 with two entries each, the second of them a part of a bundle."""
    stepped = Stepped(rules(messages_max=2))
    for chain in AB:
        stepped.step(marker(chain), log=AB)
    for number in range(5):
        stepped.normal(f"t{number}")
        stepped.step(bundle_record(bundle(nonce=number)), log=AB)
    with Ledger.open(tmp_path / "ledger", fsync="never") as ledger:
        for number, block in enumerate([genesis(), *map(sealed, stepped.writes)]):
            ledger.append(number, block.SerializeToString())
        yield ledger


def entries_of(ledger):
    return LedgerEntries(SimpleNamespace(name=CHANNEL, ledger=ledger))


def rest(entries):
    got = []
    while (entry := entries.peek()) is not None:
        got.append(entry)
        entries.skip()
    return got


def below(offset):
    """Whether a place is passed: the tests' offsets grow from record to record of all logs."""
    return lambda place: place.offset < offset


def test_each_entry_has_its_place_its_envelope_and_its_bundle(ledger):
    got = rest(entries_of(ledger))
    assert [entry.place for entry in got] == [
        EntryPlace(log, offset)
        for offset, log in zip(range(3, 13), [CHANNEL, SET] * 5, strict=True)
    ]
    assert [(entry.block, entry.number) for entry in got] == [
        (block, number) for block in range(1, 6) for number in (0, 1)
    ]
    assert [entry.bundle is not None for entry in got] == [False, True] * 5
    assert [entry.bundle.bundle_id for entry in got[1::2]] == [
        bundle(nonce=number).id for number in range(5)
    ]


@pytest.mark.parametrize("offset", range(14))
def test_a_reader_begins_in_the_block_of_its_first_entry(ledger, offset):
    entries = entries_of(ledger)
    entries.seek(below(offset))
    got = rest(entries)
    # Of a block of which a part is passed, the reader gets all.
    assert [entry.place.offset for entry in got] == list(range(max(3, offset - 1 + offset % 2), 13))


def test_a_reader_whose_entries_may_be_pruned_is_refused_and_a_later_one_is_not(ledger):
    ledger.prune(3)  # whose first entry has offset 7
    for offset in (0, 7):
        with pytest.raises(Pruned, match="in blocks below 3"):
            entries_of(ledger).seek(below(offset))
    entries = entries_of(ledger)
    entries.seek(below(8))
    assert [entry.place.offset for entry in rest(entries)] == list(range(7, 13))


def test_blocks_that_say_no_places_are_passed_over(ledger):
    ledger.append(6, real_block(6))
    entries = entries_of(ledger)
    assert len(rest(entries)) == 10
    entries.seek(below(11))
    assert [entry.place.offset for entry in rest(entries)] == [11, 12]
