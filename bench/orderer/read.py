"""A process that reads chains by Deliver: `bench.orderer.clients.Reader` starts it.

One JSON line comes in, what to read (`ReadOrder`); "ready" goes out, another line lets it begin,
and a `ReadResult` goes out at the end. Each reader follows one chain at one node, and where its
stream ends too early it opens another one at the block it needs next. All times are this machine's
monotonic clock, in nanoseconds.

    blocks     blocks and bytes are counted; nothing is looked into
    times      when each transaction came, by its ID
    history    each block must follow the one before it (`blocks.check_next`); IDs and hashes stay
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

from bench.orderer.transactions import user
from multicast.errors import AmcastError, TimedOut
from ordering_osn.api.grpc_server import NodeClient
from ordering_osn.api.seek import ENDLESS, seek_envelope
from ordering_osn.chain.blocks import check_next, header_hash
from ordering_osn.chain.transactions import transaction_id
from ordering_osn.protos import Block, BlockHeader

_RECONNECT_S = 0.2


@dataclass(frozen=True, slots=True)
class ReadOrder:
    """What to read, each (address, chain) by so many `copies`, from block 0 on.

    A reader ends after block `stop` (where not None), or once it has seen `transactions[chain]`
    transactions. What `times` and `history` find goes to files in `folder`, one for each of
    `readers`, by its place in the list.
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
    """What came of all readers; `ended_ns` of each reader in the order of the list."""

    blocks: int = 0
    payload_bytes: int = 0
    streams_ended: int = 0
    began_ns: int = 0
    ended_ns: list[int] = field(default_factory=list)


class BlockSink(Protocol):
    """What is done with the blocks of one reader."""

    def take(self, raw: bytes) -> int:
        """Take the next block; give how many transactions are in it, as far as that matters."""

    def finish(self) -> None:
        """Write down what was found."""


class Counted:
    """Looks into nothing."""

    def take(self, raw: bytes) -> int:  # noqa: ARG002 - a sink's
        """Take the next block."""
        return 0

    def finish(self) -> None:
        """Write nothing down."""


class Times:
    """Notes when each transaction came: lines of ID and time."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._blocks: list[tuple[int, bytes]] = []

    def take(self, raw: bytes) -> int:
        """Take the next block; its IDs are read at the end, when nothing is timed any more."""
        self._blocks.append((time.monotonic_ns(), raw))
        return len(Block.FromString(raw).data.data) if len(self._blocks) > 1 else 0

    def finish(self) -> None:
        """Write the lines."""
        with self._file.open("w", encoding="ascii") as lines:
            for came, raw in self._blocks[1:]:
                for envelope in Block.FromString(raw).data.data:
                    lines.write(f"{transaction_id(envelope)} {came}\n")


class ChainHistory:
    """Checks the chain, and writes a line a block: its header's hash, and the IDs in it."""

    def __init__(self, file: Path) -> None:
        self._lines = file.open("w", encoding="ascii")
        self._previous: BlockHeader | None = None

    def take(self, raw: bytes) -> int:
        """Take the next block; raises `BrokenChain` where it is not the next one."""
        block = Block.FromString(raw)
        check_next(block, self._previous)
        genesis = self._previous is None
        self._previous = block.header
        found = [] if genesis else [transaction_id(envelope) for envelope in block.data.data]
        self._lines.write(" ".join([header_hash(block.header).hex(), *found]) + "\n")
        return len(found)

    def finish(self) -> None:
        """Close the file."""
        self._lines.close()


class ReaderGroup:
    """All readers of an order."""

    def __init__(self, order: ReadOrder) -> None:
        self._order = order
        self._signer = user(Path(order.material))
        self.told = ReadResult()

    async def run(self) -> ReadResult:
        """Read until every reader has all; raises `TimedOut`."""
        order, told = self._order, self.told
        told.began_ns = time.monotonic_ns()
        readers = [
            asyncio.create_task(self._follow(address, chain, self._sink(number)))
            for number, (address, chain) in enumerate(order.readers)
            for _ in range(order.copies)
        ]
        try:
            async with asyncio.timeout(order.timeout_s):
                told.ended_ns = list(await asyncio.gather(*readers))
        except TimeoutError:
            missing = sum(not one.done() for one in readers)
            raise TimedOut(
                f"{missing} of {len(readers)} readers have not all after {order.timeout_s:g} s"
            ) from None
        finally:
            for one in readers:
                one.cancel()
        return told

    def _sink(self, number: int) -> BlockSink:
        file = Path(self._order.folder) / f"{self._order.mode}-{number}"
        match self._order.mode:
            case "times":
                return Times(file)
            case "history":
                return ChainHistory(file)
        return Counted()

    async def _follow(self, address: str, chain: str, sink: BlockSink) -> int:
        """Read one chain to its end; give the time."""
        order, told = self._order, self.told
        following, seen = 0, 0
        stop = ENDLESS if order.stop is None else order.stop
        while True:
            try:
                async with NodeClient(address) as client:
                    request = seek_envelope(self._signer, chain, following, stop)
                    async for raw in client.deliver(request):
                        if isinstance(raw, int):
                            continue
                        told.blocks += 1
                        told.payload_bytes += len(raw)
                        seen += sink.take(raw)
                        following += 1
                        if following > stop or (
                            order.stop is None and seen >= order.transactions[chain]
                        ):
                            ended = time.monotonic_ns()
                            sink.finish()
                            return ended
            except (AmcastError, OSError):
                told.streams_ended += 1
            await asyncio.sleep(_RECONNECT_S)


def _say(told: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Read what to read, wait for the start, read."""
    order = ReadOrder(**json.loads(sys.stdin.readline()))
    reading = ReaderGroup(order)
    _say({"ready": True})
    if not sys.stdin.readline():
        return
    try:
        _say({"told": asdict(asyncio.run(reading.run()))})
    except (AmcastError, ValueError) as error:
        _say({"error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    main()
