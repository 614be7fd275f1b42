"""Rounds of sending: one arm sends, and its transactions are in blocks before the round ends.

    arm     a way to send, single transactions or bundles, and the nodes to which it sends
    part    a single transaction, or what a bundle holds for one chain
    round   an arm sends; then another one does. So a drift of the machine meets all arms alike

A saturated round measures parts/s, a paced round the time from the intended time of sending until
a reader has the block with the last part, by Deliver.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self, TypeVar

from bench.harness.histogram import Latencies
from bench.orderer.clients import ReaderProcess, SenderProcess
from bench.orderer.measure import Figures, RunCost, received, whole
from bench.orderer.nodes import OrdererDeployment
from bench.orderer.read import ReadOrder
from bench.orderer.send import SendOrder

_NS_PER_S = 10**9
_PACED_WINDOW = 10_000  # so large that a slow answer never delays the intended times
_DRAIN_S = 300.0  # for all rounds' warm-ups, pauses and blocks, beyond the time of sending
_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class SpeedArm:
    """A way to send. `bundles`: with a part for each chain; else transactions to them in turn."""

    name: str
    deployment: OrdererDeployment
    bundles: bool = False

    @property
    def chains(self) -> Sequence[str]:
        """The chains to which it sends."""
        return self.deployment.nodes.service.chains

    @property
    def parts_each(self) -> int:
        """How many parts each message has."""
        return len(self.chains) if self.bundles else 1


class Spread(NamedTuple):
    """The median of the rounds, the least and the greatest."""

    median: float
    least: float
    greatest: float


class SentPart(NamedTuple):
    """A line of `SendOrder.sent`. `message`: the bundle's ID, or the transaction's own."""

    transaction: str
    chain: str
    intended_ns: int
    message: str


def spread(values: Iterable[float]) -> Spread:
    """Summarize the values of the rounds."""
    ordered = sorted(values)
    return Spread(statistics.median(ordered), ordered[0], ordered[-1])


def ratios(numerators: Sequence[float], denominators: Sequence[float]) -> Spread:
    """Divide round by round, so that a drift of the machine cancels out."""
    return spread(above / below for above, below in zip(numerators, denominators, strict=True))


def in_turns(arms: Sequence[_Item], rounds: int) -> Iterator[tuple[int, _Item]]:
    """Yield the round's number and the arm: each arm once a round, every other round backwards."""
    for number in range(rounds):
        for arm in arms if number % 2 == 0 else reversed(arms):
            yield number, arm


def commit_latencies(
    sent: Iterable[SentPart], came: Mapping[str, Mapping[str, int]]
) -> dict[str, int]:
    """Give for each message the time from its sending until its last part had come, in ns.

    `came`: by chain, when each transaction came, in ns of the clock of `intended_ns`.
    """
    latencies: dict[str, int] = {}
    for part in sent:
        took = came[part.chain][part.transaction] - part.intended_ns
        latencies[part.message] = max(took, latencies.get(part.message, 0))
    return latencies


def read_sent(file: Path) -> list[SentPart]:
    """Read a file of `SendOrder.sent`."""
    parts = []
    for line in file.read_text(encoding="ascii").splitlines():
        transaction, chain, intended, *bundle = line.split()
        parts.append(SentPart(transaction, chain, int(intended), bundle[0] if bundle else ""))
    return [part if part.message else part._replace(message=part.transaction) for part in parts]


