"""The clients of the ordering service, as roles of `bench.harness.client`.

    submit        transactions of one chain after the other, or transfers between banks, as bundles
                  or as separate transactions
    read_blocks   a reader of one chain at one node

A role answers that it is ready, waits for a command, and answers with its result. Times are the
machine's monotonic clock, in nanoseconds.

    begun     numbers begin in turn, at their intended times: at a rate, each its own; else at once
    again     what a node does not take, or has not answered when its stream ends, goes to any
              stream again, with the same bytes; a node knows it by its transaction ID
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Self

from bench.harness.client import Notes, Talk
from bench.harness.histogram import Latencies
from bench.osn import bank
from bench.osn.transactions import Made, Maker, user
from multicast.errors import AmcastError, TimedOut
from ordering_osn.api.channels import Status
from ordering_osn.api.connection_errors import ConnectionLost
from ordering_osn.api.grpc_client import NodeClient
from ordering_osn.api.seek import ENDLESS, seek_envelope
from ordering_osn.chain.transactions import transaction_id
from ordering_osn.client import BundleRefused, Client
from ordering_osn.protos import Block

TRANSACTIONS, BUNDLES, SEPARATE = "transactions", "bundles", "separate"
_NS = 10**9
_AGAIN_S = 0.2  # until a stream is opened again: short compared with a node's restart


class TransactionRefused(AmcastError):
    """A node refused a transaction for good; the text has the status and the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submit:
    """Submit the numbers `first` to `count` - 1, as `what`; a number has the chains of its set.

    `rate`       numbers/s; None: as fast as they are acknowledged
    `window`     numbers that have begun and are not acknowledged, at most
    `streams`    to each node
    `notes`      a file to go on with: each number before it begins, and once it is acknowledged,
                 with its ID (of the transaction, the bundle; none of several transactions)
    `prepared`   whether transactions are made before the start
    """

    what: str
    addresses: Sequence[str]
    sets: Sequence[Sequence[str]]
    count: int
    first: int = 0
    seed: int = 0
    rate: float | None = None
    window: int = 64
    streams: int = 1
    notes: str = ""
    prepared: bool = False
    timeout_s: float = 600.0


@dataclass(slots=True)
class SubmitResult:
    """What a client has submitted."""

    acknowledged: int = 0
    last: dict[str, str] = field(default_factory=dict)
    """By stream: the ID of the last transaction that was acknowledged there."""
    began_ns: int = 0
    ended_ns: int = 0
    latencies: str = ""
    """From the intended time to the acknowledgement, encoded by `bench.harness.histogram`."""


class _Sent(NamedTuple):
    envelope: bytes
    stream: asyncio.Future[int]  # the stream on which it was acknowledged


class NodeStreams:
    """Streams to all nodes, which are opened again when they end; an async context manager."""

    def __init__(
        self, addresses: Sequence[str], *, streams: int = 1, window: int | None = None
    ) -> None:
        self._addresses = [address for address in addresses for _ in range(streams)]
        self._window = window or 1 << 30
        self._waiting: asyncio.Queue[_Sent] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        for number, address in enumerate(self._addresses):
            self._tasks.append(asyncio.create_task(self._keep(number, address)))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def submit(self, envelope: bytes) -> int:
        """Return the stream that a node answered 200 on. Raises `TransactionRefused`."""
        sent = _Sent(envelope, asyncio.get_running_loop().create_future())
        self._waiting.put_nowait(sent)
        return await sent.stream

    async def _keep(self, number: int, address: str) -> None:
        while True:
            attempt = _Attempt(self._waiting, self._window)
            with contextlib.suppress(AmcastError, OSError):
                async with NodeClient(address) as client:
                    async for status, info in client.broadcast(attempt.feed()):
                        if status == Status.SERVICE_UNAVAILABLE:  # the stream ends after it
                            continue
                        self._answered(attempt.unanswered.popleft(), number, status, info)
                        attempt.room.release()
            attempt.over = True
            for sent in attempt.unanswered:
                self._waiting.put_nowait(sent)
            await asyncio.sleep(_AGAIN_S)

    def _answered(self, sent: _Sent, number: int, status: int, info: str) -> None:
        if sent.stream.done():  # its sender was cancelled
            return
        if status == Status.SUCCESS:
            sent.stream.set_result(number)
        else:
            refused = TransactionRefused(f"a transaction was answered {status}: {info}")
            sent.stream.set_exception(refused)


