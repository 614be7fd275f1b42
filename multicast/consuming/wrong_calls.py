"""Refuses wrong calls of a consumer: `OneUser` one of a second thread, instead of waiting.

`OneUser` also remembers that a call was cut off by an exception of somebody else (Ctrl-C): the next
one begins anew, so nothing is lost and nothing is doubled.

A lock that waits would hide the mistake: two threads that poll one consumer would each get a part
of the messages, in no order. Only the last call, `close`, may come from any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from numbers import Integral

from multicast.errors import AmcastError, UsageError

# `close` waits so long for a call of another thread: longer than the default time-out of a request,
# and than the polls of an iterator.
_LAST_S = 15.0


class OneUser:
    """A context manager around a call; a thread may enter again what it has entered.

    `begin_anew` repairs what a call has left that was cut off.
    """

    def __init__(self, what: str, begin_anew: Callable[[], None]) -> None:
        self._what = what
        self._begin_anew = begin_anew
        self._unfinished = self._changing = False
        self._held = threading.RLock()
        self._ending = False

    def __enter__(self) -> None:
        if not self._held.acquire(blocking=False):
            raise UsageError(
                f"another thread is in a call of this {self._what}; use it from one thread at a "
                f"time"
            )

    def __exit__(self, *_: object) -> None:
        self._held.release()

    def refuse_ended(self) -> None:
        """Raise `UsageError` once the last call has begun."""
        if self._ending:
            raise UsageError(f"this {self._what} is closed; open another one")

    @contextmanager
    def call(self) -> Iterator[None]:
        """Make a call that reads, or changes what is read, in one piece."""
        with self:
            self.refuse_ended()
            if self._unfinished:
                self._begin_anew()
            self._unfinished = True
            try:
                yield
            except AmcastError:
                self._unfinished = self._changing
                raise
            self._unfinished = False

    @contextmanager
    def change(self) -> Iterator[None]:
        """Change what is read: an error in between leaves neither the old nor the new."""
        self._changing = True
        yield
        self._changing = False

    @contextmanager
    def last_call(self, wake: Callable[[], None]) -> Iterator[None]:
        """Make a call after which none is taken; one of another thread ends first.

        `wake` ends the other thread's wait. Raises `UsageError` if it has not ended after 15 s.
        """
        self._ending = True
        wake()
        if not self._held.acquire(timeout=_LAST_S):
            raise UsageError(
                f"a call of this {self._what} in another thread did not end within {_LAST_S:g} s; "
                f"close it again once it has"
            )
        try:
            yield
        finally:
            self._held.release()


def refuse_no_messages(messages_max: int) -> None:
    """Raise `UsageError` for a poll that may return no message: it would wait in vain."""
    if not isinstance(messages_max, Integral) or messages_max < 1:
        raise UsageError(f"messages_max is {messages_max!r}; give 1 or more")
