"""Keeps the processes that are started meanwhile on one core of the machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from multicast.errors import UsageError

# Where the processes of a pinned measurement run: those that all clients share, and the clients.
SERVERS, CLIENTS = 0, 1


@contextmanager
def on_core(number: int | None) -> Iterator[None]:
    """Pin this thread, and what it starts, to one core (by its place among ours); None: do nothing.

    Raises `UsageError` on a machine without that core.
    """
    if number is None:
        yield
        return
    before = os.sched_getaffinity(0)
    cores = sorted(before)
    if number >= len(cores):
        raise UsageError(f"processes are pinned to {number + 1} cores; here are {len(cores)}")
    os.sched_setaffinity(0, {cores[number]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
