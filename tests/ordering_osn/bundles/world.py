"""A small world in virtual time: nodes that run several chains, logs of chains and of sets.

The cores are real: bundles, records, the rule of each set, its saved heads, blocks' metadata. The
rest is as small as it can be, and drawn from one seed.

    log      records of one destination set, in the order in which they were stored. A chain's own
             log holds single transactions, configs and times to cut, as tuples
    order    one total order of all logs' records, which respects each log; it lags behind. A
             chain's stream is the part of it that concerns the chain
    plan     an entry of the order: from there on a set is declared, and its log is in the order
    node     runs a replica of each chain. A crash loses everything but the replicas' blocks
    replica  reads its chain's stream, cuts blocks, and remembers in each block's metadata what the
             next start needs
"""

from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from random import Random

from ordering_osn.chain.bundles.bundle import Bundle, make_bundle
from ordering_osn.chain.bundles.intake import BundleIntake, BundleSettled, JudgeBundle
from ordering_osn.chain.bundles.metadata import (
    BlockBundles,
    BundleMetadata,
    encode_block_bundles,
    metadata_of,
    read_block_bundles,
)
from ordering_osn.chain.bundles.restart import restored_sets
from ordering_osn.chain.bundles.rule import BundleCounts, BundleVoid
from ordering_osn.chain.bundles.sets import ChainSets
from tests.ordering_osn.helpers.bundles import Scribe, bundle_record, envelope, marker

CHAINS = ("chain-a", "chain-b", "chain-c")
SETS = (("chain-a", "chain-b"), ("chain-a", "chain-c"), ("chain-b", "chain-c"), CHAINS)
NODES = 3
BLOCK_MAX = 3
WINDOW = 8
SUBMITTERS = 7
PLAN = "plan"


def admits(chain: str, sequence: int, submitter: int) -> bool:
    """Whether a config lets a submitter write; it may differ from config to config."""
    return (submitter + sequence + CHAINS.index(chain)) % 5 != 0


@cache
def envelope_of(chain: str, number: int) -> bytes:
    return envelope(chain, number.to_bytes(4, "big"))


@dataclass
class Block:
    """`entries`: what the block holds; `position`: where a replica that restarts here reads on."""

    entries: tuple
    metadata: bytes
    position: int
    sequence: int
    config_block: int


