"""Send many transactions over all nodes and chains while nodes are killed and restarted.

A transaction that a killed node did not answer is sent again to another node until it is
acknowledged; it may then be in the log twice, and must be in the chain once. Only one node is down
at a time: the next is killed once the last one is healthy again and its share of the transactions
is acknowledged.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.harness.figures import progress
from bench.orderer import read as osn_read
from bench.orderer import send
from bench.orderer.clients import ReaderProcess, SenderProcess
from bench.orderer.judge import DeliveredChain, judge
from bench.orderer.nodes import NodeProcesses, OrdererDeployment
from multicast.errors import AmcastError
from ordering_osn.chain.blocks import header_hash
from ordering_osn.ledger.ledger import Ledger
from ordering_osn.protos import Block

# The run is given up below this mean rate, a fortieth of what three nodes reach without kills
# (docs/benchmarks.md), but not before the start and the restarts of nodes have had their time.
_SLOWEST_PER_S = 50.0
_TIMEOUT_S_MIN = 300.0


class OrderViolated(AmcastError):
    """The nodes' deliveries violate a guarantee; the text holds the witnesses."""

    exit_code = 3


@dataclass(frozen=True, slots=True)
class ManyOutcome:
    """The figures of a run without violations."""

    acknowledged: int
    retried: int
    streams_ended: int
    kills: int
    blocks: int
    seconds: float
    per_s: float

    def figures(self) -> dict[str, float]:
        """Return all fields by name."""
        return asdict(self)


def many(deployment: OrdererDeployment, transactions: int, *, kills: int) -> ManyOutcome:
    """Run the test; raises `OrderViolated` with witnesses, or `TimedOut`."""
    nodes, folder = deployment.nodes, deployment.nodes.folder
    service = nodes.service
    timeout_s = _TIMEOUT_S_MIN + transactions / _SLOWEST_PER_S
    sending = send.SendOrder(
        addresses=nodes.addresses,
        chains=service.chains,
        transactions=transactions,
        material=str(service.material),
        window=128,
        prepared=False,
        sent=str(folder / "sent"),
        timeout_s=timeout_s,
    )
    places = [(address, chain) for chain in service.chains for address in nodes.addresses]
    expected = expected_of(sending)
    reading = osn_read.ReadOrder(
        readers=places,
        mode="history",
        material=str(service.material),
        transactions=expected,
        folder=str(folder),
        timeout_s=timeout_s,
    )
    nodes.start_all()
    began = time.monotonic()
    with SenderProcess(sending, folder) as sender, ReaderProcess(reading, folder) as reader:
        reader.go()
        sender.go()
        killed = _with_kills(nodes, sender, transactions, kills)
        sent = sender.result()
        if sent.acknowledged != transactions:
            raise OrderViolated(
                f"of {transactions} valid transactions were refused: {sent.refused}"
            )
        progress(f"{sent.acknowledged} are acknowledged; waiting until all are delivered")
        read = reader.wait_result()
    seconds = time.monotonic() - began
    nodes.stop()
    progress("judging")
    acknowledged = _acknowledged(folder / "sent")
    delivered = _delivered(folder, service.chains, nodes)
    wrong = judge(acknowledged, delivered) + _ledgers(nodes, delivered)
    if wrong:
        raise OrderViolated("\n".join(wrong))
    return ManyOutcome(
        acknowledged=len(acknowledged),
        retried=sent.retried,
        streams_ended=sent.streams_ended + read.streams_ended,
        kills=killed,
        blocks=sum(len(by_node["node 0"].hashes) for by_node in delivered.values()),
        seconds=round(seconds, 1),
        per_s=round(transactions / seconds, 1),
    )


def expected_of(order: send.SendOrder) -> dict[str, int]:
    """Return how many transactions of an order go to each chain."""
    counts = Counter(send.channels(order))
    return {chain: counts[chain] for chain in order.chains}


def _with_kills(nodes: NodeProcesses, sender: SenderProcess, transactions: int, kills: int) -> int:
    """Kill nodes in turn, evenly over the run, until all is acknowledged; returns the kills."""
    killed = 0
    for acknowledged in sender.acknowledged():
        if killed < kills and acknowledged >= transactions * (killed + 1) / (kills + 1):
            victim = killed % len(nodes.addresses)
            progress(f"{acknowledged} are acknowledged; killing node {victim}")
            nodes.kill(victim)
            nodes.start(victim)
            nodes.wait_healthy()
            killed += 1
    return killed


def _acknowledged(file: Path) -> dict[str, str]:
    lines = (line.split() for line in file.read_text(encoding="ascii").splitlines())
    return {words[0]: words[1] for words in lines}


def _delivered(
    folder: Path, chains: Sequence[str], nodes: NodeProcesses
) -> dict[str, dict[str, DeliveredChain]]:
    """Read the readers' files: by chain, then by node."""
    files = (folder / f"history-{number}" for number in range(len(chains) * len(nodes.addresses)))
    return {
        chain: {f"node {number}": _history(next(files)) for number in range(len(nodes.addresses))}
        for chain in chains
    }


def _history(file: Path) -> DeliveredChain:
    hashes, transactions = [], []
    with file.open(encoding="ascii") as lines:
        for line in lines:
            first, *ids = line.split()
            hashes.append(first)
            transactions += ids
    return DeliveredChain(hashes, transactions)


def _ledgers(
    nodes: NodeProcesses, delivered: Mapping[str, Mapping[str, DeliveredChain]]
) -> list[str]:
    """Check that each ledger ends with the last block that its node delivered."""
    wrong = []
    for chain, by_node in delivered.items():
        for number, (node, history) in enumerate(by_node.items()):
            with Ledger.open(nodes.ledger(number, chain), read_only=True) as ledger:
                last = Block.FromString(ledger.read(ledger.height - 1))
            if header_hash(last.header).hex() != history.hashes[-1]:
                wrong.append(f"{chain} at {node} ends with block {last.header.number}, not with "
                             f"the last one it delivered, {len(history.hashes) - 1}")  # fmt: skip
    return wrong
