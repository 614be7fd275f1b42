"""Pruning keeps what a restart needs of bundles in the blocks that go."""

import json

import pytest

from ordering_osn.ledger.errors import LedgerDamaged
from ordering_osn.ledger.ledger import Ledger
from ordering_osn.ledger.windows import WINDOWS_FILE, ledger_sets, read_windows, save_windows
from tests.ordering_osn.helpers.bundles import bundle, bundle_record, marker
from tests.ordering_osn.helpers.cores import Stepped, genesis, rules, sealed

AB, ABC = ("chain-a", "chain-b"), ("chain-a", "chain-b", "chain-c")
BLOCKS = 30


@pytest.fixture
def ledger(tmp_path):
    """Blocks of one entry: a bundle of ABC in each sixth, of AB in other even ones."""
    stepped = Stepped(rules(messages_max=1))
    for chains in (AB, ABC):
        for chain in chains:
            stepped.step(marker(chain), log=chains)
    for number in range(1, BLOCKS):
        if number % 2:
            stepped.normal(f"t{number}")
        else:
            chains = AB if number % 6 else ABC
            stepped.step(bundle_record(bundle(chains, nonce=number)), log=chains)
    assert len(stepped.writes) == BLOCKS - 1
    with Ledger.open(tmp_path / "ledger", fsync="never") as ledger:
        for number, block in enumerate([genesis(), *map(sealed, stepped.writes)]):
            ledger.append(number, block.SerializeToString())
        yield ledger


def prune(ledger, below):
    save_windows(ledger, below)
    ledger.prune(below)


def test_the_states_are_the_same_after_prunings(ledger):
    whole = ledger_sets(ledger, BLOCKS - 1)
    assert [len(entry.places) for entry in whole] == [10, 4]
    for below in (1, 2, 7, 8, 8, 21, BLOCKS - 1):
        prune(ledger, below)
        assert ledger_sets(ledger, BLOCKS - 1) == whole


def test_a_pruning_that_ends_before_the_base_is_written_does_no_harm(ledger):
    prune(ledger, 9)
    whole = ledger_sets(ledger, BLOCKS - 1)
    save_windows(ledger, 19)
    assert ledger_sets(ledger, BLOCKS - 1) == whole


def test_a_ledger_without_the_file_is_refused_and_a_damaged_one_says_so(ledger):
    prune(ledger, 9)
    windows = ledger.folder / WINDOWS_FILE
    text = windows.read_text()
    windows.unlink()
    with pytest.raises(ValueError, match="the blocks hold 7 bundles of this set; 10 are needed"):
        ledger_sets(ledger, BLOCKS - 1)
    for damaged in (text[:-9], text.replace('"schema_version": 1', '"schema_version": 7')):
        windows.write_text(damaged)
        with pytest.raises(LedgerDamaged, match=WINDOWS_FILE):
            ledger_sets(ledger, BLOCKS - 1)


@pytest.mark.parametrize(
    ("chains", "places"),
    [
        (AB, [["00" * 31, 3, 0]]),  # not an ID
        (AB, [["00" * 32, "3", 0]]),
        (AB, [["00" * 32, 3, -1]]),
        (AB, [["00" * 32, 3.5, 0]]),
        (AB, [["00" * 32, True, 0]]),
        (AB, [["00" * 32, 3]]),
        (AB, [[5, 3, 0]]),
        (AB, {"00": 1}),
        (AB, 5),
        ("ab", []),
        ([1, 2], []),
        ([["a"]], []),
        (None, []),
        ({}, []),
    ],
)
def test_a_file_that_no_pruning_writes_is_damaged(tmp_path, chains, places):
    document = {"schema_version": 1, "sets": [{"chains": chains, "places": places}]}
    (tmp_path / WINDOWS_FILE).write_text(json.dumps(document))
    with pytest.raises(LedgerDamaged, match="not what a pruning wrote"):
        read_windows(tmp_path)