@dataclass
class World:
    seed: int
    bug: str = ""
    logs: dict = field(default_factory=dict)
    order: list = field(default_factory=list)
    stats: Counter = field(default_factory=Counter)

    def __post_init__(self):
        self.rng = Random(self.seed)
        self.logs = {log: [] for log in (*((chain,) for chain in CHAINS), *SETS)}
        self.streams = {chain: [] for chain in CHAINS}
        self.declared = set(SETS) - set(self.rng.sample(SETS, 2))
        self.first_plan = frozenset(self.declared)
        self.ordered = Counter()
        self.late = []
        self.calm = False
        self.bundles = {}
        self.submitted = 0
        self.nodes = [Node(self) for _ in range(NODES)]

    def chance(self, one_in):
        return not self.calm and self.rng.randrange(one_in) == 0

    # -- logs and their order ----------------------------------------------------------------

    def append(self, log, record, to=None):
        """Store a record, or lose it, or store it later, or twice. Gives whether it is not lost."""
        entry = (log, (record, to or log))
        if self.chance(8):
            self.stats["lost"] += 1
            return False
        if self.chance(8):
            self.late.append(entry)
        else:
            self.logs[log].append(entry[1])
            if self.chance(10):
                self.late.append(entry)
        return True

    def store_late(self):
        if self.late:
            log, entry = self.late.pop(self.rng.randrange(len(self.late)))
            self.logs[log].append(entry)

    def put_in_order(self):
        ready = [
            log
            for log, records in self.logs.items()
            if self.ordered[log] < len(records) and (len(log) == 1 or log in self.declared)
        ]
        if ready:
            log = self.rng.choice(ready)
            offset = self.ordered[log]
            self.ordered[log] += 1
            self.order.append((log, offset))
            for chain in self.logs[log][offset][1]:
                self.streams[chain].append((log, offset))

    def declare(self):
        """A new plan declares one set more."""
        later = [chains for chains in SETS if chains not in self.declared]
        if later:
            chains = self.rng.choice(later)
            self.stats["new set"] += 1
            self.declared.add(chains)
            self.order.append((PLAN, chains))
            for chain in chains:
                self.streams[chain].append((PLAN, chains))

    def forge(self):
        """Store what no correct node posts: in the wrong log, to a part of the set, garbage."""
        log, other = self.rng.sample(SETS, 2)
        present = [self.nodes[0].replicas[chain].sequence for chain in log]
        kind = self.rng.randrange(4)
        if kind == 0:
            made = self.new_bundle(other, self.rng.randrange(SUBMITTERS))
            self.append(log, bundle_record(made, *[*present, 0][: len(other)]))
        elif kind == 1:
            made = self.new_bundle(log, self.rng.randrange(SUBMITTERS))
            self.append(log, bundle_record(made, *present), log[:1])
        elif kind == 2:
            chain = self.rng.choice(log)
            newest = self.nodes[0].replicas[chain].sets.marker(log, chain)
            if newest is not None and newest.sequence and newest.config_block:
                blocks, sequences = self.rng.choice([(-1, 1), (1, -1), (0, 1), (1, 0), (-1, -1)])
                sequence, block = newest.sequence + sequences, newest.config_block + blocks
                self.append(log, marker(chain, sequence, block=block))
        else:
            self.append(log, self.rng.choice([None, b"", b"\x82\1\xff", b"\x8a\1\xff"]))

    # -- clients -------------------------------------------------------------------------------

    def submit(self):
        """A client sends a bundle to a node, a new one or one that it sent before."""
        if self.bundles and self.chance(3):
            made = self.rng.choice(list(self.bundles.values()))
            self.stats["sent again"] += 1
        else:
            made = self.new_bundle(self.rng.choice(SETS), self.rng.randrange(SUBMITTERS))
        self.rng.choice(self.nodes).take_in(made)

    def new_bundle(self, chains, submitter) -> Bundle:
        self.submitted += 1
        near = len(self.logs[chains]) + self.rng.randrange(6)
        expiry = near if self.chance(6) else 0
        signer = Scribe(creator=b"submitter %d" % submitter)
        signer._made = self.submitted
        parts = {chain: envelope_of(chain, self.submitted) for chain in chains}
        made = make_bundle(parts, signer=signer, expiry=expiry)
        self.bundles[made.id] = made
        return made

    # -- the run -------------------------------------------------------------------------------

    def turn(self):
        kind = self.rng.randrange(40)
        node = self.rng.choice(self.nodes)
        chain = self.rng.choice(CHAINS)
        if kind < 6:
            self.submit()
        elif kind < 8:
            self.append((chain,), ("alone", self.rng.randrange(1000)))
        elif kind < 10:
            self.append((chain,), ("cut", node.replicas[chain].height))
        elif kind == 10:
            self.append((chain,), ("config",))
        elif kind == 11:
            self.store_late()
            self.forge()
            if self.chance(8):
                self.declare()
        elif kind == 12 and self.chance(2):
            self.stats["crash"] += 1
            self.nodes[self.nodes.index(node)] = Node(self, blocks=node.blocks())
        elif kind < 24:
            for _ in range(self.rng.randrange(4)):
                self.put_in_order()
        else:
            node.turn()

    def run(self, turns):
        chains = self.rng.choice(SETS)  # a node posts before any chain has introduced itself
        self.append(chains, bundle_record(self.new_bundle(chains, 1), *(0 for _ in chains)))
        for _ in range(turns):
            self.turn()

    def settle(self):
        """Without faults: everything is stored, ordered, read, decided and in blocks."""
        self.calm = True
        while len(self.declared) < len(SETS):
            self.declare()
        while True:
            before = self.progress()
            while self.late:
                self.store_late()
            for _ in range(200):
                self.put_in_order()
            for node in self.nodes:
                for _ in range(20):
                    node.turn()
            if self.progress() == before:
                break
        pending = [chain for chain in CHAINS if self.nodes[0].replicas[chain].pending]
        for chain in pending:
            self.append((chain,), ("cut", self.nodes[0].replicas[chain].height))
        if pending:
            self.settle()

    def progress(self):
        positions = [
            (replica.position, len(replica.blocks))
            for node in self.nodes
            for replica in node.replicas.values()
        ]
        waiting = [len(node.intake) for node in self.nodes]
        return len(self.order), [len(records) for records in self.logs.values()], positions, waiting


class Node:
    """Takes bundles in, and runs a replica of each chain."""

    def __init__(self, world, blocks=None):
        self.world = world
        self.replicas = {
            chain: Replica(world, self, chain, list((blocks or {}).get(chain, ())))
            for chain in CHAINS
        }
        self.intake = BundleIntake(posts_max=1 + world.seed % 3)
        self.judging = []  # bundles that are to be judged and posted

    def blocks(self):
        return {chain: replica.blocks for chain, replica in self.replicas.items()}

    def take_in(self, made):
        if self.intake.take_in(made):
            self.judging.append(made)

    def turn(self):
        for _ in range(self.world.rng.randrange(10)):  # some nodes read fast, some lag
            self.replicas[self.world.rng.choice(CHAINS)].turn()
        if self.judging:
            self.judge(self.judging.pop(0))

    def judge(self, made):
        """Judge at the present configs, stamp and post; wait until the markers stand there."""
        world = self.world
        if made.chains not in self.replicas[made.chains[0]].declared:
            self.intake.forget(made.id)
            world.stats["undeclared"] += 1
            return
        stamps = tuple(self.replicas[chain].sequence for chain in made.chains)
        submitter = int(made.submitter.split()[1])
        if not all(map(admits, made.chains, stamps, [submitter] * len(stamps))):
            self.intake.forget(made.id)
            world.stats["refused"] += 1
            return
        sets = self.replicas[made.chains[0]].sets
        standing = [sets.marker(made.chains, chain) for chain in made.chains]
        stand = [each.sequence if each else None for each in standing] == list(stamps)
        if not stand and not world.chance(3):  # an impatient node does not wait
            self.judging.append(made)
        elif world.append(made.chains, bundle_record(made, *stamps)):
            self.intake.posted(made.id)
        else:
            self.intake.forget(made.id)  # the client is told 503, and may send it again

    def read(self, outcome):
        """Take an outcome of a log; each log is read once at each node."""
        action = self.intake.read(outcome)
        if isinstance(action, JudgeBundle):
            self.judging.append(action.bundle)
            self.world.stats["posted again"] += 1
        elif isinstance(action, BundleSettled):
            self.judging = [made for made in self.judging if made.id != action.bundle_id]
            self.world.stats["gives up" if action.gives_up else "settled"] += 1


