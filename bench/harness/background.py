"""A thread that does one thing beside a measurement, for as long as a block runs."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Self


class BackgroundThread(ABC):
    """Runs `run` in a thread from the block's begin on; at its end sets `stop` and joins."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self._thread = threading.Thread(target=self.run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self._thread.join()

    @abstractmethod
    def run(self) -> None:
        """Do the work, and return soon after `stop` is set."""
