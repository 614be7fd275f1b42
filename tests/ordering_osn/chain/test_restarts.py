"""Nodes that step one log, post to it and crash anywhere: every node writes the same blocks.

The stream has the records of the chain's own log and of the logs of two sets, with bundles.
"""

import dataclasses
import itertools
import random
from functools import cache

import pytest

from ordering_osn.chain.actions import Repost, SetOutcome, Write
from ordering_osn.chain.blocks import check_next, consenter_of, last_config_of
from ordering_osn.chain.bundles.bundle import make_bundle
from ordering_osn.chain.bundles.log_records import encode_config_marker
from ordering_osn.chain.bundles.metadata import read_block_bundles
from ordering_osn.chain.bundles.restart import restored_sets
from ordering_osn.chain.bundles.rule import BundleCounts
from ordering_osn.chain.chain import Chain, RecordPlace
from ordering_osn.chain.entries import read_entries
from ordering_osn.chain.records import Connect, Regular, RegularKind, TimeToCut, encode
from ordering_osn.chain.state import StreamPosition, state_from
from ordering_osn.protos import KafkaMessage
from tests.ordering_osn.helpers.bundles import Scribe, bundle_record, marker
from tests.ordering_osn.helpers.cores import (
    config,
    genesis,
    made,
    names,
    normal,
    payload_data,
    rules,
    sealed,
    sized,
    update,
)

OWN, SET = ("chain-a",), ("chain-a", "chain-b")
SETS = (SET, ("chain-a", "chain-c"))
WINDOW = 6
BUNDLE_WINDOW = 3
CHANGES = [{}, {"messages_max": 1}, {"messages_max": 4}, {"bytes_preferred": 700}]
START = rules(messages_max=3, bytes_preferred=800)
SEEDS = (*range(30), *(pytest.param(seed, marks=pytest.mark.campaign) for seed in range(30, 150)))
of_each_seed = pytest.mark.parametrize("seed", SEEDS)


class Node:
    """A chain's core and its blocks; a crash leaves only the blocks."""

    def __init__(self, log, start=START):
        self._log = log
        self.blocks = [genesis()]
        self.rules = {0: start}  # as a node reads them from its newest config block
        self.outcomes = {}  # of the set's log, by offset
        self.restart()

    def state(self):
        state = state_from(reversed(self.blocks), window_max=WINDOW)
        sets = restored_sets(len(self.blocks) - 1, self.bundles, window_max=BUNDLE_WINDOW)
        state.sets = tuple(entry.state for entry in sets)
        state.bundle_window_max = BUNDLE_WINDOW
        return state

    def core(self, state):
        return Chain("chain-a", self.rules[state.last_config], state, window_max=WINDOW)

    def bundles(self, number):
        """What the metadata of a block say of bundles."""
        return read_block_bundles(consenter_of(self.blocks[number]).bundles)

    def restart(self):
        state = self.state()
        self.chain = self.core(state)
        self.position = max(state.position.number, 0)
        self.owed = []  # reposts that are not stored yet

    def flush(self):
        self._log += [(raw, OWN, OWN) for raw in self.owed]
        self.owed.clear()

    @property
    def behind(self):
        return self.position < len(self._log)

    def step(self, *, crash_at=None):
        """Step a record and carry out its actions; crash before action `crash_at`."""
        raw, log, to = self._log[self.position]
        place = RecordPlace(log, self.position, to)  # offsets only have to grow in each log
        self.position += 1
        position = StreamPosition(self.position, f"cursor {self.position}")
        for number, action in enumerate(self.chain.step(position, raw, place)):
            if number == crash_at:
                break
            if isinstance(action, Write):
                self.flush()
                block = sealed(action)
                check_next(block, self.blocks[-1].header)
                self.blocks.append(block)
                if action.config:
                    self.rules[block.header.number] = self._after(action)
            elif isinstance(action, Repost):
                self.owed.append(action.raw)
            elif isinstance(action, SetOutcome):
                self.outcomes[place.offset] = action.outcome
        if crash_at is not None:
            self.restart()

    def _after(self, action):
        before = self.rules[last_config_of(self.blocks[-2])]
        return before.after(action.block.data.data[0])

    def post_cut(self):
        if self.chain.wanted_cut:
            self._log.append((encode(TimeToCut(self.chain.wanted_cut[0])), OWN, OWN))

    @property
    def looks(self):
        """What a shell sees after a step."""
        chain = self.chain
        return chain.height, chain.pending, chain.wanted_cut, chain.ingress_open

    @property
    def serialized(self):
        """Headers, data and metadata."""
        return [block.SerializeToString() for block in self.blocks]

    @property
    def ordered(self):
        """The name of each transaction, and whether it is a part of a bundle."""
        ordered = []
        for number, block in enumerate(self.blocks):
            parts = {part.index for part in self.bundles(number).parts}
            ordered += [(name, index in parts) for index, name in enumerate(names(block))]
        return ordered

    @property
    def alone(self):
        """The names of what is ordered and is no part of a bundle."""
        return [name for name, part in self.ordered if not part]

    @property
    def parts(self):
        """The bundle IDs and envelopes of the parts in the blocks, in order."""
        return [
            (part.bundle_id, block.data.data[part.index])
            for number, block in enumerate(self.blocks)
            for part in self.bundles(number).parts
        ]