class Replica:
    """One chain at one node."""

    def __init__(self, world, node, chain, blocks):
        self.world, self.node, self.chain = world, node, chain
        self.blocks = blocks
        self.pending = []
        last = blocks[-1] if blocks else None
        self.position = last.position if last else 0
        self.sequence = last.sequence if last else 0
        self.config_block = last.config_block if last else 0
        self.sets = ChainSets(self.restored(), window_max=WINDOW)
        read = self.world.streams[chain][: self.position]
        self.declared = {chains for chains in world.first_plan if chain in chains}
        self.declared.update(chains for log, chains in read if log == PLAN)
        self.posted = {}  # by set: the sequence whose marker is posted

    @property
    def height(self):
        return len(self.blocks) + 1  # block 0 is the genesis block

    def restored(self):
        """The states of the sets behind the last block, from the blocks alone."""
        if not self.blocks or self.world.bug == "a restart forgets the state":
            return []
        restored = restored_sets(len(self.blocks), self.metadata, window_max=WINDOW)
        return [each.state for each in restored]

    def metadata(self, number):
        return read_block_bundles(self.blocks[number - 1].metadata)

    def turn(self):
        self.owed_markers()
        stream = self.world.streams[self.chain]
        if self.position == len(stream):
            return
        log, offset = stream[self.position]
        if log == PLAN:
            self.position += 1
            self.declared.add(offset)
            return
        record, to = self.world.logs[log][offset]
        if log == (self.chain,):
            self.own(record)
        else:
            self.shared(log, offset, record, to)
        if len(self.pending) >= BLOCK_MAX:
            self.cut(self.position)

    def owed_markers(self):
        """Post the marker of the present config to each set that has not read it."""
        for chains in sorted(self.declared):
            newest = self.sets.marker(chains, self.chain)
            owed = newest is None or newest.sequence < self.sequence
            if owed and self.posted.get(chains) != self.sequence:
                raw = marker(self.chain, self.sequence, block=self.config_block)
                if self.world.append(chains, raw):
                    self.posted[chains] = self.sequence

    def own(self, record):
        if record[0] == "config":
            if self.pending:
                self.cut(self.position)
            self.position += 1
            self.sequence += 1
            self.config_block = self.height
            self.pending = [(record, None)]
            self.cut(self.position)
            return
        self.position += 1
        if record[0] == "alone":
            self.pending.append((record, None))
        elif record[1] == self.height and self.pending:
            self.cut(self.position)

    def shared(self, log, offset, record, to):
        self.position += 1
        outcome = self.sets.step(log, offset, record, to)
        if self.chain == log[0]:
            self.node.read(outcome)
        if isinstance(outcome, BundleVoid):
            self.world.stats[outcome.reason] += 1
        elif isinstance(outcome, BundleCounts):
            if self.world.bug == "each chain judges by its own config":
                submitter = int(outcome.bundle.submitter.split()[1])
                if not admits(self.chain, self.sequence, submitter):
                    return
            (part,) = [each for each in outcome.bundle.parts if each.chain == self.chain]
            self.pending.append((part.envelope, outcome.bundle))
            self.world.stats["counts"] += 1

    def cut(self, position):
        parts: list[BundleMetadata] = [
            metadata_of(made, self.chain, index)
            for index, (_, made) in enumerate(self.pending)
            if made is not None
        ]
        heads = self.sets.heads()
        if self.world.bug == "a new set has no head":
            heads = tuple(head for head in heads if head.chains in self.world.first_plan)
        self.sets.written(self.height, parts)
        block = Block(
            tuple(entry for entry, _ in self.pending),
            encode_block_bundles(BlockBundles(tuple(parts), heads)),
            position,
            self.sequence,
            self.config_block,
        )
        if self.world.bug == "a head is older than its block" and self.blocks:
            old = self.metadata(len(self.blocks)).heads
            block.metadata = encode_block_bundles(BlockBundles(tuple(parts), old))
        self.blocks.append(block)
        self.pending = []
