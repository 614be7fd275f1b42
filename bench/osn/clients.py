"""Start and control the client processes: senders (`send.py`) and readers (`read.py`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from bench.harness.hosts import ClientProcess
from bench.osn import read, send

_READY_S = 120.0  # a sender makes and signs all its transactions first
_ANSWER_S = 30.0  # beyond the process's own time-out, for its message about it


class BenchProcess(ClientProcess):
    """A process of one of the two modules; ready when the context is entered. `go` starts it."""

    def __init__(
        self, name: str, order: send.SendOrder | read.ReadOrder, folder: Path, number: int = 0
    ) -> None:
        module = f"bench.osn.{name}"
        super().__init__(f"{name}-{number}", asdict(order), folder, module)

    def __enter__(self) -> Self:
        super().__enter__()
        try:
            self.answer(_READY_S)
        except BaseException:
            self.__exit__()
            raise
        return self

    def go(self) -> None:
        """Start the work."""
        self.tell({"go": True})

    def progress(self, timeout_s: float) -> Iterator[dict[str, Any]]:
        """Yield its progress messages, until it has sent its result."""
        while "result" not in (answer := self.answer(timeout_s + _ANSWER_S)):
            yield answer
        self._result: dict[str, Any] = answer["result"]


class SenderProcess(BenchProcess):
    """A process that sends what its `SendOrder` says."""

    def __init__(self, order: send.SendOrder, folder: Path, number: int = 0) -> None:
        super().__init__("send", order, folder, number)
        self._timeout_s = order.timeout_s

    def acknowledged(self) -> Iterator[int]:
        """Yield the number acknowledged, a few times a second, until all are answered."""
        for status in self.progress(self._timeout_s):
            yield status["acknowledged"]

    def wait_result(self) -> send.SendResult:
        """Wait until all is answered; returns the result."""
        for _ in self.acknowledged():
            pass
        return self.result()

    def result(self) -> send.SendResult:
        """Return the result, AFTER `acknowledged` has ended."""
        return send.SendResult(**self._result)


class ReaderProcess(BenchProcess):
    """A process that reads what its `ReadOrder` says."""

    def __init__(self, order: read.ReadOrder, folder: Path, number: int = 0) -> None:
        super().__init__("read", order, folder, number)
        self._timeout_s = order.timeout_s

    def wait_result(self) -> read.ReadResult:
        """Wait until all is read; returns the result."""
        for _ in self.progress(self._timeout_s):
            pass
        return read.ReadResult(**self._result)
