"""Nodes of the ordering service in one process, on a log in memory."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections import Counter
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from multicast.control import log_partition
from multicast.drivers.memory.driver import MemoryReader
from multicast.drivers.protocol import AppendFailed
from multicast.errors import AppendUnknown, ClusterUnreachable
from ordering_osn.chain.blocks import new_block
from ordering_osn.chain.envelopes import canonical, signed_envelope
from ordering_osn.node.joining import join
from ordering_osn.node.kafka_connection import KafkaConnection
from ordering_osn.node.registrar import Registrar
from ordering_osn.protos import Block, ConfigEnvelope, HeaderType
from tests.helpers.held import SteppedDriver
from tests.helpers.small import Small, until
from tests.ordering_osn.helpers import configs
from topology.interests import from_document
from topology.planner.solver import plan as solve

_numbers = itertools.count()


def chains_plan(*names: str, spanning=(), readers=(), topic="chains", **options):
    """Plan a topic with a partition for each chain, and a log for each set in `spanning`.

    Where there is such a set, collectors order its chains. `readers`: chains that are read
    together. `options` are the planner's.
    """
    return solve(
        from_document(
            {
                "topic": topic,
                "partitions": list(names),
                "destinations": [list(to) for to in spanning],
                "consumer": [
                    *({"name": name, "interest": [name]} for name in names),
                    *({"name": ".".join(read), "interest": list(read)} for read in readers),
                ],
            }
        ),
        **options,
    )


def genesis(config, name: str) -> bytes:
    """Make a genesis block of a `Config`."""
    data = canonical(ConfigEnvelope(config=config))
    envelope = signed_envelope(
        HeaderType.CONFIG, name, data, signer=configs.orderer(), now=configs.NOW
    )
    return new_block(0, b"", [envelope]).SerializeToString()


@cache  # a genesis block is signed anew each time, and all nodes need the same
def quick(name="chain-a", *, timeout="100ms", **sizes) -> bytes:
    """Make a channel's genesis block of chain-a's config, but for time-out and batch size."""

    def change(config):
        configs.set_timeout(config, timeout)
        configs.set_batch(config, **sizes)

    return genesis(configs.changed(configs.genesis(), change), name)


def transaction(chain="chain-a", *, data=None, kind=HeaderType.ENDORSER_TRANSACTION) -> bytes:
    """Make a fresh envelope of User1 for a chain."""
    return signed_envelope(
        kind,
        chain,
        data or b"transaction %d" % next(_numbers),
        signer=configs.org_user(),
        now=datetime.now(UTC),
    )


class Faulty(SteppedDriver):
    """A driver that a test can cut off (`away`), or that loses or holds back postings."""

    def __init__(self, log):
        super().__init__(log, step=self._append)
        self.away = False
        self.lost = 0  # how many postings to lose from now on
        self.held = None  # postings that are held back, where it is a list
        self.readers = []  # all that were opened
        requests = "log_start_offsets", "last_stable_offsets", "leader_ends", "high_watermarks"
        for name in (*requests, "topic_ids"):
            setattr(self, name, self._refusable(getattr(self, name)))

    def _refuse(self):
        if self.away:
            raise ClusterUnreachable("no broker answered within 0 s")

    def _refusable(self, call):
        def request(*arguments, **options):
            self._refuse()
            return call(*arguments, **options)

        return request

    def _append(self, append):
        if self.away or self.lost > 0:
            self.lost -= 1
            append.settle(AppendFailed(AppendUnknown("nobody answered")))
        elif self.held is not None:
            self.held.append(append)
        else:
            append.settle(append.store())

    def release(self):
        """Store what was held back, and hold nothing back any more."""
        held, self.held = self.held, None
        for append in held:
            append.settle(append.store())

    def reader(self, starts, *, wait_s=None):  # noqa: ARG002 - a parameter of drivers
        driver = self

        class Reader(MemoryReader):
            deaf = False  # it gives nothing any more, and says nothing

            def poll(self, timeout_s, records_max=5000):
                driver._refuse()
                with self.polling:
                    if not self.deaf:
                        return super().poll(timeout_s, records_max)
                threading.Event().wait(timeout_s)  # as a client that fetches nothing
                return []

            def deafen(self):
                with self.polling:  # what polls now still gets what comes
                    self.deaf = True

        self.readers.append(Reader(self.log, starts))
        self.readers[-1].polling = threading.Lock()
        return self.readers[-1]


class Nodes:
    """A log in memory, its collectors, and any number of nodes; a context manager."""

    def __init__(self, plan, folder: Path, **options):
        self.plan = plan
        self.folder = folder
        self.small = Small(plan)
        self.options = options
        self._stack = contextlib.ExitStack()
        self.nodes: dict[str, Registrar] = {}

    def __enter__(self):
        self._stack.enter_context(self.small)
        self.small.run_all()
        return self

    def __exit__(self, *_):
        for node in self.nodes.values():
            node.stop()
        self._stack.close()

    def faulty(self) -> Faulty:
        return Faulty(self.small.log)

    def start(self, name: str, *blocks: bytes, driver=None, **options) -> Registrar:
        """Start a node with the chains of these genesis blocks and of its folder."""
        folder = self.folder / name
        for raw in blocks:
            join(folder, raw)
        node = self.nodes[name] = Registrar(
            folder,
            KafkaConnection(lambda: driver or self.small.driver, self.plan.topic),
            configs.orderer(),
            **{"look_s": 0.02, **self.options, **options},
        )
        node.start()
        return node

    def running(self, name: str, *blocks: bytes, **options) -> Registrar:
        """Start a node, and wait until all of its chains run."""
        node = self.start(name, *blocks, **options)
        healthy(node)
        return node

    def stop(self, name: str) -> None:
        self.nodes.pop(name).stop()


def healthy(*nodes: Registrar) -> None:
    """Wait until all chains of these nodes run."""
    until(lambda: all(node.names() and not node.health() for node in nodes))


LONE = chains_plan("chain-a")
TWO = chains_plan("chain-a", "chain-b", spanning=[("chain-a", "chain-b")])
# The same with one collector for both: foreign work costs nothing.
SHARED = chains_plan("chain-a", "chain-b", spanning=[("chain-a", "chain-b")], phi=0)


def log_of(osn: Nodes, *chains: str):
    """Give the Kafka partition of a chain's log, or of one that spans several."""
    return log_partition(osn.plan.log("+".join(chains or ("chain-a",))))