def saturated_round(
    arm: SpeedArm, number: int, parts: int, *, streams: int, window: int
) -> Figures:
    """Send prepared messages as fast as answers come; `window` counts parts in each stream.

    Returns `per_s`, the parts/s until the last node has written all, and the CPU time in µs for
    each part. The number of parts is rounded down to whole messages.
    """
    deployment, messages = arm.deployment, parts // arm.parts_each
    sending = SendOrder(
        addresses=deployment.nodes.addresses,
        chains=arm.chains,
        transactions=messages,
        material=str(deployment.nodes.service.material),
        bundles=arm.bundles,
        streams=streams,
        window=max(1, window // arm.parts_each),
    )
    with SenderProcess(sending, deployment.nodes.folder, number) as sender:
        cost = RunCost(deployment, clients=[sender.pid])
        sender.go()
        result = whole(sender.wait_result(), messages)
        reached = max(received(deployment.nodes, result.last))
        costs = cost.figures(messages * arm.parts_each)
    return {"per_s": messages * arm.parts_each / (reached - result.began_ns / _NS_PER_S), **costs}


class PacedRounds:
    """Paced rounds of several arms, while a reader of each deployment follows all of its chains.

    A context manager: the readers begin with it.
    """

    def __init__(self, arms: Sequence[SpeedArm], rounds: int, messages: int, rate: float) -> None:
        """`rate`: parts/s of each chain; `messages`: what each chain gets in a round of an arm."""
        self._messages, self._rate = messages, rate
        self._stack = ExitStack()
        self._sent: dict[str, list[Path]] = {arm.name: [] for arm in arms}
        self._costs: dict[str, list[Figures]] = {arm.name: [] for arm in arms}
        self._readers: dict[Path, ReaderProcess] = {}
        self._came: dict[Path, dict[str, dict[str, int]]] = {}
        timeout_s = _DRAIN_S + 2 * len(arms) * rounds * messages / rate
        for arm in arms:
            nodes = arm.deployment.nodes
            sharing = sum(other.deployment.nodes is nodes for other in arms)
            reading = ReadOrder(
                readers=[(nodes.addresses[-1], chain) for chain in arm.chains],
                mode="times",
                material=str(nodes.service.material),
                transactions=dict.fromkeys(arm.chains, sharing * rounds * messages),
                folder=str(nodes.folder),
                timeout_s=timeout_s,
            )
            self._readers[nodes.folder] = ReaderProcess(reading, nodes.folder)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for reader in self._readers.values():
                stack.enter_context(reader).go()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, arm: SpeedArm, number: int) -> None:
        """Send one round at the rate; returns when all nodes have written it."""
        nodes = arm.deployment.nodes
        messages = self._messages * (1 if arm.bundles else len(arm.chains))
        sent = nodes.folder / f"sent-{arm.name}-{number}"
        sending = SendOrder(
            addresses=nodes.addresses,
            chains=arm.chains,
            transactions=messages,
            material=str(nodes.service.material),
            bundles=arm.bundles,
            window=_PACED_WINDOW,
            rate=self._rate * (1 if arm.bundles else len(arm.chains)),
            sent=str(sent),
        )
        with SenderProcess(sending, nodes.folder, number) as sender:
            clients = [sender.pid, self._readers[nodes.folder].pid]
            cost = RunCost(arm.deployment, clients=clients)
            sender.go()
            received(nodes, whole(sender.wait_result(), messages).last)
            self._costs[arm.name].append(cost.figures(messages * arm.parts_each))
        self._sent[arm.name].append(sent)

    def figures(self, arm: SpeedArm) -> list[Figures]:
        """Return p50 and p99 in ms, and the CPU time in µs for each part, of each round of an arm.

        Waits until the reader has all rounds of all arms.
        """
        folder = arm.deployment.nodes.folder
        if folder not in self._came:
            self._readers[folder].wait_result()
            self._came[folder] = {
                chain: _times(folder / f"times-{number}") for number, chain in enumerate(arm.chains)
            }
        rounds = []
        for sent, costs in zip(self._sent[arm.name], self._costs[arm.name], strict=True):
            histogram = Latencies()
            histogram.record(commit_latencies(read_sent(sent), self._came[folder]).values())
            p50, p99 = histogram.percentile([50.0, 99.0])
            rounds.append({"p50_ms": p50, "p99_ms": p99, **costs})
        return rounds


def _times(file: Path) -> dict[str, int]:
    lines = (line.split() for line in file.read_text(encoding="ascii").splitlines())
    return {transaction: int(came) for transaction, came in lines}
