"""Keeps kafka-python's notes about its connections out of an application's log.

The package logs some ten INFO lines for each connection. A user of this project opens several
without knowing, also where librdkafka moves the data. So INFO and DEBUG of the package are dropped
while our own loops turn; its warnings stay, and so does what its own producer says (driver
"kafka-python") and what the application does with the package itself. To see all:
`logging.getLogger("amcast.kafka_python").setLevel(logging.DEBUG)`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kafka.net.selector import NetworkSelector

_OURS = logging.getLogger("amcast.kafka_python")
_turning = threading.local()


class _WhileOurLoopTurns(logging.Filter):
    """Drops what is below WARNING on a thread that drives a loop of ours."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno >= logging.WARNING or not getattr(_turning, "depth", 0):
            return True
        return _OURS.level != logging.NOTSET and _OURS.level <= record.levelno


_FILTER = _WhileOurLoopTurns()


@contextmanager
def quiet() -> Iterator[None]:
    """Drop the package's INFO and DEBUG lines on this thread."""
    _turning.depth = getattr(_turning, "depth", 0) + 1
    try:
        yield
    finally:
        _turning.depth -= 1


class QuietSelector(NetworkSelector):  # type: ignore[misc]
    """The package's event loop, whose turns are not logged below WARNING."""

    def __init__(self, **settings: Any) -> None:
        for name, logger in list(logging.root.manager.loggerDict.items()):
            if isinstance(logger, logging.Logger) and (name == "kafka" or name[:6] == "kafka."):
                logger.addFilter(_FILTER)  # once only: the logger keeps each filter once
        super().__init__(**settings)

    def poll(self, *arguments: Any, **settings: Any) -> Any:
        """Turn the loop as the package does."""
        with quiet():
            return super().poll(*arguments, **settings)

    def run_forever(self) -> None:
        """Turn the loop on a thread of its own, as the package does for its producer."""
        with quiet():
            super().run_forever()

    def close(self) -> None:
        """End the loop as the package does."""
        with quiet():
            super().close()