class _Attempt:
    """One stream from its opening to its end: what it has taken, and nobody has answered."""

    def __init__(self, waiting: asyncio.Queue[_Sent], window: int) -> None:
        self._waiting = waiting
        self.room = asyncio.Semaphore(window)
        self.unanswered: deque[_Sent] = deque()
        self.over = False

    async def feed(self) -> AsyncIterator[bytes]:
        """Yield envelopes as the window allows."""
        while True:
            await self.room.acquire()
            sent = await self._waiting.get()
            if self.over:  # the stream ended meanwhile
                self._waiting.put_nowait(sent)
                return
            self.unanswered.append(sent)
            yield sent.envelope


# -- submitting ------------------------------------------------------------------------------------


class _Done(NamedTuple):
    """What became of a number: its ID, and the stream if one transaction was all of it."""

    id: str
    stream: int | None = None


Send = Callable[[int], Awaitable[_Done]]


@contextlib.asynccontextmanager
async def _transactions(task: Submit, streams: NodeStreams) -> AsyncIterator[Send]:
    """Give what sends one transaction for each number."""
    maker = Maker.of()
    chains = [chain for chain, *_ in task.sets]
    made: Iterator[Made] = (maker.make(chain) for chain in itertools.cycle(chains))
    if task.prepared:
        made = iter(list(itertools.islice(made, task.count - task.first)))

    async def send(_: int) -> _Done:
        transaction, envelope = next(made)
        return _Done(transaction, await streams.submit(envelope))

    yield send


@contextlib.asynccontextmanager
async def _separate(task: Submit, streams: NodeStreams) -> AsyncIterator[Send]:
    """Give what sends the parts of a transfer one after the other."""
    signer = user()

    async def send(number: int) -> _Done:
        made = bank.transfer(task.seed, number, task.sets)
        for envelope in bank.envelopes(made, signer=signer, now=datetime.now(UTC)).values():
            await streams.submit(envelope)
        return _Done("")

    yield send


@contextlib.asynccontextmanager
async def _bundles(task: Submit, _: NodeStreams) -> AsyncIterator[Send]:
    """Give what sends the parts of a transfer as one bundle; the nodes take turns to be the first.

    A bundle has the same ID wherever it is sent again, so it counts once.
    """
    signer, nodes = user(), task.addresses
    async with contextlib.AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(Client([*nodes[first:], *nodes[:first]], signer))
            for first in range(len(nodes))
        ]

        async def send(number: int) -> _Done:
            client = clients[number % len(clients)]
            made = bank.transfer(task.seed, number, task.sets)
            bundle = client.bundle(bank.envelopes(made, signer=signer, now=datetime.now(UTC)))
            answer = None
            while answer is None or answer.status == Status.SERVICE_UNAVAILABLE:
                with contextlib.suppress(ConnectionLost, TimedOut):
                    answer = await client.submit(bundle)
            if not answer.accepted:
                raise BundleRefused(answer)
            return _Done(bundle.id.hex())

        yield send


_WAYS = {TRANSACTIONS: _transactions, SEPARATE: _separate, BUNDLES: _bundles}


