"""Runs `amcast ui` as a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.harness.processes import end
from multicast.errors import TimedOut

_START_S = 60.0  # it takes a second; many times longer on a busy machine


@contextmanager
def serving(bootstrap: str, topic: str, folder: Path) -> Iterator[str]:
    """Serve the live page of a topic during the context; give its URL."""
    log = folder / "ui.log"
    command = [sys.executable, "-m", "multicast", "ui", "-b", bootstrap, "-t", topic]
    with log.open("wb") as out:
        process = subprocess.Popen([*command, "--web-port", "0"], stdout=out, stderr=out)
    try:
        deadline, pause = time.monotonic() + _START_S, threading.Event()
        while not (found := re.search(r"http://\S+", log.read_text(errors="replace"))):
            if process.poll() is not None or time.monotonic() > deadline:
                raise TimedOut(f"amcast ui did not start: {log.read_text(errors='replace')}")
            pause.wait(0.05)
        yield found[0]
    finally:
        process.terminate()
        end(process)
