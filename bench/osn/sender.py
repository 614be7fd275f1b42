"""A client as a process: it sends transfers, as bundles or as separate transactions.

`ClientRun` starts it, kills it, and starts another in its place. It reads a `SendTask` as JSON from
its command line, and appends to a journal, a line before and a line after each transfer:

    b 17        transfer 17 begins: nothing of it was sent before this line
    a 17 ID     transfer 17 is acknowledged: as a bundle with this ID; or "-", all of its parts
    e           all transfers of the task are acknowledged

    bundles     the parts of a transfer in one bundle, the same bytes again until a node takes it
    separate    the parts of a transfer one after the other, each until a node takes it

A client that was killed knows nothing of its past: the next one goes on with the transfers that
have not begun. So what it had begun stays as it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from bench.osn import bank
from bench.osn.transactions import FOLDER, user
from collectors.testing.processes import end
from multicast.errors import AmcastError, TimedOut
from ordering_osn.api.channels import Status
from ordering_osn.api.connection_errors import ConnectionLost
from ordering_osn.api.grpc_server import NodeClient
from ordering_osn.client import BundleRefused, Client

BUNDLES, SEPARATE = "bundles", "separate"
_AGAIN_S = 0.2  # after no node took it: short compared with a node's restart


@dataclass(frozen=True, slots=True)
class SendTask:
    """Send the transfers `first` to `count` - 1 of a seed over these sets of chains.

    `rate`     transfers/s, at intended times from the start of this process
    `window`   transfers that have begun and are not acknowledged, at most
    """

    arm: str
    addresses: Sequence[str]
    sets: Sequence[Sequence[str]]
    seed: int
    count: int
    journal: str
    rate: float
    first: int = 0
    window: int = 64


class Journal:
    """What the clients of one arm have noted, read again and again while they write."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.begun = 0
        """How many transfers have begun; transfers begin in the order of their numbers."""
        self.acknowledged: dict[int, str] = {}
        """The bundle ID, or "-", by the transfer's number."""
        self.ended = False
        self._read = 0

    def look(self) -> None:
        """Read the new lines."""
        if not self.file.exists():
            return
        with self.file.open("rb") as lines:
            lines.seek(self._read)
            text = lines.read()
        whole = text.rfind(b"\n") + 1
        self._read += whole
        for line in text[:whole].decode("ascii").splitlines():
            kind, *words = line.split()
            if kind == "b":
                self.begun = int(words[0]) + 1
            elif kind == "a":
                self.acknowledged[int(words[0])] = words[1]
            else:
                self.ended = True


class ClientRun:
    """The clients of one arm, one after the other; a context manager that ends the last one."""

    def __init__(self, task: SendTask, log: Path) -> None:
        self._task = task
        self._log = log
        self.journal = Journal(Path(task.journal))
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            end(self._process)

    def start(self) -> None:
        """Start a client for the transfers that have not begun."""
        self.journal.look()
        task = replace(self._task, first=self.journal.begun)
        with self._log.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bench.osn.sender", json.dumps(asdict(task))],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )

    def kill(self) -> list[int]:
        """Kill the client; returns the transfers that it had begun and that nobody acknowledged."""
        assert self._process is not None, "the client was started"
        self._process.kill()
        self._process.wait(10)
        before = self.journal.begun
        self.journal.look()
        known = self.journal.acknowledged
        first = max(0, before - self._task.window)
        return [number for number in range(first, self.journal.begun) if number not in known]

    def check(self) -> None:
        """Raise `AmcastError` where the client has failed."""
        assert self._process is not None, "the client was started"
        status = self._process.poll()
        if status:
            log_end = self._log.read_text(errors="replace").strip()[-500:]
            raise AmcastError(f"the client has ended with {status}; its log ends: {log_end}")


# -- in the client's process -----------------------------------------------------------------------


class TransactionRefused(AmcastError):
    """A node refused a transaction for good; the text has the status and the reason."""


class NodeStreams:
    """A connection to each node, a stream for each envelope; an async context manager."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._nodes = [NodeClient(address) for address in addresses]
        self._turns = itertools.cycle(self._nodes)

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as opened:
            for node in self._nodes:
                await opened.enter_async_context(node)
            self._opened = opened.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._opened.aclose()

    async def submit(self, envelope: bytes) -> None:
        """Return once a node has answered 200; tries for ever. Raises `TransactionRefused`."""
        while True:
            for _ in self._nodes:
                status, info = await _answer_of(next(self._turns), envelope)
                if status == Status.SUCCESS:
                    return
                if status != Status.SERVICE_UNAVAILABLE:
                    raise TransactionRefused(f"a transaction was answered {status}: {info}")
            await asyncio.sleep(_AGAIN_S)


async def _answer_of(node: NodeClient, envelope: bytes) -> tuple[int, str]:
    """Send an envelope; returns its status, 503 where the stream ended before the answer."""
    try:
        answers = [answer async for answer in node.broadcast([envelope])]
    except (AmcastError, OSError) as error:
        return Status.SERVICE_UNAVAILABLE, str(error)
    return answers[0] if answers else (Status.SERVICE_UNAVAILABLE, "the stream has ended")


Send = Callable[[int], Awaitable[str]]


@contextlib.asynccontextmanager
async def separately(task: SendTask) -> AsyncIterator[Send]:
    """Give what sends the parts of a transfer one after the other."""
    signer = user(FOLDER)
    async with NodeStreams(task.addresses) as streams:

        async def send(number: int) -> str:
            made = bank.transfer(task.seed, number, task.sets)
            parts = bank.envelopes(made, signer=signer, now=datetime.now(UTC))
            for envelope in parts.values():
                await streams.submit(envelope)
            return "-"

        yield send


@contextlib.asynccontextmanager
async def bundled(task: SendTask) -> AsyncIterator[Send]:
    """Give what sends the parts of a transfer as one bundle; the nodes take turns to be the first.

    A bundle has the same ID wherever it is sent again, so it counts once.
    """
    signer = user(FOLDER)
    count = len(task.addresses)
    async with contextlib.AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(
                Client([*task.addresses[first:], *task.addresses[:first]], signer)
            )
            for first in range(count)
        ]

        async def send(number: int) -> str:
            client = clients[number % count]
            made = bank.transfer(task.seed, number, task.sets)
            parts = bank.envelopes(made, signer=signer, now=datetime.now(UTC))
            bundle = client.bundle(parts)
            answer = None
            while answer is None or answer.status == Status.SERVICE_UNAVAILABLE:
                with contextlib.suppress(ConnectionLost, TimedOut):
                    answer = await client.submit(bundle)
            if not answer.accepted:
                raise BundleRefused(answer)
            return bundle.id.hex()

        yield send


_ARMS = {BUNDLES: bundled, SEPARATE: separately}


async def run(task: SendTask, note: Callable[[str], None]) -> None:
    """Send all transfers of the task; returns when all are acknowledged."""
    numbers = iter(range(task.first, task.count))
    gate = asyncio.Lock()  # transfers begin one after the other, in the order of their numbers
    began = time.monotonic()

    async def begin() -> int | None:
        async with gate:
            number = next(numbers, None)
            if number is not None:
                intended = began + (number - task.first) / task.rate
                await asyncio.sleep(max(0.0, intended - time.monotonic()))
                note(f"b {number}\n")
            return number

    async def work() -> None:
        while (number := await begin()) is not None:
            note(f"a {number} {await send(number)}\n")

    async with _ARMS[task.arm](task) as send, asyncio.TaskGroup() as workers:
        for _ in range(task.window):
            workers.create_task(work())
    note("e\n")


def main(arguments: Sequence[str]) -> int:
    """Run a task; returns the exit code."""
    task = SendTask(**json.loads(arguments[0]))
    journal = os.open(task.journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def note(line: str) -> None:
        os.write(journal, line.encode("ascii"))

    failed = 0
    try:
        asyncio.run(run(task, note))
    except* AmcastError as errors:
        sys.stderr.write("".join(f"{error}\n" for error in errors.exceptions))
        failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
