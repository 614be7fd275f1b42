"""Nodes of several chains over the logs of several sets, with crashes, configs and lost appends."""

from collections import Counter, defaultdict
from graphlib import CycleError, TopologicalSorter
from itertools import combinations, pairwise

import pytest

from ordering_osn.chain.bundles.metadata import (
    BadBundleMetadata,
    Torn,
    check_whole,
    read_block_bundles,
)
from ordering_osn.chain.bundles.rule import BundleCounts, BundleRule, RuleState, VoidReason
from ordering_osn.chain.bundles.saved import BadState
from tests.ordering_osn.bundles.world import CHAINS, SETS, WINDOW, World, admits

pytestmark = pytest.mark.slow
SEEDS = range(40)
TURNS = 1200


def ran(seed, bug=""):
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


def judged(world):
    """Each log's fates by a rule that reads the whole log at once."""
    for chains in SETS:
        rule = BundleRule(RuleState(chains, 0, window_max=WINDOW))
        for offset, raw in enumerate(world.logs[chains]):
            yield chains, rule.step(offset, raw, chains)


def check_nodes_agree(world):
    for chain in CHAINS:
        first, *others = [node.replicas[chain].blocks for node in world.nodes]
        for other in others:
            assert first == other, f"two nodes differ in {chain}"


def check_all_or_none(world):
    stands = defaultdict(dict)
    for chain, blocks in world.nodes[0].blocks().items():
        for metadata, envelope in parts_of(blocks):
            assert chain not in stands[metadata.bundle_id], "a part stands twice in a chain"
            stands[metadata.bundle_id][chain] = (metadata, envelope)
    for parts in stands.values():
        check_whole(parts)
    counted = {out.bundle.id for _, out in judged(world) if isinstance(out, BundleCounts)}
    assert stands.keys() == counted


def check_order(world):
    sequences = {
        chain: [metadata.bundle_id for metadata, _ in parts_of(blocks)]
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


def check_rights(world):
    """What counts was admitted by the newest marked config of each of its chains."""
    newest = {chains: {} for chains in SETS}
    for chains, outcome in judged(world):
        if isinstance(outcome, BundleCounts):
            submitter = int(outcome.bundle.submitter.split()[1])
            for chain in chains:
                assert admits(chain, newest[chains][chain], submitter)
        elif hasattr(outcome, "marker"):
            newest[chains][outcome.marker.chain] = outcome.marker.sequence


def check_all(world):
    check_nodes_agree(world)
    check_all_or_none(world)
    check_order(world)
    check_rights(world)


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_happens_a_bundle_stands_in_all_its_chains_or_in_none(seed):
    check_all(ran(seed))


@pytest.mark.parametrize("seed", range(6))
def test_when_the_faults_end_what_is_admitted_counts(seed):
    world = ran(seed)
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
    reasons = set(VoidReason) - {VoidReason.MALFORMED, VoidReason.WRONG_CHAINS}
    events = ("counts", "crash", "lost", "sent again", "refused", "posted again", "settled")
    assert {name for name in (*reasons, *events, "gives up") if not stats[name]} == set()


@pytest.mark.parametrize(
    "bug",
    [
        "each chain judges by its own config",
        "a restart forgets the state",
        "a head is older than its block",
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
    assert ran(3).order == ran(3).order