FORGED = [
    (b"no record", False),
    (None, False),
    (encode(Connect()), False),
    (encode(TimeToCut(2**63)), False),
    (encode(Regular(b"no envelope", 0, RegularKind.NORMAL)), False),
    (encode(Regular(normal("forged"), 0, RegularKind.NORMAL, 2**62)), False),
    (encode(Regular(normal("forged"), 0, RegularKind.NORMAL, -1)), False),
    (encode(Regular(update("forged"), 0, RegularKind.NORMAL)), False),
    (encode(Regular(config(9, update("forged")), 9, RegularKind.CONFIG)), False),
    (encode(Regular(made("forged", b"", channel="chain-b"), 0, RegularKind.NORMAL)), False),
    (KafkaMessage(regular={"class": 9}).SerializeToString(), False),
    (encode(Regular(normal("forged"), 0, RegularKind.NORMAL)), True),
    (encode(TimeToCut(2)), True),
    (b"\x82\1\xff", True),
    (None, True),
]


class World:
    """A log, nodes that step it and clients that post to it; all choices follow from a seed."""

    def __init__(self, seed, *, nodes=3, moods=((), (), ()), old=0):
        self.log = []
        self.old = old  # clients send one of this many newest records again
        self.chance = random.Random(seed)
        self.nodes = [
            Node(self.log, dataclasses.replace(START, expired=frozenset(mood)))
            for mood in moods[:nodes]
        ]
        self.count = itertools.count()
        self.posted = []  # names of good transactions
        self.raws = []

    def post(self, raw, *, log=OWN, to=None):
        self.log.append((raw, log, to or log))
        self.raws.append((raw, log, to or log))

    def transaction(self, node):
        name = f"t{next(self.count)}"
        size = self.chance.choice([250, 450, 450, 900])
        seq = node.chain.rules.parameters.sequence - self.chance.randint(0, 1)
        self.post(encode(Regular(sized(name, size), max(0, seq), RegularKind.NORMAL)))
        self.posted.append(name)

    def marker(self, node):
        """A node's marker in a set's log, or one of the other chain, which is at config 0 or 1."""
        chains = self.chance.choice(SETS)
        own = encode_config_marker(node.chain.config_marker)
        both = [own, marker(chains[1], self.chance.randint(0, 1))]
        for raw in self.chance.sample(both, self.chance.randint(1, 2)):
            self.post(raw, log=chains)

    def bundle(self, node):
        """A bundle with an own part of any size, or one whose transaction stands alone, too."""
        name = f"b{next(self.count)}"
        if self.old and self.posted and self.chance.randint(0, 3) == 0:
            name = self.chance.choice(self.posted)
        chains = self.chance.choice(SETS)
        envelopes = {
            "chain-a": sized(name, self.chance.choice([250, 450, 900])),
            chains[1]: normal(name, channel=chains[1]),
        }
        scribe = Scribe()
        scribe._made = next(self.count)
        made_of = make_bundle(envelopes, signer=scribe)
        markers = [node.chain.marker(chains, chain) for chain in chains]
        stamps = [
            max(0, (0 if each is None else each.sequence) - (self.chance.randint(0, 5) == 0))
            for each in markers
        ]
        to = self.chance.choice([chains] * 9 + [OWN])
        self.post(bundle_record(made_of, *stamps), log=chains, to=to)

    def config(self, node):
        changes = self.chance.choice(CHANGES)
        seq = node.chain.rules.parameters.sequence
        of = update(f"c{next(self.count)}", **changes)
        self.post(encode(Regular(config(seq + 1, of), seq, RegularKind.CONFIG)))

    def act(self):
        node = self.chance.choice(self.nodes)
        what = self.chance.randint(0, 29)
        if what < 8:
            if node.behind:
                node.step()
        elif what < 11:
            self.transaction(node)
        elif what < 13:
            self.config(node)
        elif what < 15:
            node.post_cut()
        elif what == 15:
            node.flush()
        elif what == 16 and node.behind:
            node.step(crash_at=self.chance.randint(0, 2))
        elif what == 17:
            node.restart()
        elif what == 18:
            raw, shared = self.chance.choice(FORGED)
            self.log.append((raw, SET if shared else OWN, SET if shared else OWN))
        elif what == 19:
            self.marker(node)
        elif what < 28:
            self.bundle(node)
        elif self.raws and self.old:
            self.log.append(self.chance.choice(self.raws[-self.old :]))

    def run(self):
        for chains in self.chance.sample(SETS, self.chance.randint(0, 2)):
            for chain in chains:
                self.post(marker(chain), log=chains)
        for _ in range(self.chance.randint(0, 120)):
            self.act()
        while any(node.behind or node.owed or node.chain.wanted_cut for node in self.nodes):
            for node in self.nodes:
                while node.behind:
                    node.step()
                node.flush()
                node.post_cut()
            assert len(self.log) < 5000, "it never comes to rest"


