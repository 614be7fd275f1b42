"""Wakes coroutines that wait for a change which another thread reports.

A watcher takes its event, looks, and waits. What changes after it looked sets the event, so no
change is missed: `clear` BEFORE looking.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager, suppress
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class ChangeEvent(asyncio.Event):
    """An event of one event loop, which any thread can set."""

    def __init__(self) -> None:
        super().__init__()
        self._made_on = asyncio.get_running_loop()

    def set_from_any_thread(self) -> None:
        """Wake the waiter; does nothing where its loop is closed."""
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            self._made_on.call_soon_threadsafe(self.set)


class Changes(Generic[Key]):
    """Who waits for changes, by key. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: dict[Key, list[ChangeEvent]] = {}

    @contextmanager
    def watch(self, key: Key) -> Iterator[ChangeEvent]:
        """Give an event that is set after each change under this key; on an event loop."""
        event = ChangeEvent()
        with self._lock:
            self._events.setdefault(key, []).append(event)
        try:
            yield event
        finally:
            with self._lock:
                events = self._events[key]
                events.remove(event)
                if not events:
                    del self._events[key]

    def notify(self, key: Key) -> None:
        """Wake all who wait for changes under this key. From any thread."""
        with self._lock:
            events = list(self._events.get(key, ()))
        for event in events:
            event.set_from_any_thread()

    def notify_all(self) -> None:
        """Wake all who wait for any change. From any thread."""
        with self._lock:
            keys = list(self._events)
        for key in keys:
            self.notify(key)
