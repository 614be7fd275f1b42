"""SIGTERM ends a command as Ctrl-C does: it stops what it started, and removes its folders."""

from __future__ import annotations

import signal
from typing import Any


def end_at_sigterm() -> None:
    """Have SIGTERM raise `KeyboardInterrupt` from now on. Only for the main thread."""
    signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt
