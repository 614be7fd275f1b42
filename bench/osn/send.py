"""A process that sends fresh transactions; `clients.SenderProcess` starts it.

It reads a `SendOrder` as one JSON line from stdin, prepares the transactions if the order says so,
and prints "ready". It starts at the next line, prints how many are acknowledged from time to time,
and a `SendResult` at the end. All times are the machine's monotonic clock, in nanoseconds.

    taken          given to a stream; it may have been sent and ordered
    acknowledged   answered with 200
    given back     its stream ended before the answer, or answered 503; any stream sends it again
    intended       the time at which it should be sent: at a rate, its turn; else when it was taken
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
from bench.osn.transactions import Made, Maker
from multicast.errors import AmcastError, TimedOut
from ordering_osn.api.channels import Status
from ordering_osn.api.grpc_server import NodeClient

_NS_PER_S = 10**9
_RECONNECT_S = 0.2  # between attempts to reach a node that is down: short compared with a restart
_PROGRESS_S = 0.2  # between progress messages


@dataclass(frozen=True, slots=True)
class SendOrder:
    """What to send: `transactions` transactions, to `chains` in turn, over all nodes.

    `streams`         streams to each node
    `window`          unanswered transactions in a stream, at most
    `rate`            transactions/s, at intended times; None: as fast as answers arrive
    `prepared`        whether they are made before the start
    `sent`            a file to write: ID, chain and intended time of each acknowledged transaction
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
    """The result; `refused` counts by status, `retried` counts transactions sent again."""

    acknowledged: int = 0
    retried: int = 0
    streams_ended: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    last: dict[str, list[str]] = field(default_factory=dict)
    """By chain: the last ID acknowledged on each stream, one for each time it was opened."""
    began_ns: int = 0
    ended_ns: int = 0
    latencies: str = ""
    """From intended time to acknowledgement, encoded by `bench.harness.histogram`."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A transaction that is not acknowledged yet."""

    made: Made
    channel: str
    intended_ns: int


class Supply:
    """Hands out transactions, first those given back; knows when all are settled."""

    def __init__(self, made: Iterator[tuple[str, Made]], rate: float | None) -> None:
        self._made = made
        self._rate = rate
        self._next = 0
        self._returned: deque[Pending] = deque()
        self._unanswered = 0
        self._exhausted = False
        self._changed = asyncio.Event()
        self._began_ns = time.monotonic_ns()

    @property
    def done(self) -> bool:
        """Whether nothing is left to send or unanswered."""
        return self._exhausted and not self._returned and not self._unanswered

    async def take(self) -> Pending | None:
        """Return the next one, at its intended time; None once all are answered."""
        while not self.done:
            if self._returned:
                self._unanswered += 1
                return self._returned.popleft()
            if not self._exhausted:
                pending = self._fresh()
                if pending is not None:
                    self._unanswered += 1
                    await self._wait_for_turn(pending)
                    return pending
                continue
            self._changed.clear()
            await self._changed.wait()
        return None

    async def _wait_for_turn(self, pending: Pending) -> None:
        wait_s = (pending.intended_ns - time.monotonic_ns()) / _NS_PER_S
        if wait_s <= 0:
            return
        try:
            await asyncio.sleep(wait_s)
        except asyncio.CancelledError:  # the stream that took it has ended
            self.give_back([pending])
            raise

    def give_back(self, pending: Iterable[Pending]) -> int:
        """Hand these out again; returns how many."""
        before = len(self._returned)
        self._returned.extend(pending)
        count = len(self._returned) - before
        self._unanswered -= count
        self._changed.set()
        return count

    def settle(self) -> None:
        """Record that one was answered."""
        self._unanswered -= 1
        if self.done:
            self._changed.set()

    def _fresh(self) -> Pending | None:
        fresh = next(self._made, None)
        if fresh is None:
            self._exhausted = True
            return None
        intended = time.monotonic_ns()
        if self._rate is not None:
            intended = self._began_ns + int(self._next / self._rate * _NS_PER_S)
        self._next += 1
        return Pending(fresh[1], fresh[0], intended)


