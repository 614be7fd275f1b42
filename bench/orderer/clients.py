"""The clients' processes, from outside: who sends (`send`), and who reads (`read`)."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from bench.harness.hosts import ClientProcess
from bench.orderer import read, send

_READY_S = 120.0
_MORE_S = 30.0


class BenchProcess(ClientProcess):
    """A process of one of the two modules; ready once it is entered. `go` lets it begin."""

    def __init__(
        self, name: str, order: send.SendOrder | read.ReadOrder, folder: Path, number: int = 0
    ) -> None:
        super().__init__(f"{name}-{number}", asdict(order), folder)
        self._module = f"bench.orderer.{name}"

    def __enter__(self) -> Self:
        with self._log.open("wb") as err:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self._module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=err,
                text=True,
            )
        threading.Thread(target=self._read, daemon=True).start()
        self.tell(self._spec)
        try:
            self.answer(_READY_S)
        except BaseException:
            self.__exit__()
            raise
        return self

    def go(self) -> None:
        """Let it begin."""
        self.tell({"go": True})

    def progress(self, timeout_s: float) -> Iterator[dict[str, Any]]:
        """Give what it says on its way, until it has told what came of it."""
        while "told" not in (found := self.answer(timeout_s + _MORE_S)):
            yield found
        self.found: dict[str, Any] = found["told"]


class SenderProcess(BenchProcess):
    """Sends what its order says."""

    def __init__(self, order: send.SendOrder, folder: Path, number: int = 0) -> None:
        super().__init__("send", order, folder, number)
        self._timeout_s = order.timeout_s

    def acknowledged(self) -> Iterator[int]:
        """Give how many are acknowledged, some times a second, until all are answered."""
        for said in self.progress(self._timeout_s):
            yield said["acknowledged"]

    def told(self) -> send.SendResult:
        """Give what came of it, once all is answered."""
        for _ in self.acknowledged():
            pass
        return self.outcome()

    def outcome(self) -> send.SendResult:
        """Give what came of it, AFTER `acknowledged` has ended."""
        return send.SendResult(**self.found)


class ReaderProcess(BenchProcess):
    """Reads what its order says."""

    def __init__(self, order: read.ReadOrder, folder: Path, number: int = 0) -> None:
        super().__init__("read", order, folder, number)
        self._timeout_s = order.timeout_s

    def told(self) -> read.ReadResult:
        """Wait until all is read."""
        for _ in self.progress(self._timeout_s):
            pass
        return read.ReadResult(**self.found)
