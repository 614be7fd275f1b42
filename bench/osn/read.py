"""A process that reads chains by Deliver; `bench.osn.clients.ReaderProcess` starts it.

It reads a `ReadOrder` as one JSON line from stdin, prints "ready", starts at the next line, and
prints a `ReadResult` at the end. Each reader follows one chain at one node; where its stream ends
too early, it opens another at the next block. All times are the machine's monotonic clock, in
nanoseconds. The modes:

    blocks     counts blocks and bytes, and decodes nothing
    times      records when each transaction arrived
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from bench.osn.transactions import user
from multicast.errors import AmcastError, TimedOut
from ordering_osn.api.grpc_server import NodeClient
from ordering_osn.api.seek import ENDLESS, seek_envelope
from ordering_osn.chain.transactions import transaction_id
from ordering_osn.protos import Block

_RECONNECT_S = 0.2  # between attempts to reach a node that is down: short compared with a restart


@dataclass(frozen=True, slots=True)
class ReadOrder:
    """What to read: `copies` readers for each (address, chain), from block 0 on.

    A reader ends after block `stop`, or where that is None, once it has seen `transactions[chain]`
    transactions. The mode `times` writes files to `folder`, one for each entry of `readers`,
    numbered by its index.
    """

    readers: Sequence[tuple[str, str]]
    mode: str
    material: str
    copies: int = 1
    stop: int | None = None
    transactions: dict[str, int] = field(default_factory=dict)
    folder: str = ""
    timeout_s: float = 600.0


@dataclass(slots=True)
class ReadResult:
    """The result of all readers; `ended_ns` has each reader's end, in the order of the list."""

    blocks: int = 0
    payload_bytes: int = 0
    streams_ended: int = 0
    began_ns: int = 0
    ended_ns: list[int] = field(default_factory=list)


class BlockSink(Protocol):
    """Processes the blocks of one reader."""

    def take(self, raw: bytes) -> int:
        """Take the next block; returns its transactions that count towards the reader's end."""

    def finish(self) -> None:
        """Write the file."""


class Counted:
    """Ignores the content of blocks."""

    def take(self, raw: bytes) -> int:  # noqa: ARG002 - a sink's
        """Take the next block."""
        return 0

    def finish(self) -> None:
        """Write nothing."""


class Times:
    """Records when each transaction arrived: lines of ID and time."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._blocks: list[tuple[int, bytes]] = []

    def take(self, raw: bytes) -> int:
        """Take the next block; its IDs are decoded at the end, after the timed part."""
        self._blocks.append((time.monotonic_ns(), raw))
        return len(Block.FromString(raw).data.data) if len(self._blocks) > 1 else 0

    def finish(self) -> None:
        """Write the lines."""
        with self._file.open("w", encoding="ascii") as lines:
            for came, raw in self._blocks[1:]:
                for envelope in Block.FromString(raw).data.data:
                    lines.write(f"{transaction_id(envelope)} {came}\n")


class ReaderGroup:
    """All readers of one `ReadOrder`."""

    def __init__(self, order: ReadOrder) -> None:
        self._order = order
        self._signer = user(Path(order.material))
        self.result = ReadResult()

    async def run(self) -> ReadResult:
        """Read until all readers are at their end; raises `TimedOut`."""
        order, result = self._order, self.result
        result.began_ns = time.monotonic_ns()
        readers = [
            asyncio.create_task(self._follow(address, chain, self._sink(number)))
            for number, (address, chain) in enumerate(order.readers)
            for _ in range(order.copies)
        ]
        try:
            async with asyncio.timeout(order.timeout_s):
                result.ended_ns = list(await asyncio.gather(*readers))
        except TimeoutError:
            missing = sum(not reader.done() for reader in readers)
            raise TimedOut(
                f"{missing} of {len(readers)} readers are not at their end "
                f"after {order.timeout_s:g} s"
            ) from None
        finally:
            for reader in readers:
                reader.cancel()
        return result

    def _sink(self, number: int) -> BlockSink:
        file = Path(self._order.folder) / f"{self._order.mode}-{number}"
        return Times(file) if self._order.mode == "times" else Counted()

    async def _follow(self, address: str, chain: str, sink: BlockSink) -> int:
        """Read one chain to its end; returns the time of the end in nanoseconds."""
        order, result = self._order, self.result
        following, seen = 0, 0
        stop = ENDLESS if order.stop is None else order.stop
        while True:
            try:
                async with NodeClient(address) as client:
                    request = seek_envelope(self._signer, chain, following, stop)
                    async for raw in client.deliver(request):
                        if isinstance(raw, int):
                            continue
                        result.blocks += 1
                        result.payload_bytes += len(raw)
                        seen += sink.take(raw)
                        following += 1
                        if following > stop or (
                            order.stop is None and seen >= order.transactions[chain]
                        ):
                            ended = time.monotonic_ns()
                            sink.finish()
                            return ended
            except (AmcastError, OSError):
                result.streams_ended += 1
            await asyncio.sleep(_RECONNECT_S)


def _say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Read the order, wait for the start, follow the chains."""
    order = ReadOrder(**json.loads(sys.stdin.readline()))
    reading = ReaderGroup(order)
    _say({"ready": True})
    if not sys.stdin.readline():
        return
    try:
        _say({"result": asdict(asyncio.run(reading.run()))})
    except (AmcastError, ValueError) as error:
        _say({"error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    main()