class Sending:
    """The streams to all nodes, and their answers."""

    def __init__(self, order: SendOrder, supply: Supply) -> None:
        self._order = order
        self._supply = supply
        self.refused: Counter[str] = Counter()
        self._latencies: list[int] = []
        self._lines: list[str] = []
        self.result = SendResult()

    async def run(self) -> SendResult:
        """Send until all are answered; raises `TimedOut`."""
        result, order = self.result, self._order
        result.began_ns = time.monotonic_ns()
        streams = [
            asyncio.create_task(self._keep(address))
            for address in order.addresses
            for _ in range(order.streams)
        ]
        reporting = asyncio.create_task(self._report())
        try:
            async with asyncio.timeout(order.timeout_s):
                await asyncio.gather(*streams)
        except TimeoutError:
            raise TimedOut(
                f"{result.acknowledged} of {order.transactions} are acknowledged after "
                f"{order.timeout_s:g} s; refused: {dict(self.refused)}"
            ) from None
        finally:
            for task in (*streams, reporting):
                task.cancel()
        result.refused = dict(self.refused)
        histogram = Latencies()
        histogram.record(self._latencies)
        result.latencies = histogram.encoded()
        return result

    def write(self, file: Path) -> None:
        """Write the acknowledged transactions, as `SendOrder.sent` says."""
        file.write_text("".join(self._lines), encoding="ascii")

    async def _keep(self, address: str) -> None:
        """Keep a stream to a node open: reopen it whenever it ends."""
        while not self._supply.done:
            unanswered: deque[Pending] = deque()
            attempt = _Attempt(self._supply, unanswered, self._order.window)
            last: dict[str, str] = {}
            try:
                async with NodeClient(address) as client:
                    async for status, _ in client.broadcast(attempt.feed()):
                        pending = unanswered.popleft()
                        self._answered(pending, status)
                        attempt.window.release()
                        if status == Status.SUCCESS:
                            last[pending.channel] = pending.made.transaction
            except (AmcastError, OSError):
                self.result.streams_ended += 1
            finally:
                attempt.over = True
                for channel, transaction in last.items():
                    self.result.last.setdefault(channel, []).append(transaction)
                self.result.retried += self._supply.give_back(unanswered)
            if not self._supply.done:
                await asyncio.sleep(_RECONNECT_S)

    def _answered(self, pending: Pending, status: int) -> None:
        now = time.monotonic_ns()
        if status == Status.SUCCESS:
            result = self.result
            result.acknowledged += 1
            result.ended_ns = now
            self._latencies.append(now - pending.intended_ns)
            if self._order.sent is not None:
                words = (pending.made.transaction, pending.channel, str(pending.intended_ns))
                self._lines.append(" ".join(words) + "\n")
            self._supply.settle()
            return
        self.refused[str(status)] += 1
        if status == Status.SERVICE_UNAVAILABLE:
            self.result.retried += self._supply.give_back([pending])
        else:
            self._supply.settle()

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(_PROGRESS_S)
            _say({"acknowledged": self.result.acknowledged})


class _Attempt:
    """One stream from opening to end: what it takes is in `unanswered` until answered."""

    def __init__(self, supply: Supply, unanswered: deque[Pending], window: int) -> None:
        self._supply = supply
        self._unanswered = unanswered
        self.window = asyncio.Semaphore(window)
        self.over = False

    async def feed(self) -> AsyncIterator[bytes]:
        """Yield envelopes as the window allows."""
        while True:
            await self.window.acquire()
            pending = await self._supply.take()
            if pending is None:
                return
            if self.over:  # the stream ended meanwhile: `unanswered` was given back already
                self._supply.give_back([pending])
                return
            self._unanswered.append(pending)
            yield pending.made.envelope


def channels(order: SendOrder) -> Iterator[str]:
    """Yield the channel of each transaction, in order: the chains take turns."""
    return itertools.islice(itertools.cycle(order.chains), order.transactions)


def transactions(order: SendOrder) -> Iterator[tuple[str, Made]]:
    """Make the transactions of an order: yields (channel, transaction)."""
    maker = Maker.of(Path(order.material))
    for channel in channels(order):
        yield channel, maker.make(channel)


def _say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def send(order: SendOrder, made: Iterator[tuple[str, Made]]) -> SendResult:
    """Send all of `made`; raises `TimedOut`."""
    sending = Sending(order, Supply(made, order.rate))
    result = asyncio.run(sending.run())
    if order.sent is not None:
        sending.write(Path(order.sent))
    return result


def main() -> None:
    """Read the order, prepare it, wait for the start, send."""
    order = SendOrder(**json.loads(sys.stdin.readline()))
    made = transactions(order)
    if order.prepared:
        made = iter(list(made))
    _say({"ready": True})
    if not sys.stdin.readline():
        return
    try:
        _say({"result": asdict(send(order, made))})
    except AmcastError as error:
        _say({"error": str(error)})


if __name__ == "__main__":
    main()
