"""The process that a client of Kafka belongs to.

A process that is forked has copies of its parent's clients, but not their threads, and shares
their sockets: a request of the child would be taken for one of the parent, its answer may reach
either of them, and a lock that a thread of the parent held is never released. So a client is used
only where it was opened. It asks here before it takes a lock or writes to a socket.

Nor may a child free such a client: librdkafka would wait for its threads or end the process, and
kafka-python would change what the parent's event loop waits for. So a child keeps them to its end.
"""

from __future__ import annotations

import ctypes
import os
import weakref

from multicast.errors import UsageError

_owners: weakref.WeakSet[object] = weakref.WeakSet()


class _Here:
    """The process that runs; an append asks for it, and to ask the system takes longer."""

    pid = os.getpid()


_here = _Here()


class HomeProcess:
    """The process in which a client was opened; `owner` holds the client."""

    __slots__ = ("_pid", "_what")

    def __init__(self, what: str, owner: object = None) -> None:
        self._what = what
        self._pid = _here.pid
        if owner is not None:
            _owners.add(owner)

    @property
    def is_left(self) -> bool:
        """Whether the caller runs in another process."""
        return self._pid != _here.pid

    def check(self) -> None:
        """Raise `UsageError` in another process."""
        if self._pid != _here.pid:
            raise UsageError(
                f"This {self._what} was opened in another process; open one after the fork."
            )


def _after_fork() -> None:
    """Note the new process, and add a reference to each owner that nothing ever takes away.

    So not even the end of Python ends them.
    """
    _here.pid = os.getpid()
    for owner in list(_owners):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(owner))


if hasattr(os, "register_at_fork"):  # there is no fork on Windows
    os.register_at_fork(after_in_child=_after_fork)
