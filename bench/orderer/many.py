"""Many transactions over all nodes and chains, while nodes are killed and come back.

A transaction whose answer a killed node kept for itself is sent again to another, until it is
acknowledged; it may then be in the log twice, and must be in the chain once. One node at a time is
down; when its successor is healthy, and so many more are acknowledged, the next one is killed.
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
from bench.orderer.nodes import NodeProcesses, OrdererStage
from multicast.errors import AmcastError
from ordering_osn.chain.blocks import header_hash
from ordering_osn.ledger.ledger import Ledger
from ordering_osn.protos import Block

_SLOWEST_PER_S = 50.0
_AT_LEAST_S = 300.0


class OrderViolated(AmcastError):
    """What the nodes delivered breaks a guarantee; the text has the witnesses."""

    exit_code = 3


@dataclass(frozen=True, slots=True)
class ManyOutcome:
    """A run in which all was well."""

    acknowledged: int
    retried: int
    streams_ended: int
    kills: int
    blocks: int
    seconds: float
    per_s: float

    def figures(self) -> dict[str, float]:
        """Give all by their names."""
        return asdict(self)


def many(stage: OrdererStage, transactions: int, *, kills: int) -> ManyOutcome:
    """Run it. Raises `OrderViolated` with witnesses, `TimedOut` where something does not come."""
    nodes, folder = stage.nodes, stage.nodes.folder
    service = nodes.service
    timeout_s = _AT_LEAST_S + transactions / _SLOWEST_PER_S
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
        sent = sender.outcome()
        if sent.acknowledged != transactions:
            raise OrderViolated(f"of {transactions} good transactions were refused {sent.refused}")
        progress(f"{sent.acknowledged} are acknowledged; waiting until all are delivered")
        read = reader.told()
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
    """Say how many transactions of an order each chain comes to hold."""
    counts = Counter(send.channels(order))
    return {chain: counts[chain] for chain in order.chains}


def _with_kills(nodes: NodeProcesses, sender: SenderProcess, transactions: int, kills: int) -> int:
    """Kill nodes in turns, evenly over the transactions, until all are acknowledged."""
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
    """Read what the readers wrote: by chain, then by node."""
    files = (folder / f"history-{number}" for number in range(len(chains) * len(nodes.addresses)))
    return {
        chain: {f"node {number}": _history(next(files)) for number in range(len(nodes.addresses))}
        for chain in chains
    }


def _history(file: Path) -> DeliveredChain:
    hashes, found = [], []
    with file.open(encoding="ascii") as lines:
        for line in lines:
            first, *ids = line.split()
            hashes.append(first)
            found += ids
    return DeliveredChain(hashes, found)


def _ledgers(
    nodes: NodeProcesses, delivered: Mapping[str, Mapping[str, DeliveredChain]]
) -> list[str]:
    """Compare each ledger's end with what its node delivered: nothing may stand behind it."""
    wrong = []
    for chain, by_node in delivered.items():
        for number, (node, told) in enumerate(by_node.items()):
            with Ledger.open(nodes.ledger(number, chain), read_only=True) as ledger:
                last = Block.FromString(ledger.read(ledger.height - 1))
            if header_hash(last.header).hex() != told.hashes[-1]:
                wrong.append(f"{chain} at {node} ends with block {last.header.number}, not with "
                             f"the last one it delivered, {len(told.hashes) - 1}")  # fmt: skip
    return wrong
