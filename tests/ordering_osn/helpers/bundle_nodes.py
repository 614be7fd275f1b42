"""Bundles at real nodes on a log in memory: four chains, their sets, clients, and all checks."""

import asyncio
import shutil
import threading
from collections import defaultdict
from graphlib import TopologicalSorter
from itertools import combinations, pairwise

from multicast.drivers.protocol import AppendFailed
from multicast.errors import AppendUnknown
from ordering_osn.api.channels import FateKind
from ordering_osn.chain.blocks import consenter_of
from ordering_osn.chain.bundles.bundle import encode_bundle, make_bundle
from ordering_osn.chain.bundles.metadata import check_whole, read_block_bundles
from tests.ordering_osn.helpers import configs
from tests.ordering_osn.helpers.small import (
    Faulty,
    blocks,
    chains_plan,
    log_of,
    quick,
    transaction,
    until_alike,
)

A, B, C, D = CHAINS = ("chain-a", "chain-b", "chain-c", "chain-d")
SETS = [(A, B), (C, D), (B, C), (A, B, C), CHAINS]
FOUR = chains_plan(*CHAINS, spanning=SETS)
PATIENCE_S = 60.0  # stops a hang, no more


def quick_chains(*names, timeout="30ms", count=10):
    """Make the genesis blocks of these chains, or of all four."""
    return [quick(name, timeout=timeout, max_message_count=count) for name in names or CHAINS]


def bundle_for(*chains, signer=None, expiry=0):
    parts = {chain: transaction(chain) for chain in chains}
    return make_bundle(parts, signer=signer or configs.org_user(), expiry=expiry)


class Clients:
    """Clients of nodes, on one event loop in a thread, as at a server; a context manager.

    `ask` begins a request and gives its future; the other calls wait for the answers.
    """

    def __enter__(self):
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        return self

    def __exit__(self, *_):
        asyncio.run_coroutine_threadsafe(self._cancel(), self._loop).result(PATIENCE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        self._loop.close()

    async def _cancel(self):
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def ask(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def submit_raw(self, node, *raws):
        futures = [self.ask(node.submit_bundle(raw)) for raw in raws]
        return [future.result(PATIENCE_S) for future in futures]

    def submit(self, node, *made):
        return self.submit_raw(node, *map(encode_bundle, made))

    def accepted(self, node, *made):
        answers = self.submit(node, *made)
        assert [(answer.status, answer.info) for answer in answers] == [(200, "")] * len(made)

    def broadcast(self, node, *envelopes):
        """Submit transactions of single chains; all must be accepted."""
        futures = [self.ask(node.submit(envelope)) for envelope in envelopes]
        answers = [future.result(PATIENCE_S) for future in futures]
        assert [status for status, _ in answers] == [200] * len(answers), answers

    def fates(self, node, *made):
        """Give the fates once they are final."""
        futures = [self.ask(node.bundle_status(each.id, PATIENCE_S)) for each in made]
        return [future.result(2 * PATIENCE_S) for future in futures]

    def committed(self, node, *made):
        """Wait until the bundles are committed at a node, in the blocks that the fates say."""
        for each, fate in zip(made, self.fates(node, *made), strict=True):
            assert fate.kind is FateKind.COMMITTED, fate
            assert set(fate.places) == set(each.chains)
            for part in each.parts:
                block, index = fate.places[part.chain]
                assert blocks(node, part.chain)[block].data.data[index] == part.envelope


class Silent(Faulty):
    """A driver that stores postings, and never says so while `silent` is set."""

    silent = False

    def _append(self, append):
        if self.silent:
            append.store()
        else:
            super()._append(append)


class Closed(Faulty):
    """A driver for which one partition takes no postings while `closed` names it."""

    closed = None

    def _append(self, append):
        if append.partition == self.closed:
            append.settle(AppendFailed(AppendUnknown("too few replicas are in sync")))
        else:
            super()._append(append)


def killed_and_started(osn, name):
    """Start a node again from what its folder held while it ran, without an idle checkpoint."""
    folder, copy = osn.folder / name, osn.folder / f"{name}.copy"
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("rest.*"))
    osn.stop(name)
    shutil.rmtree(folder)
    copy.rename(folder)
    return osn.running(name)


def stopped_and_started(osn, name):
    """Stop a node, so that it saves its idle checkpoints, and start it again."""
    osn.stop(name)
    return osn.running(name)


def parts_of(node, chain):
    """Give (metadata, envelope) of each part of a bundle in a chain's blocks, in their order."""
    return [
        (part, block.data.data[part.index])
        for block in blocks(node, chain)[1:]
        for part in read_block_bundles(consenter_of(block).bundles).parts
    ]


def log_end(osn, *chains):
    at = log_of(osn, *chains)
    return osn.small.log.last_stable_offsets([at])[at]


def check_rows(*nodes, chains=CHAINS):
    """M1 all or none, M2 order, M3 agreement, M4 at most once. Gives the IDs that stand."""
    for chain in chains:
        until_alike(*nodes, chain=chain)
        # What nodes have in common beside header and data: where they stand, and their bundles.
        first, *others = [
            [consenter_of(block).SerializeToString() for block in blocks(node, chain)[1:]]
            for node in nodes
        ]
        for other in others:
            assert other == first
    stands, sequences = defaultdict(dict), {}
    for chain in chains:
        found = parts_of(nodes[0], chain)
        sequences[chain] = [part.bundle_id for part, _ in found]
        assert len(sequences[chain]) == len(set(sequences[chain])), "a bundle stands twice"
        for part, envelope in found:
            stands[part.bundle_id][chain] = (part, envelope)
    for parts in stands.values():
        check_whole(parts)
    for one, other in combinations(chains, 2):
        common = set(sequences[one]) & set(sequences[other])
        assert [each for each in sequences[one] if each in common] == [
            each for each in sequences[other] if each in common
        ]
    after = defaultdict(set)
    for sequence in sequences.values():
        for before, then in pairwise(sequence):
            after[then].add(before)
    list(TopologicalSorter(after).static_order())  # raises for a cycle
    return set(stands)
