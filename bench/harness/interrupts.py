"""SIGTERM and SIGHUP end a command as Ctrl-C does: it stops what it started, removes its folders.

SIGHUP comes when the terminal is closed or its connection is lost.
"""

from __future__ import annotations

import signal
from typing import Any


def end_at_signals() -> None:
    """Have SIGTERM and SIGHUP raise `KeyboardInterrupt` from now on. Only for the main thread.

    Under `nohup` SIGHUP is ignored, and stays so.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _interrupt)


def _interrupt(*_: Any) -> None:
    # A terminal that is closed sends a second SIGHUP, which must not interrupt the cleaning up.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    raise KeyboardInterrupt
