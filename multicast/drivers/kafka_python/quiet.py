"""The package's event loop, without its log lines and without sockets that stay open.

Log lines: the package logs some ten INFO lines for each connection, and every driver opens several.
A filter drops INFO and DEBUG lines of the package on a thread while it drives one of our event
loops. It keeps warnings, and lines of an application that uses the package itself. To see all:
`logging.getLogger("amcast.kafka_python").setLevel(logging.DEBUG)`.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kafka.net.selector import NetworkSelector

_OURS = logging.getLogger("amcast.kafka_python")
_driving = threading.local()


class _WhileOurLoopRuns(logging.Filter):
    """Drops lines below WARNING on a thread that drives one of our loops."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno >= logging.WARNING or not getattr(_driving, "depth", 0):
            return True
        return _OURS.level != logging.NOTSET and _OURS.level <= record.levelno


_FILTER = _WhileOurLoopRuns()


@contextmanager
def quiet() -> Iterator[None]:
    """Drop the package's INFO and DEBUG lines on this thread."""
    _driving.depth = getattr(_driving, "depth", 0) + 1
    try:
        yield
    finally:
        _driving.depth -= 1


class QuietSelector(NetworkSelector):  # type: ignore[misc]
    """The package's event loop, without log lines below WARNING.

    transports    those that were opened on this loop; `close` closes their sockets
    """

    def __init__(self, **settings: Any) -> None:
        self.transports: weakref.WeakSet[Any] = weakref.WeakSet()
        for name, logger in list(logging.root.manager.loggerDict.items()):
            if isinstance(logger, logging.Logger) and (name == "kafka" or name[:6] == "kafka."):
                logger.addFilter(_FILTER)  # a logger keeps each filter only once
        super().__init__(**settings)

    def poll(self, *arguments: Any, **settings: Any) -> Any:
        """Run the loop once, as the package does."""
        with quiet():
            return super().poll(*arguments, **settings)

    def run_forever(self) -> None:
        """Run the loop on its own thread, as the package does for its producer."""
        with quiet():
            super().run_forever()

    def close(self) -> None:
        """Close the loop as the package does, and every socket.

        kafka-python 3.0.12 leaves the socket of a connection open whose request is not sent yet: it
        waits for the socket to be writable, and nothing runs any more that could wait.
        """
        with quiet():
            super().close()
        for transport in list(self.transports):
            opened = transport._sock  # noqa: SLF001
            if opened is not None:
                opened.close()
