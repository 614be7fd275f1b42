"""A producer in the process of a nemesis run, for the single messages of faults."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.harness.client import Notes
from multicast.errors import AmcastError
from multicast.producing.producer import Producer


class ManualProducer:
    """Multicasts one message after the other, and writes a history, too."""

    def __init__(self, producer: Producer, name: str, folder: Path) -> None:
        self._producer = producer
        self._name = name
        self._calls = 0
        self._notes = Notes(str(folder / f"produce-{name}.0.jsonl"))
        self._note({"producer": name, "instance": "0"})

    def multicast(self, to: Sequence[str], timeout_s: float = 20.0) -> str:
        """Multicast a message; return its ID as soon as it is stored."""

        def send(value: bytes) -> str:
            return str(self._producer.multicast(value, to=to).accepted(timeout_s))

        return self.noted(to, send)

    def noted(self, to: Sequence[str], send: Callable[[bytes], str]) -> str:
        """Note a multicast that `send` makes; `send` takes the value and returns the message ID."""
        number = self._calls
        self._calls += 1
        self._note({"begun": number, "to": sorted(to)})
        value = f"{self._name}/0/{number}".encode()
        outcome: dict[str, Any] = {"call": number, "outcome": "unknown"}
        try:
            message_id = send(value)
            outcome |= {"outcome": "accepted", "message_id": message_id}
        except AmcastError as error:
            outcome["outcome"] = "failed" if error.definite else "unknown"
            raise
        finally:
            self._note(outcome)
        return message_id

    def close(self) -> None:
        """End the history."""
        self._note({"end": True})

    def _note(self, line: Mapping[str, Any]) -> None:
        self._notes.write({**line, "ns": time.monotonic_ns()})
