"""The ordering service's speed: each function gives the figures of one run, by their names.

    ordered      a log that holds all transactions is released to all nodes at once
    broadcast    envelopes that are signed and ready go to all nodes as fast as they answer
    latency      at a fixed rate, from when a transaction was to be sent to when its block came
    deliver      many readers of one chain at one node, from its first block on

A node has done its part when it gives a receipt for what was sent last: then that stands in its
ledger, and all before it. Afterwards all ledgers are opened: each must hold each
transaction, and all the same blocks; else there are no figures.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from bench.harness.figures import progress
from bench.harness.histogram import Latencies
from bench.harness.hosts import cpu_seconds, resident_bytes
from bench.orderer import read, send
from bench.orderer.clients import ReaderProcess, SenderProcess
from bench.orderer.nodes import NodeProcesses, OrdererStage
from bench.orderer.transactions import Maker, user
from multicast.errors import AmcastError, TimedOut
from multicast.producer import Producer
from ordering_osn.api.channels import Status
from ordering_osn.api.grpc_server import NodeClient
from ordering_osn.api.receipt_request import WAIT_MS_MAX, receipt_envelope
from ordering_osn.chain.blocks import check_next, header_hash
from ordering_osn.chain.records import Regular, RegularKind, encode
from ordering_osn.chain.transactions import transaction_id
from ordering_osn.ledger.ledger import Ledger
from ordering_osn.protos import Block

Figures = dict[str, float]
_ANSWER_S = 10.0
_BATCH = 500
_NS = 10**9
_MIB = 2**20


class RunCost:
    """The CPU seconds of the parts of a run, from here to `figures`."""

    def __init__(self, stage: OrdererStage, **others: Sequence[int]) -> None:
        self._pids = {"nodes": stage.nodes.pids, **stage.pids, **others}
        self._before = {name: cpu_seconds(pids) for name, pids in self._pids.items()}
        self._nodes = stage.nodes
        self._nodes.count_from_now()
        self._began = time.monotonic()

    def figures(self, transactions: int) -> Figures:
        """Give what each part took, in microseconds a transaction, and the cores it kept busy."""
        took = time.monotonic() - self._began
        self._nodes.count_until_now()
        found: Figures = {}
        for name, pids in self._pids.items():
            if pids:
                used = cpu_seconds(pids) - self._before[name]
                found[f"cpu_us_{name}"] = round(used / transactions * 1e6, 1)
                found[f"cores_{name}"] = round(used / took, 2)
        return found


def ordered(stage: OrdererStage, transactions: int, *, warm_up: int) -> Figures:
    """Release a log of so many transactions to nodes that stand frozen."""
    nodes, chain = stage.nodes, stage.nodes.service.chains[0]
    maker = Maker.of(nodes.service.material)
    nodes.start_all()
    with Producer(stage.bootstrap, topic=stage.topic, announce=False) as producer:
        if warm_up:
            progress(f"warming up with {warm_up} transactions")
            received(nodes, chain, [_append(producer, maker, chain, warm_up)])
        nodes.freeze()
        progress(f"appending {transactions} transactions to the log")
        last = _append(producer, maker, chain, transactions)
    progress("releasing the nodes")
    cost = RunCost(stage)
    began = time.monotonic()
    nodes.release()
    rates = [transactions / (when - began) for when in received(nodes, chain, [last])]
    costs = cost.figures(transactions)
    blocks = verify(stage, {chain: warm_up + transactions})
    return {
        "ordered_per_s": round(min(rates), 1),
        **{f"ordered_per_s_node_{number}": round(rate, 1) for number, rate in enumerate(rates)},
        "transactions": transactions,
        "blocks": blocks[chain],
        **costs,
    }


def broadcast(
    stage: OrdererStage, transactions: int, *, warm_up: int, streams: int, window: int
) -> Figures:
    """Send prepared transactions to all nodes at once, as fast as they are answered."""
    nodes, chain = stage.nodes, stage.nodes.service.chains[0]
    nodes.start_all()

    def order(count: int) -> send.SendOrder:
        return send.SendOrder(
            addresses=nodes.addresses,
            chains=[chain],
            transactions=count,
            material=str(nodes.service.material),
            streams=streams,
            window=window,
        )

    if warm_up:
        with SenderProcess(order(warm_up), nodes.folder) as sender:
            progress(f"warming up with {warm_up} transactions")
            sender.go()
            received(nodes, chain, _whole(sender.told(), warm_up).last)
    with SenderProcess(order(transactions), nodes.folder) as sender:
        progress(f"broadcasting {transactions} transactions")
        cost = RunCost(stage, clients=[sender.pid])
        sender.go()
        told = _whole(sender.told(), transactions)
        reached = received(nodes, chain, told.last)
        costs = cost.figures(transactions)
    blocks = verify(stage, {chain: warm_up + transactions})
    began = told.began_ns / _NS
    rates = [transactions / (when - began) for when in reached]
    return {
        "broadcast_per_s": round(min(rates), 1),
        **{f"broadcast_per_s_node_{number}": round(rate, 1) for number, rate in enumerate(rates)},
        "acknowledged_per_s": round(transactions / (told.ended_ns / _NS - began), 1),
        **_latencies("acknowledged", told),
        "transactions": transactions,
        "blocks": blocks[chain],
        "retried": told.retried,
        **costs,
    }


def latency(stage: OrdererStage, transactions: int, *, rate: float, warm_up: int) -> Figures:
    """Send at a rate to all nodes in turns; a reader at one node notes when the blocks come."""
    nodes, chain = stage.nodes, stage.nodes.service.chains[0]
    nodes.start_all()
    total = warm_up + transactions
    sent = nodes.folder / "sent"
    sending = send.SendOrder(
        addresses=nodes.addresses,
        chains=[chain],
        transactions=total,
        material=str(nodes.service.material),
        window=10_000,
        rate=rate,
        sent=str(sent),
    )
    reading = read.ReadOrder(
        readers=[(nodes.addresses[-1], chain)],
        mode="times",
        material=str(nodes.service.material),
        transactions={chain: total},
        folder=str(nodes.folder),
        timeout_s=total / rate + 120.0,
    )
    with (
        SenderProcess(sending, nodes.folder) as sender,
        ReaderProcess(reading, nodes.folder) as reader,
    ):
        progress(f"broadcasting {total} transactions at {rate:g}/s")
        cost = RunCost(stage, clients=[sender.pid, reader.pid])
        reader.go()
        sender.go()
        told = _whole(sender.told(), total)
        reader.told()
        costs = cost.figures(total)
    verify(stage, {chain: total})
    came, intended = _pairs(nodes.folder / "times-0", 1), _pairs(sent, 2)
    timed = sorted(intended, key=intended.__getitem__)[warm_up:]
    histogram = Latencies()
    histogram.record(came[one] - intended[one] for one in timed)
    p50, p99, p999 = histogram.percentile([50.0, 99.0, 99.9])
    return {
        "broadcast_to_block_p50_ms": p50,
        "broadcast_to_block_p99_ms": p99,
        "broadcast_to_block_p999_ms": p999,
        **_latencies("acknowledged", told),
        "rate": rate,
        "reached_rate": round(total / ((told.ended_ns - told.began_ns) / _NS), 1),
        "transactions": transactions,
        "retried": told.retried,
        **costs,
    }


def deliver(stage: OrdererStage, transactions: int, *, readers: int, processes: int) -> Figures:
    """Let many readers read a chain that is there, from one node, all at once."""
    nodes, chain = stage.nodes, stage.nodes.service.chains[0]
    nodes.start_all()
    height = 1 + transactions // nodes.service.messages_max
    with Producer(stage.bootstrap, topic=stage.topic, announce=False) as producer:
        progress(f"ordering {transactions} transactions")
        maker = Maker.of(nodes.service.material)
        received(nodes, chain, [_append(producer, maker, chain, transactions)])
    order = read.ReadOrder(
        readers=[(nodes.addresses[0], chain)],
        mode="blocks",
        material=str(nodes.service.material),
        copies=readers // processes,
        stop=height - 1,
    )
    with ExitStack() as stack:
        clients = [
            stack.enter_context(ReaderProcess(order, nodes.folder, number))
            for number in range(processes)
        ]
        before = resident_bytes(nodes.pids) / _MIB
        cost = RunCost(stage, clients=[client.pid for client in clients])
        progress(f"{readers} readers of {height} blocks")
        for client in clients:
            client.go()
        told = [client.told() for client in clients]
        costs = cost.figures(sum(one.blocks for one in told))
        peak = _peak_mib(nodes.pids[0])
    began = min(one.began_ns for one in told)
    ended = sorted(when for one in told for when in one.ended_ns)
    took = (ended[-1] - began) / _NS
    blocks, size = sum(one.blocks for one in told), sum(one.payload_bytes for one in told)
    return {
        "deliver_blocks_per_s": round(blocks / took, 1),
        "deliver_mb_per_s": round(size / took / 1e6, 1),
        "deliver_transactions_per_s": round(transactions * readers / took),
        "readers": readers,
        "blocks": height,
        "block_kb": round(size / blocks / 1e3, 1),
        "slowest_over_median": round((ended[-1] - began) / (ended[len(ended) // 2] - began), 3),
        "streams_ended": sum(one.streams_ended for one in told),
        "node_mib_before": round(before, 1),
        "node_mib_peak": round(peak, 1),
        **{name.replace("cpu_us", "cpu_us_per_block"): value for name, value in costs.items()},
    }


def received(nodes: NodeProcesses, chain: str, transactions: Sequence[str]) -> list[float]:
    """Wait at every node until it has written these transactions; give when, by `time.monotonic`.

    Raises `TimedOut`.
    """
    signer = user(nodes.service.material)

    async def wait(address: str, transaction: str) -> float:
        request = receipt_envelope(signer, chain, transaction, WAIT_MS_MAX)
        async with NodeClient(address) as client:
            answer = await client.wait(request, timeout_s=WAIT_MS_MAX / 1000 + _ANSWER_S)
        if answer["status"] != Status.SUCCESS:
            raise TimedOut(f"{address} has no receipt of {transaction}: {answer}")
        return time.monotonic()

    async def wait_all(address: str) -> float:
        return max(await asyncio.gather(*(wait(address, one) for one in transactions)))

    async def everywhere() -> list[float]:
        return list(await asyncio.gather(*(wait_all(address) for address in nodes.addresses)))

    return asyncio.run(everywhere())


def verify(stage: OrdererStage, transactions: Mapping[str, int]) -> dict[str, int]:
    """Stop the nodes and read their ledgers: so many transactions a chain, the same everywhere.

    Gives the chains' heights; raises `AmcastError` where a ledger holds anything else.
    """
    nodes = stage.nodes
    nodes.stop()
    heights = {}
    for chain, count in transactions.items():
        found = [_contents(nodes.ledger(n, chain)) for n in range(len(nodes.addresses))]
        hashes, seen = found[0]
        if any(other != hashes for other, _ in found):
            raise AmcastError(f"the ledgers of {chain} are not the same at all nodes")
        if seen != count:
            raise AmcastError(f"the ledgers of {chain} hold {seen} transactions, not {count}")
        heights[chain] = len(hashes)
    return heights


def _contents(folder: Path) -> tuple[list[bytes], int]:
    """Read a ledger: its blocks' header hashes, and how many different transactions it holds."""
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
    """Append transactions to a chain's log as a node's ingress does; give the ID of the last."""
    receipts = []
    for first in range(0, transactions, _BATCH):
        some = [maker.make(chain) for _ in range(min(_BATCH, transactions - first))]
        records = [
            encode(Regular(one.envelope, config_seq=0, kind=RegularKind.NORMAL)) for one in some
        ]
        receipts.append(producer.multicast_all(records, to=[chain]))
    for receipt in receipts:
        receipt.accepted(60.0)
    return some[-1].transaction


def _whole(result: send.SendResult, transactions: int) -> send.SendResult:
    """Give it back where all were acknowledged; a run with refusals has no figures."""
    if result.acknowledged != transactions:
        raise AmcastError(f"of {transactions} only {result.acknowledged} went in: {result.refused}")
    return result


def _latencies(name: str, result: send.SendResult) -> Figures:
    histogram = Latencies()
    histogram.add(result.latencies)
    p50, p99 = histogram.percentile([50.0, 99.0])
    return {f"{name}_p50_ms": p50, f"{name}_p99_ms": p99}


def _pairs(file: Path, value: int) -> dict[str, int]:
    """Read lines of words: an ID first, and a number in the column `value`."""
    lines = (line.split() for line in file.read_text(encoding="ascii").splitlines())
    return {words[0]: int(words[value]) for words in lines}


def _peak_mib(pid: int) -> float:
    """Give the greatest resident size that the kernel saw of a process."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024