def fresh(log, start=START):
    """A node that steps a whole log without a restart; its posts are dropped."""
    node = Node(list(log), start)
    for _ in range(len(log)):
        node.step()
    return node


@cache
def ran(seed):
    """A world in which clients send again, at its end; tests only look at it."""
    world = World(seed, old=20)
    world.run()
    return world


@of_each_seed
def test_every_node_writes_the_same_blocks_wherever_it_crashes(seed):
    world = ran(seed)

    first, *others = world.nodes
    for node in others:
        assert node.serialized == first.serialized
    assert fresh(world.log).serialized == first.serialized
    assert all(node.chain.ingress_open for node in world.nodes)


@of_each_seed
def test_every_good_transaction_is_ordered_once(seed):
    world = World(seed)
    world.run()

    ordered = [name for name in world.nodes[0].alone if name.startswith("t")]
    assert sorted(ordered) == sorted(world.posted)


@of_each_seed
def test_what_clients_send_again_is_ordered_once_within_the_window(seed):
    world = ran(seed)

    ordered = world.nodes[0].ordered
    names_ordered = [name for name, _ in ordered]
    assert {name for name in names_ordered if name.startswith("t")} == set(world.posted)
    for index, (name, part) in enumerate(ordered):
        near = names_ordered[max(0, index - WINDOW) : index]
        assert part or name not in near, near


@of_each_seed
def test_the_parts_in_the_blocks_are_those_of_the_bundles_that_count(seed):
    world = ran(seed)

    whole = fresh(world.log)
    counted = [
        outcome.bundle
        for _, outcome in sorted(whole.outcomes.items())
        if isinstance(outcome, BundleCounts)
    ]
    expected = [(each.id, each.parts[0].envelope) for each in counted]
    for node in world.nodes:
        assert node.parts == expected
        assert node.outcomes == {
            offset: whole.outcomes[offset] for offset in node.outcomes
        }  # also those of records that were read again


@of_each_seed
def test_a_block_says_of_each_entry_which_record_it_came_from(seed):
    world = ran(seed)

    for block in world.nodes[0].blocks[1:]:
        data = block.data.data
        places = read_entries(consenter_of(block).entries, len(data))
        for envelope, (log, offset) in zip(data, places, strict=True):
            raw, chains, _ = world.log[offset]
            assert "+".join(chains) == log
            assert envelope in raw


@of_each_seed
def test_nodes_whose_judges_differ_write_the_same_blocks(seed):
    """An identity that expires may be valid at one node and no longer valid at another."""
    moods = [
        [b"t%d" % number for number in range(start, 40, 3)]
        + [payload_data(update(f"c{number}")) for number in range(start, 40, 3)]
        for start in range(3)
    ]
    world = World(seed, moods=moods)
    world.run()

    first, *others = world.nodes
    for node in others:
        assert [(b.header, b.data) for b in node.blocks] == [
            (b.header, b.data) for b in first.blocks
        ]
        assert node.chain.ingress_open
    ordered = [name for name in first.alone if name.startswith("t")]
    assert len(set(ordered)) == len(ordered)


@of_each_seed
def test_bc18_any_split_of_a_record_stream_gives_the_same_blocks(seed):
    """Every prefix of the blocks, with the rest of the stream, makes all the blocks."""
    world = World(seed, nodes=1, old=20)
    world.run()
    whole = Node(list(world.log))
    seen = {}
    while whole.behind:
        whole.step()
        seen[whole.position] = whole.looks

    for kept in range(1, len(whole.blocks) + 1):
        node = Node(list(world.log))
        node.blocks, node.rules = whole.blocks[:kept], whole.rules
        node.restart()
        while node.position < len(world.log):
            node.step()
            assert node.looks == seen[node.position]
        assert node.serialized == whole.serialized