def submit(task: Submit, talk: Talk) -> None:
    """Submit all numbers; the answer is a `SubmitResult`."""
    try:
        asyncio.run(_submit_all(task, talk))
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def _submit_all(task: Submit, talk: Talk) -> None:
    notes = Notes(task.notes, goes_on=True) if task.notes else None
    window = -(-task.window // (len(task.addresses) * task.streams))
    streams = NodeStreams(task.addresses, streams=task.streams, window=window)
    async with _WAYS[task.what](task, streams) as send:
        talk.answer({"ready": True})
        if next(talk.commands(), None) is None:
            return
        async with streams:
            submitting = _Submitting(task, send, notes)
            try:
                async with asyncio.timeout(task.timeout_s):
                    await submitting.run()
            except TimeoutError:
                raise TimedOut(
                    f"{submitting.result.acknowledged} of {task.count - task.first} are "
                    f"acknowledged after {task.timeout_s:g} s"
                ) from None
    talk.answer(asdict(submitting.result))


class _Submitting:
    """All numbers of a task, from the first that begins to the last acknowledgement."""

    def __init__(self, task: Submit, send: Send, notes: Notes | None) -> None:
        self._task = task
        self._send = send
        self._notes = notes
        self._room = asyncio.Semaphore(task.window)
        self._latencies: list[int] = []
        self.result = SubmitResult()

    async def run(self) -> None:
        """Return when all are acknowledged."""
        task, result = self._task, self.result
        result.began_ns = time.monotonic_ns()
        async with asyncio.TaskGroup() as sending:
            for number in range(task.first, task.count):
                await self._room.acquire()
                intended = time.monotonic_ns()
                if task.rate is not None:
                    intended = result.began_ns + int((number - task.first) / task.rate * _NS)
                    await asyncio.sleep(max(0, intended - time.monotonic_ns()) / _NS)
                self._note(begun=number, ns=intended)
                sending.create_task(self._finish(number, intended))
        self._note(end=True, ns=time.monotonic_ns())
        histogram = Latencies()
        histogram.record(self._latencies)
        result.latencies = histogram.encoded()

    async def _finish(self, number: int, intended: int) -> None:
        done = await self._send(number)
        result = self.result
        result.ended_ns = time.monotonic_ns()
        result.acknowledged += 1
        self._latencies.append(result.ended_ns - intended)
        if done.stream is not None:
            result.last[str(done.stream)] = done.id
        self._note(call=number, id=done.id, ns=result.ended_ns)
        self._room.release()

    def _note(self, **line: Any) -> None:
        if self._notes is not None:
            self._notes.write(line)


# -- reading ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadBlocks:
    """Read a chain from a node until so many `transactions` have come, beside the genesis block.

    `times` is a file to write, with the ID of each transaction and the time at which it arrived.
    """

    address: str
    chain: str
    transactions: int
    times: str
    timeout_s: float


def read_blocks(task: ReadBlocks, talk: Talk) -> None:
    """Read them all; the answer comes once `times` is written."""
    talk.answer({"ready": True})
    if next(talk.commands(), None) is not None:
        arrived = asyncio.run(_arrived(task))
        Path(task.times).write_text("".join(_times(arrived)), encoding="ascii")
        talk.answer({"blocks": len(arrived)})


Arrived = list[tuple[int, bytes]]


async def _arrived(task: ReadBlocks) -> Arrived:
    """Return each block, with the time at which it came. Raises `TimedOut`."""
    signer, arrived, following, seen = user(), Arrived(), 0, 0
    try:
        async with asyncio.timeout(task.timeout_s):
            while seen < task.transactions:
                with contextlib.suppress(AmcastError, OSError):
                    async with NodeClient(task.address) as client:
                        request = seek_envelope(signer, task.chain, following, ENDLESS)
                        async for raw in client.deliver(request):
                            if isinstance(raw, int):
                                continue
                            if following:
                                arrived.append((time.monotonic_ns(), raw))
                                seen += len(Block.FromString(raw).data.data)
                            following += 1
                            if seen >= task.transactions:
                                return arrived
                await asyncio.sleep(_AGAIN_S)
    except TimeoutError:
        raise TimedOut(
            f"{seen} of {task.transactions} transactions have come after {task.timeout_s:g} s"
        ) from None
    return arrived


def _times(arrived: Sequence[tuple[int, bytes]]) -> Iterator[str]:
    """Yield a line for each transaction; decoded at the end, after the timed part."""
    for came, raw in arrived:
        for envelope in Block.FromString(raw).data.data:
            yield f"{transaction_id(envelope)} {came}\n"
