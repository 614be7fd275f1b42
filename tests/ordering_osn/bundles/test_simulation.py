"""Nodes of several chains over the logs of several sets, with crashes, configs and lost appends."""

import hashlib
from collections import Counter, defaultdict
from functools import cache
from graphlib import CycleError, TopologicalSorter
from itertools import combinations, pairwise

import pytest

from ordering_osn.chain.bundles.metadata import (
    BadBundleMetadata,
    Torn,
    check_whole,
    read_block_bundles,
)
from ordering_osn.chain.bundles.rule import VoidReason
from ordering_osn.chain.bundles.saved import BadState
from ordering_osn.protos import DecodeError
from ordering_osn.wire import multichain_pb2 as stubs
from tests.ordering_osn.bundles.world import CHAINS, SETS, WINDOW, World, admits

pytestmark = pytest.mark.slow
SEEDS = range(40)
TURNS = 1200


def some(seeds, count):
    """Give the first of the seeds to every run of the tests, the others to the campaign."""
    return [
        pytest.param(seed, marks=pytest.mark.campaign if seed >= count else ()) for seed in seeds
    ]


@cache
def ran(seed, bug=""):
    """Give a world at its end; what changes it makes one of its own."""
    return anew(seed, bug)


def anew(seed, bug=""):
    world = World(seed, bug)
    world.run(TURNS)
    world.settle()
    return world


def parts_of(blocks):
    """(metadata, envelope) of every part in a chain, in the chain's order."""
    return [
        (part, block.entries[part.index])
        for block in blocks
        for part in read_block_bundles(block.metadata).parts
    ]


def counted(log, chains):
    """The bundles of a log that count, by a rule of its own that reads with protobuf's library.

    Gives ID, submitter and stamps of each, in order.
    """
    newest, order = {}, []
    for offset, (raw, to) in enumerate(log):
        try:
            record = stubs.LogRecord.FromString(raw or b"")
        except DecodeError:
            continue
        if tuple(to) != chains:
            continue
        if record.HasField("config_marker"):
            marker = record.config_marker
            numbers = (marker.config_block, marker.sequence)
            before = newest.get(marker.chain, (-1, -1))
            if all(new > old for new, old in zip(numbers, before, strict=True)):
                newest[marker.chain] = numbers
        elif record.HasField("bundle"):
            content = stubs.BundleContent.FromString(record.bundle.bundle.content)
            bundle_id = hashlib.sha256(record.bundle.bundle.content).digest()
            stamps = list(record.bundle.config_sequences)
            if (
                tuple(part.chain for part in content.parts) == chains
                and bundle_id not in [each[0] for each in order[-WINDOW:]]
                and (not content.expiry or offset <= content.expiry)
                and stamps == [newest[chain][1] if chain in newest else None for chain in chains]
            ):
                order.append((bundle_id, int(content.submitter.split()[1]), stamps))
    return order


def check_nodes_agree(world):
    for chain in CHAINS:
        first, *others = [node.replicas[chain].blocks for node in world.nodes]
        for other in others:
            assert first == other, f"two nodes differ in {chain}"


def sequence_of(blocks):
    """(ID, how often before) of a chain's bundles: after a window, one may stand there again."""
    seen = Counter()
    for metadata, envelope in parts_of(blocks):
        yield (metadata.bundle_id, seen[metadata.bundle_id]), metadata, envelope
        seen[metadata.bundle_id] += 1


def check_all_or_none(world):
    stands = defaultdict(dict)
    for chain, blocks in world.nodes[0].blocks().items():
        for name, metadata, envelope in sequence_of(blocks):
            stands[name][chain] = (metadata, envelope)
    for parts in stands.values():
        check_whole(parts)


def check_what_counts(world):
    """In each chain stand exactly the bundles that count, in their logs' orders."""
    for chains in SETS:
        expected = counted(world.logs[chains], chains)
        for chain in chains:
            blocks = world.nodes[0].replicas[chain].blocks
            stand = [part.bundle_id for part, _ in parts_of(blocks) if part.chains == chains]
            assert stand == [each[0] for each in expected], f"{chain} and the log of {chains}"
        for _, submitter, stamps in expected:
            assert all(map(admits, chains, stamps, [submitter] * len(chains)))


def check_order(world):
    sequences = {
        chain: [name for name, _, _ in sequence_of(blocks)]
        for chain, blocks in world.nodes[0].blocks().items()
    }
    for one, other in combinations(CHAINS, 2):
        common = set(sequences[one]) & set(sequences[other])
        assert [each for each in sequences[one] if each in common] == [
            each for each in sequences[other] if each in common
        ], f"{one} and {other} order their common bundles differently"
    after = defaultdict(set)
    for sequence in sequences.values():
        for before, then in pairwise(sequence):
            after[then].add(before)
    list(TopologicalSorter(after).static_order())


def check_all(world):
    check_nodes_agree(world)
    check_all_or_none(world)
    check_what_counts(world)
    check_order(world)


@pytest.mark.parametrize("seed", some(SEEDS, 12))
def test_whatever_happens_a_bundle_stands_in_all_its_chains_or_in_none(seed):
    check_all(ran(seed))


@pytest.mark.parametrize("seed", some(range(6), 2))
def test_when_the_faults_end_what_is_admitted_counts(seed):
    world = anew(seed)
    sequences = {chain: world.nodes[0].replicas[chain].sequence for chain in CHAINS}
    fresh = []
    for chains in SETS:
        submitter = next(
            each for each in range(7) if all(admits(c, sequences[c], each) for c in chains)
        )
        fresh.append(world.new_bundle(chains, submitter))
        world.nodes[seed % 3].take_in(fresh[-1])
    world.settle()

    check_all(world)
    for made in fresh:
        for chain in made.chains:
            blocks = world.nodes[0].replicas[chain].blocks
            assert made.id in [metadata.bundle_id for metadata, _ in parts_of(blocks)]
    assert not any(node.intake for node in world.nodes)


def test_the_schedules_meet_every_reason_and_every_fault():
    stats = Counter()
    for seed in range(8):
        stats += ran(seed).stats
    events = ("counts", "crash", "lost", "sent again", "refused", "posted again", "settled")
    plans = ("new set", "undeclared")
    assert {name for name in (*VoidReason, *events, *plans, "gives up") if not stats[name]} == set()


@pytest.mark.parametrize(
    "bug",
    [
        "each chain judges by its own config",
        "a restart forgets the state",
        "a head is older than its block",
        "a new set has no head",
    ],
)
def test_a_wrong_node_is_noticed(bug):
    for seed in SEEDS:
        try:
            check_all(ran(seed, bug))
        except (AssertionError, BadBundleMetadata, BadState, CycleError, Torn):
            return
    pytest.fail(f"nobody noticed that {bug}")


def test_a_seed_repeats_its_schedule():
    assert anew(3).order == ran(3).order
