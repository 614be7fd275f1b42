"""A process that broadcasts fresh transactions to nodes: `bench.orderer.clients.Sender` starts it.

One JSON line comes in, what to send (`SendOrder`); "ready" goes out once all is made that is to be
made before. Another line lets it begin; then how many are acknowledged goes out from time to time,
and at the end a `SendResult`. All times are this machine's monotonic clock, in nanoseconds.

    taken          given to a stream; it may be sent, and it may be ordered
    acknowledged   answered with 200
    given back     its stream ended before its answer: sent again, by whichever stream is next
    intended       when it was to be sent: at a rate, its turn; else when it was taken
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.harness.histogram import Latencies
from bench.orderer.transactions import Made, Maker
from multicast.errors import AmcastError, TimedOut
from ordering_osn.api.channels import Status
from ordering_osn.api.grpc_server import NodeClient

_NS = 10**9
_RECONNECT_S = 0.2
_TOLD_EVERY_S = 0.2


@dataclass(frozen=True, slots=True)
class SendOrder:
    """What to send: so many transactions, in turns for these chains, over these nodes.

    `streams`         to each node
    `window`          how many of a stream may be unanswered at once
    `rate`            transactions/s, at intended times; None: as fast as the answers come
    `prepared`        made before the start rather than as it goes
    `sent`            a file: a line of ID, chains and intended time for each that is acknowledged
    """

    addresses: Sequence[str]
    chains: Sequence[str]
    transactions: int
    material: str
    streams: int = 1
    window: int = 64
    rate: float | None = None
    prepared: bool = True
    sent: str | None = None
    timeout_s: float = 600.0


@dataclass(slots=True)
class SendResult:
    """What became of it; `refused` by status, `retried` counts what was sent again."""

    acknowledged: int = 0
    retried: int = 0
    streams_ended: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    last: list[str] = field(default_factory=list)
    """The ID that each stream had acknowledged last, as often as it was opened."""
    began_ns: int = 0
    ended_ns: int = 0
    latencies: str = ""
    """From the intended time to the acknowledgement, as `bench.harness.histogram` encodes them."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A transaction on its way."""

    made: Made
    channel: str
    intended_ns: int


class Supply:
    """Hands out what is to be sent, and what came back; knows when all is acknowledged."""

    def __init__(self, made: Iterator[tuple[str, Made]], rate: float | None) -> None:
        self._made = made
        self._rate = rate
        self._next = 0
        self._back: deque[Pending] = deque()
        self._flying = 0
        self._dry = False
        self._changed = asyncio.Event()
        self._began_ns = time.monotonic_ns()

    @property
    def done(self) -> bool:
        """Whether nothing is left to send or to be answered."""
        return self._dry and not self._back and not self._flying

    async def take(self) -> Pending | None:
        """Give the next one, at its time; None once all is answered."""
        while not self.done:
            if self._back:
                self._flying += 1
                return self._back.popleft()
            if not self._dry:
                pending = self._fresh()
                if pending is not None:
                    self._flying += 1
                    await self._turn(pending)
                    return pending
                continue
            self._changed.clear()
            await self._changed.wait()
        return None

    async def _turn(self, pending: Pending) -> None:
        wait_s = (pending.intended_ns - time.monotonic_ns()) / _NS
        if wait_s <= 0:
            return
        try:
            await asyncio.sleep(wait_s)
        except asyncio.CancelledError:  # the stream that wanted it has ended
            self.give_back([pending])
            raise

    def give_back(self, pending: Iterable[Pending]) -> int:
        """Have these sent again; give how many."""
        before = len(self._back)
        self._back.extend(pending)
        count = len(self._back) - before
        self._flying -= count
        self._changed.set()
        return count

    def settle(self) -> None:
        """Count one as answered."""
        self._flying -= 1
        if self.done:
            self._changed.set()

    def _fresh(self) -> Pending | None:
        found = next(self._made, None)
        if found is None:
            self._dry = True
            return None
        intended = time.monotonic_ns()
        if self._rate is not None:
            intended = self._began_ns + int(self._next / self._rate * _NS)
        self._next += 1
        return Pending(found[1], found[0], intended)