def batch_of(config, count: int) -> bytes:
    """Make an update of the batch size."""
    return configs.update(config, lambda new: configs.set_batch(new, max_message_count=count))


def submit(node: Registrar, *sent: bytes) -> list[tuple[int, str]]:
    """Submit envelopes at once, as one stream does; give the answers."""

    async def all_of_them():
        return await asyncio.gather(*[node.submit(envelope) for envelope in sent])

    return asyncio.run(all_of_them())


def statuses(answers) -> Counter:
    return Counter(status for status, _ in answers)


def accepted(node: Registrar, *sent: bytes) -> None:
    """Submit envelopes; all must be accepted."""
    answers = submit(node, *sent)
    assert statuses(answers) == {200: len(sent)}, answers


def blocks(node: Registrar, chain="chain-a") -> list[Block]:
    ledger = node.get(chain).ledger
    return [Block.FromString(ledger.read(n)) for n in range(ledger.base, ledger.height)]


def ordered(node: Registrar, chain="chain-a") -> list[bytes]:
    """Give the transactions of a chain behind its genesis block."""
    return [data for block in blocks(node, chain)[1:] for data in block.data.data]


def until_ordered(node: Registrar, count: int, chain="chain-a") -> list[bytes]:
    """Wait until exactly `count` transactions are in blocks."""
    until(lambda: len(ordered(node, chain)) >= count)
    found = ordered(node, chain)
    assert len(found) == count
    return found


def chain_of(node: Registrar, chain="chain-a") -> list[tuple[bytes, bytes]]:
    """Give the part of the blocks that is the same at every node: headers and data."""
    return [
        (block.header.SerializeToString(), block.data.SerializeToString())
        for block in blocks(node, chain)
    ]


def until_alike(*nodes: Registrar, chain="chain-a") -> list[tuple[bytes, bytes]]:
    """Wait until the nodes have equally many blocks; they must be the same."""
    until(lambda: len({node.get(chain).ledger.height for node in nodes}) == 1)
    first, *others = [chain_of(node, chain) for node in nodes]
    for other in others:
        assert other == first
    return first


def counted(node: Registrar, name: str, *labels: str) -> float:
    """Read one of a node's counters."""
    return getattr(node.metrics, name).value(*labels)
