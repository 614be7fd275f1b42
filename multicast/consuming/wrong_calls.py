"""Refuses wrong calls of a consumer: `OneUser` one of a second thread, instead of waiting.

A lock that waits would hide the mistake: two threads that poll one consumer would each get a part
of the messages, in no order.
"""

from __future__ import annotations

import threading
from types import TracebackType

from multicast.errors import UsageError


class OneUser:
    """A context manager around a call; a thread may enter again what it has entered."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._held = threading.RLock()

    def __enter__(self) -> None:
        if not self._held.acquire(blocking=False):
            raise UsageError(
                f"another thread is in a call of this {self._what}; use it from one thread at a "
                f"time, and close it once that call has returned"
            )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._held.release()


def refuse_no_messages(messages_max: int) -> None:
    """Raise `UsageError` for a poll that may return no message: it would wait in vain."""
    if messages_max < 1:
        raise UsageError(f"messages_max is {messages_max!r}; give 1 or more")