class Sending:
    """The streams to all nodes, and what they were answered."""

    def __init__(self, order: SendOrder, supply: Supply) -> None:
        self._order = order
        self._supply = supply
        self.refused: Counter[str] = Counter()
        self._latencies: list[int] = []
        self._lines: list[str] = []
        self.told = SendResult()

    async def run(self) -> SendResult:
        """Send until all is answered; raises `TimedOut`."""
        told, order = self.told, self._order
        told.began_ns = time.monotonic_ns()
        streams = [
            asyncio.create_task(self._keep(address))
            for address in order.addresses
            for _ in range(order.streams)
        ]
        telling = asyncio.create_task(self._tell())
        try:
            async with asyncio.timeout(order.timeout_s):
                await asyncio.gather(*streams)
        except TimeoutError:
            raise TimedOut(
                f"{told.acknowledged} of {order.transactions} are acknowledged after "
                f"{order.timeout_s:g} s; refused: {dict(self.refused)}"
            ) from None
        finally:
            for task in (*streams, telling):
                task.cancel()
        told.refused = dict(self.refused)
        histogram = Latencies()
        histogram.record(self._latencies)
        told.latencies = histogram.encoded()
        return told

    def write(self, file: Path) -> None:
        """Write down what was acknowledged, as `SendOrder.sent` says."""
        file.write_text("".join(self._lines), encoding="ascii")

    async def _keep(self, address: str) -> None:
        """Hold a stream to a node, and open it again as often as it ends."""
        while not self._supply.done:
            flying: deque[Pending] = deque()
            attempt = _Attempt(self._supply, flying, self._order.window)
            last = ""
            try:
                async with NodeClient(address) as client:
                    async for status, _ in client.broadcast(attempt.feed()):
                        pending = flying.popleft()
                        self._answered(pending, status)
                        attempt.room.release()
                        last = pending.made.transaction if status == Status.SUCCESS else last
            except (AmcastError, OSError):
                self.told.streams_ended += 1
            finally:
                attempt.over = True
                self.told.last += [last] if last else []
                self.told.retried += self._supply.give_back(flying)
            if not self._supply.done:
                await asyncio.sleep(_RECONNECT_S)

    def _answered(self, pending: Pending, status: int) -> None:
        now = time.monotonic_ns()
        if status == Status.SUCCESS:
            told = self.told
            told.acknowledged += 1
            told.ended_ns = now
            self._latencies.append(now - pending.intended_ns)
            if self._order.sent is not None:
                words = (pending.made.transaction, pending.channel, str(pending.intended_ns))
                self._lines.append(" ".join(words) + "\n")
            self._supply.settle()
            return
        self.refused[str(status)] += 1
        if status == Status.SERVICE_UNAVAILABLE:
            self.told.retried += self._supply.give_back([pending])
        else:
            self._supply.settle()

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(_TOLD_EVERY_S)
            _say({"acknowledged": self.told.acknowledged})


class _Attempt:
    """One stream's life: what it takes is in `flying` until it is answered."""

    def __init__(self, supply: Supply, flying: deque[Pending], window: int) -> None:
        self._supply = supply
        self._flying = flying
        self.room = asyncio.Semaphore(window)
        self.over = False

    async def feed(self) -> AsyncIterator[bytes]:
        """Yield envelopes, as there is room."""
        while True:
            await self.room.acquire()
            pending = await self._supply.take()
            if pending is None:
                return
            if self.over:  # the stream ended while this waited: nobody would look at `flying`
                self._supply.give_back([pending])
                return
            self._flying.append(pending)
            yield pending.made.envelope


def channels(order: SendOrder) -> Iterator[str]:
    """Name the channel of each transaction, in their order: the chains take turns."""
    return itertools.islice(itertools.cycle(order.chains), order.transactions)


def transactions(order: SendOrder) -> Iterator[tuple[str, Made]]:
    """Make what the order asks for: the channel, and the transaction."""
    maker = Maker.of(Path(order.material))
    for channel in channels(order):
        yield channel, maker.make(channel)


def _say(told: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


def send(order: SendOrder, made: Iterator[tuple[str, Made]]) -> SendResult:
    """Send all that was made; raises `TimedOut`."""
    sending = Sending(order, Supply(made, order.rate))
    told = asyncio.run(sending.run())
    if order.sent is not None:
        sending.write(Path(order.sent))
    return told


def main() -> None:
    """Read what to send, prepare it, wait for the start, send."""
    order = SendOrder(**json.loads(sys.stdin.readline()))
    made = transactions(order)
    if order.prepared:
        made = iter(list(made))
    _say({"ready": True})
    if not sys.stdin.readline():
        return
    try:
        _say({"told": asdict(send(order, made))})
    except AmcastError as error:
        _say({"error": str(error)})


if __name__ == "__main__":
    main()
