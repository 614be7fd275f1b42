"""Measures the frame times of the live page with a large plan, in headless Chromium.

    python -m bench.live_page.frames [--collectors 200] [--logs 1000] [--seconds 20]

The real server and the real page; only the order is made up. Every collector and every log changes
with each tick, twice a second, while both lists are scrolled and 40 messages a second come into the
timeline. For comparison a second page draws nothing: the same browser on the same machine.

    frame_ms    time between two frames: median, 95 %, 99 % and the longest
    long_tasks  of the page's thread above 50 ms, and their sum
    late        frames above 50 ms, of all: what a person sees as a stutter
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from bench.live_page.browser import browser, complaints
from collectors.live.facts import Reported, begun
from collectors.live.observer import TICK_S, Observer
from collectors.live.routes import LivePages
from collectors.web import WebServer, address_of, listen_at
from multicast.drivers.memory.driver import MemoryDriver, MemoryLog
from multicast.settings import Settings
from topology.tree import CollectorSpec, Log, Objective, Plan, Subscription

_HOST = "127.0.0.1"
_BURST = 400  # offsets that a log grows by in a tick, at most
_SICK = 23  # every so many-th collector is down or behind in turns
_SETTLE_S = 3.0  # for the page to be drawn the first time

MEASURE = """
const [seconds, busy, done] = arguments;
const frames = [], tasks = [];
new PerformanceObserver((list) => tasks.push(...list.getEntries().map((entry) => entry.duration)))
  .observe({ type: "longtask" });
let before = performance.now(), message = 0;
const end = before + seconds * 1000, boxes = ["tree", "logs", "timeline"];
function step(now) {
  frames.push(now - before);
  before = now;
  if (busy) for (const id of boxes) {
    const box = document.getElementById(id), most = box.scrollHeight - box.clientHeight;
    if (most > 0) box.scrollTop = Math.abs(((frames.length * 9) % (2 * most)) - most);
  }
  if (now < end) requestAnimationFrame(step); else done({ frames: frames.slice(1), tasks });
}
if (busy) {
  const feeding = setInterval(() => {
    if (performance.now() > end) clearInterval(feeding);
    take(Array.from({ length: 10 }, () => ({ n: ++message, id: `P1+P2:${message}`, to: "P1+P2",
      key: `key-${message % 97}`, text: `payload ${message} `.repeat(8), size: 100, epoch: 1,
      stored: Date.now(), ordered: Date.now() + 2, by: "K1", from: "K1", record: message,
      decision: "", gap: false })));
  }, 250);
}
requestAnimationFrame(step);
"""


def large_plan(collectors: int, logs: int) -> Plan:
    """Lay out a binary tree; each collector inherits the first log of its parent."""
    names = [f"P{number + 1}" for number in range(logs)]
    own = [names[number::collectors] for number in range(collectors)]
    return Plan(
        topic="large",
        epoch=1,
        base_epoch=0,
        cluster_id="",
        input_hash="",
        partitions=tuple(names),
        logs=tuple(Log(name, "large", number) for number, name in enumerate(names)),
        collectors=tuple(
            CollectorSpec(
                f"K{number + 1}",
                tuple(sorted([*own[number], *(own[(number - 1) // 2][:1] if number else [])])),
                f"K{(number - 1) // 2 + 1}" if number else None,
                number,
            )
            for number in range(collectors)
        ),
        consumers=(Subscription("C1", ("P1",), None),),
        objective=Objective(0.0, 0.0, 0.0, 0.0),
    )


class MadeUpObserver(Observer):
    """Makes up a picture of a large plan, in which everything changes all the time."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        super().__init__(MemoryDriver(MemoryLog({})), plan.topic)

    def _read_pages(self) -> None:
        pass

    def _follow(self) -> None:
        plan, tick = self._plan, 0
        picture = self.picture = begun(plan, 1, int(time.time() * 1000), None)
        ends = dict.fromkeys((log.name for log in plan.logs), 0)
        while not self._stop.is_set():
            tick += 1
            for number, name in enumerate(ends):
                ends[name] += (number * 7919 + tick * 104_729) % _BURST
            positions = {
                node.name: {name: ends[name] - (ends[name] % 3) for name in node.bag}
                for node in plan.collectors
            }
            sick = tick // 6 % _SICK
            reported = {
                node.name: Reported(why="http://h:1/status cannot be read", known=True)
                if number % _SICK == sick
                else Reported(state="running", process="a")
                for number, node in enumerate(plan.collectors)
            }
            with self._drawing:
                picture.tick(int(time.time() * 1000), ends, positions, reported)
            self._tell()
            self._stop.wait(TICK_S)


@contextmanager
def served(plan: Plan) -> Iterator[str]:
    """Serve the page of a made-up topic during the context; give its URL."""
    listening = listen_at(_HOST, 0)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    pages = LivePages(Settings("", plan.topic), _HOST, lambda _: MadeUpObserver(plan))
    server = WebServer({}, pages.routes())
    thread.start()

    def run(coroutine: Any) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, loop).result(60)

    try:
        run(server.start(listening))
        yield f"http://{address_of(listening)}/"
    finally:
        run(server.stop())
        run(pages.close())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def measured(opened: Any, seconds: float, *, busy: bool) -> dict[str, Any]:
    """Measure the frames of the page that is open."""
    found = opened.execute_async_script(MEASURE, seconds, busy)
    frames = sorted(found["frames"])

    def share(part: float) -> float:
        return float(round(frames[min(len(frames) - 1, int(part * len(frames)))], 1))

    return {
        "frames": len(frames),
        "frame_ms": {"p50": share(0.5), "p95": share(0.95), "p99": share(0.99), "max": share(1.0)},
        "long_tasks": [len(found["tasks"]), round(sum(found["tasks"]))],
        "late": sum(frame > 50 for frame in frames),
    }


def main() -> None:
    """Print one JSON document with both arms."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--collectors", type=int, default=200)
    parser.add_argument("--logs", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=20.0)
    chosen = parser.parse_args()
    with ExitStack() as stack:
        url = stack.enter_context(served(large_plan(chosen.collectors, chosen.logs)))
        opened = stack.enter_context(browser())
        opened.get("about:blank")
        empty = measured(opened, chosen.seconds, busy=False)
        opened.get(url)
        threading.Event().wait(_SETTLE_S)
        full = measured(opened, chosen.seconds, busy=True)
        elements = opened.execute_script("return document.querySelectorAll('*').length")
        wrong = complaints(opened)
    document = {"collectors": chosen.collectors, "logs": chosen.logs, "elements": elements,
                "live_page": full, "empty_page": empty, "complaints": wrong}  # fmt: skip
    sys.stdout.write(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
