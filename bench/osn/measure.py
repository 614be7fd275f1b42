"""Measure the ordering service: each function makes one run and returns its figures by name.

    ordered      frozen nodes are released, and order a log that already holds all transactions
    broadcast    signed envelopes are sent to all nodes as fast as these answer
    latency      at a fixed rate, from the intended time of sending to the arrival of the block

A node is finished when it returns a receipt for the last transaction sent: its ledger then holds
that transaction and all before it. After the run all ledgers are checked: each must hold every
transaction, and all must hold the same blocks; otherwise there are no figures.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from bench.harness.client import FollowedNotes
from bench.harness.figures import progress
from bench.harness.histogram import Latencies
from bench.harness.hosts import ClientProcess, cpu_seconds
from bench.osn.client import TRANSACTIONS, ReadBlocks, Submit, SubmitResult, read_blocks, submit
from bench.osn.clients import ready
from bench.osn.nodes import NodeProcesses, OrdererDeployment
from bench.osn.transactions import Maker, user
from multicast.errors import AmcastError, TimedOut
from multicast.producing.producer import Producer
from ordering_osn.api.channels import Status
from ordering_osn.api.grpc_client import NodeClient
from ordering_osn.api.receipt_request import WAIT_MS_MAX, receipt_envelope
from ordering_osn.chain.blocks import check_next, header_hash
from ordering_osn.chain.records import Regular, RegularKind, encode
from ordering_osn.chain.transactions import transaction_id
from ordering_osn.ledger.ledger import Ledger
from ordering_osn.protos import Block

Figures = dict[str, float]
_ANSWER_S = 30.0  # beyond the time-out of a receipt or a client itself, for the answer to arrive
_BATCH_TRANSACTIONS = 500  # appended in one call: a block's, so few calls even for 50,000
_ACCEPTED_S = 60.0  # for each batch to be acknowledged by a loaded broker
_DRAIN_S = 120.0  # `latency`: for blocks to arrive after the last was sent
_STREAMS, _WINDOW = 2, 128  # `broadcast`: to each node; unanswered envelopes in each of them
_LATENCY_WINDOW = 30_000  # so large that a slow answer never delays the intended times
_NS_PER_S = 10**9


class RunCost:
    """The CPU time of each kind of process, from its creation to `figures`."""

    def __init__(self, deployment: OrdererDeployment, **others: Sequence[int]) -> None:
        self._pids: dict[str, Sequence[int]] = {**deployment.pids, **others}
        self._before = {name: cpu_seconds(pids) for name, pids in self._pids.items()}
        self._began = time.monotonic()

    def figures(self, transactions: int) -> Figures:
        """Return for each kind the CPU time per transaction in µs, and the cores it kept busy."""
        took = time.monotonic() - self._began
        costs: Figures = {}
        for name, pids in self._pids.items():
            if pids:
                used = cpu_seconds(pids) - self._before[name]
                costs[f"cpu_us_{name}"] = round(used / transactions * 1e6, 1)
                costs[f"cores_{name}"] = round(used / took, 2)
        return costs


def ordered(deployment: OrdererDeployment, transactions: int, *, warm_up: int) -> Figures:
    """Fill a log while the nodes are frozen; release them, and measure until all have read it."""
    nodes, chain = deployment.nodes, deployment.nodes.service.chains[0]
    maker = Maker.of()
    nodes.start_all()
    with Producer(deployment.bootstrap, topic=deployment.plan.topic, tickets=False) as producer:
        progress(f"warming up with {warm_up} transactions")
        received(nodes, chain, [_append(producer, maker, chain, warm_up)])
        nodes.freeze()
        progress(f"appending {transactions} transactions to the log")
        last = _append(producer, maker, chain, transactions)
    progress("releasing the nodes")
    cost = RunCost(deployment)
    began = time.monotonic()
    nodes.release()
    reached = received(nodes, chain, [last])
    costs = cost.figures(transactions)
    return {
        **_rates("ordered", transactions, [time_s - began for time_s in reached]),
        "transactions": transactions,
        "blocks": verify(nodes, chain, warm_up + transactions),
        **costs,
    }


def broadcast(deployment: OrdererDeployment, transactions: int, *, warm_up: int) -> Figures:
    """Send prepared transactions to all nodes, as fast as they are answered."""
    nodes, chain = deployment.nodes, deployment.nodes.service.chains[0]
    nodes.start_all()

    def task(count: int) -> Submit:
        return Submit(
            what=TRANSACTIONS,
            addresses=nodes.addresses,
            sets=[[chain]],
            count=count,
            streams=_STREAMS,
            window=_WINDOW * _STREAMS * len(nodes.addresses),
            prepared=True,
        )

    with ready(submit, task(warm_up), nodes.folder, 1) as sender:
        progress(f"warming up with {warm_up} transactions")
        received(nodes, chain, _sent(sender, task(warm_up)).last.values())
    with ready(submit, task(transactions), nodes.folder) as sender:
        progress(f"broadcasting {transactions} transactions")
        cost = RunCost(deployment, clients=[sender.pid])
        result = _sent(sender, task(transactions))
        reached = received(nodes, chain, result.last.values())
        costs = cost.figures(transactions)
    began = result.began_ns / _NS_PER_S
    return {
        **_rates("broadcast", transactions, [time_s - began for time_s in reached]),
        "acknowledged_per_s": round(transactions / (result.ended_ns / _NS_PER_S - began), 1),
        **_latencies("acknowledged", result),
        "transactions": transactions,
        "blocks": verify(nodes, chain, warm_up + transactions),
        **costs,
    }


def _rates(name: str, transactions: int, seconds: Sequence[float]) -> Figures:
    """Give the rate of the slowest node, and that of each, which took so many seconds."""
    rates = [round(transactions / each, 1) for each in seconds]
    by_node = {f"{name}_per_s_node_{number}": rate for number, rate in enumerate(rates)}
    return {f"{name}_per_s": min(rates), **by_node}


def latency(
    deployment: OrdererDeployment, transactions: int, *, rate: float, warm_up: int
) -> Figures:
    """Send at a rate to all nodes; a reader at one node records when the blocks arrive."""
    nodes, chain = deployment.nodes, deployment.nodes.service.chains[0]
    nodes.start_all()
    total = warm_up + transactions
    sending = Submit(
        what=TRANSACTIONS,
        addresses=nodes.addresses,
        sets=[[chain]],
        count=total,
        window=_LATENCY_WINDOW,
        rate=rate,
        prepared=True,
        notes=str(nodes.folder / "sent"),
    )
    reading = ReadBlocks(
        address=nodes.addresses[-1],
        chain=chain,
        transactions=total,
        times=str(nodes.folder / "times"),
        timeout_s=total / rate + _DRAIN_S,
    )
    with (
        ready(submit, sending, nodes.folder) as sender,
        ready(read_blocks, reading, nodes.folder) as reader,
    ):
        progress(f"broadcasting {total} transactions at {rate:g}/s")
        cost = RunCost(deployment, clients=[sender.pid, reader.pid])
        reader.tell()
        result = _sent(sender, sending)
        reader.answer(reading.timeout_s + _ANSWER_S)
        costs = cost.figures(total)
    verify(nodes, chain, total)
    histogram = Latencies()
    histogram.record(_arrivals(Path(sending.notes), Path(reading.times), warm_up))
    p50, p99, p999 = histogram.percentile([50.0, 99.0, 99.9])
    return {
        "broadcast_to_block_p50_ms": p50,
        "broadcast_to_block_p99_ms": p99,
        "broadcast_to_block_p999_ms": p999,
        **_latencies("acknowledged", result),
        "rate": rate,
        "reached_rate": round(total / ((result.ended_ns - result.began_ns) / _NS_PER_S), 1),
        "transactions": transactions,
        **costs,
    }


def received(nodes: NodeProcesses, chain: str, transactions: Collection[str]) -> list[float]:
    """Wait until each node has written these transactions; returns each node's time.

    Times are `time.monotonic`. Raises `TimedOut`.
    """
    signer = user()

    async def wait(address: str, transaction: str) -> float:
        request = receipt_envelope(signer, chain, transaction, WAIT_MS_MAX)
        async with NodeClient(address) as client:
            answer = await client.wait(request, timeout_s=WAIT_MS_MAX / 1000 + _ANSWER_S)
        if answer["status"] != Status.SUCCESS:
            raise TimedOut(f"{address} has no receipt of {transaction}: {answer}")
        return time.monotonic()

    async def wait_all(address: str) -> float:
        return max(await asyncio.gather(*(wait(address, each) for each in transactions)))

    async def everywhere() -> list[float]:
        return list(await asyncio.gather(*map(wait_all, nodes.addresses)))

    return asyncio.run(everywhere())


def verify(nodes: NodeProcesses, chain: str, transactions: int) -> int:
    """Stop the nodes and check their ledgers: the expected transactions, the same blocks.

    Returns the chain's height; raises `AmcastError` where a ledger holds anything else.
    """
    nodes.stop()
    ledgers = [_contents(nodes.ledger(n, chain)) for n in range(len(nodes.addresses))]
    hashes, seen = ledgers[0]
    if any(other != hashes for other, _ in ledgers):
        raise AmcastError(f"the ledgers of {chain} are not the same at all nodes")
    if seen != transactions:
        raise AmcastError(f"the ledgers of {chain} hold {seen} transactions, not {transactions}")
    return len(hashes)


def _contents(folder: Path) -> tuple[list[bytes], int]:
    """Read a ledger; returns its blocks' header hashes and its number of distinct transactions."""
    hashes: list[bytes] = []
    seen: set[str] = set()
    previous = None
    with Ledger.open(folder, read_only=True) as ledger:
        for number in range(ledger.base, ledger.height):
            block = Block.FromString(ledger.read(number))
            check_next(block, previous)
            previous = block.header
            hashes.append(header_hash(block.header))
            if number:
                seen.update(transaction_id(envelope) for envelope in block.data.data)
    return hashes, len(seen)


