"""Makes the screenshots of the live page that the documents show.

    python -m bench.live_page.shots [docs/images]

A broker, a plan, its collectors in processes of their own, and a little shop's traffic; then one
collector is killed. Needs Debian's chromium and chromium-driver.
"""

from __future__ import annotations

import io
import json
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from PIL import Image

from bench.live_page.browser import browser
from bench.live_page.serving import serving
from collectors.reconfiguration.apply import apply
from collectors.testing.processes import CollectorProcesses
from multicast.drivers import open_driver
from multicast.drivers.kafka_python import Admin
from multicast.drivers.protocol import Driver
from multicast.local.cluster import LocalCluster
from multicast.producer import Producer
from topology.interests import from_document
from topology.planner.solver import plan as solve
from topology.tree import Plan

_WATCHED_S = 62.0  # until the sparklines, which show a minute, are full
_DEAD_S = 6.0  # after the kill
_BURST = 12  # messages at once
_COLOURS = 256  # of a picture: the page has few, and the file is half as large
_EVERY_S = 0.1  # between bursts

INTERESTS = {
    "topic": "shop",
    "partitions": ["orders", "stock", "payments", "parcels", "refunds", "mail", "prices",
                   "reviews", "fraud", "returns", "ledger", "carriers"],
    "destinations": [
        ["orders", "stock"], ["orders", "payments"], ["payments", "refunds"],
        ["orders", "stock", "parcels"], ["parcels", "mail"], ["mail", "refunds"],
        ["prices", "stock"], ["fraud", "payments"], ["ledger", "payments"],
        ["returns", "refunds"], ["carriers", "parcels"], ["mail", "reviews"],
    ],
    "consumer": [
        {"name": "warehouse", "interest": ["orders", "stock", "parcels"]},
        {"name": "billing", "interest": ["orders", "payments", "refunds"]},
        {"name": "delivery", "interest": ["parcels", "carriers", "mail"]},
        {"name": "support", "interest": ["refunds", "returns", "mail"]},
        {"name": "catalogue", "interest": ["prices", "stock"]},
        {"name": "risk", "interest": ["fraud", "payments"]},
        {"name": "books", "interest": ["ledger", "payments"]},
        {"name": "community", "interest": ["reviews", "mail"]},
        {"name": "archive", "interest": ["orders"]},
    ],
}  # fmt: skip
SAYINGS = [
    '{"order": %d, "event": "placed", "items": 3}',
    '{"order": %d, "event": "paid", "amount": "41.90"}',
    '{"order": %d, "event": "reserved", "shelf": "B7"}',
    '{"order": %d, "event": "packed", "parcel": 2}',
    '{"order": %d, "event": "address changed"}',
]


@contextmanager
def traffic(driver: Driver, plan: Plan) -> Iterator[None]:
    """Send bursts to all destination sets, more to some than to others, during the context."""
    ended = threading.Event()
    chance = random.Random(7)  # noqa: S311 - a picture
    logs = [(set(log.to), 3.0 / (1 + number)) for number, log in enumerate(plan.logs)]

    def send() -> None:
        with Producer(topic=plan.topic, driver=driver) as producer:
            while not ended.wait(_EVERY_S * chance.uniform(0.5, 1.5)):
                for _ in range(chance.randrange(_BURST)):
                    ((to, _),) = chance.choices(logs, [weight for _, weight in logs])
                    order = chance.randrange(10_000, 11_000)
                    text = chance.choice(SAYINGS) % order
                    producer.multicast(text.encode(), to=to, key=f"order-{order}".encode())

    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        ended.set()
        sender.join()


def _opened(stack: ExitStack, url: str, *, dark: bool) -> Any:
    opened = stack.enter_context(browser(dark=dark))
    opened.get(url)
    return opened


def main(folder: Path) -> None:
    """Make all pictures; says where each is."""
    pause = threading.Event()
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cluster = stack.enter_context(LocalCluster(work / "kafka"))
        driver = open_driver("librdkafka", cluster.bootstrap)
        stack.callback(driver.close)
        with Admin(cluster.bootstrap) as admin:
            plan = apply(driver, admin, solve(from_document(INTERESTS))).plan
        hosts = CollectorProcesses(cluster.bootstrap, plan.topic, "librdkafka", plan, work)
        stack.enter_context(hosts)
        hosts.wait_healthy(60.0)
        stack.enter_context(traffic(driver, plan))
        url = stack.enter_context(serving(cluster.bootstrap, plan.topic, work))
        pages = {"light": _opened(stack, url, dark=False), "dark": _opened(stack, url, dark=True)}
        pause.wait(_WATCHED_S)
        _shoot(pages, folder, "live")
        began = time.monotonic()
        hosts.kill(plan.collectors[-1].name)
        page = pages["light"]
        while page.execute_script("return document.querySelector('[data-state=down].row')") is None:
            pause.wait(0.02)
        sys.stderr.write(f"shown dead after {time.monotonic() - began:.2f} s\n")
        pause.wait(_DEAD_S)
        _shoot(pages, folder, "dead")
        for page in pages.values():
            page.execute_script("document.querySelector('#timeline .row').click()")
        pause.wait(2.0)
        _shoot(pages, folder, "explain")
    sys.stderr.write(json.dumps({"folder": str(folder)}) + "\n")


def _shoot(pages: dict[str, Any], folder: Path, name: str) -> None:
    for scheme, page in pages.items():
        picture = Image.open(io.BytesIO(page.get_screenshot_as_png())).convert("RGB")
        few = picture.quantize(_COLOURS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
        few.save(folder / f"{name}-{scheme}.png", optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/images"))