def _append(producer: Producer, maker: Maker, chain: str, transactions: int) -> str:
    """Append transactions to a chain's log, as a node's ingress does; returns the last ID."""
    receipts = []
    for first in range(0, transactions, _BATCH_TRANSACTIONS):
        batch = [maker.make(chain) for _ in range(min(_BATCH_TRANSACTIONS, transactions - first))]
        records = [
            encode(Regular(made.envelope, config_seq=0, kind=RegularKind.NORMAL)) for made in batch
        ]
        receipts.append(producer.multicast_all(records, to=[chain]))
    for receipt in receipts:
        receipt.accepted(_ACCEPTED_S)
    return batch[-1].transaction


def _sent(sender: ClientProcess, task: Submit) -> SubmitResult:
    """Let a client submit everything; returns its result once all is acknowledged."""
    sender.tell()
    return SubmitResult(**sender.answer(task.timeout_s + _ANSWER_S))


def _latencies(name: str, result: SubmitResult) -> Figures:
    histogram = Latencies()
    histogram.add(result.latencies)
    p50, p99 = histogram.percentile([50.0, 99.0])
    return {f"{name}_p50_ms": p50, f"{name}_p99_ms": p99}


def _arrivals(sent: Path, times: Path, warm_up: int) -> Iterator[int]:
    """Give the time from the intended time to the arrival, of all but the first `warm_up`."""
    lines = (line.split() for line in times.read_text(encoding="ascii").splitlines())
    came = {transaction: int(came_ns) for transaction, came_ns in lines}
    intended: dict[int, int] = {}
    for line in FollowedNotes(sent).new():
        if "begun" in line:
            intended[line["begun"]] = line["ns"]
        elif line.get("call", -1) >= warm_up:
            yield came[line["id"]] - intended[line["call"]]
