"""Measures what metrics cost a process with a producer and a consumer: its CPU for each message.

    python -m bench.micro.metrics [--rounds 60] [--messages 100000] [--call 256] [--base FOLDER]
                                  [--freeze]

One broker, one collector that orders all logs, messages of 100 bytes. Each arm is a process with a
log, a producer and a consumer of its own. In each round every arm sends and receives the same
number of messages, as fast as it can, in ten slices, in which the arms take turns. One scrape in a
round is one scrape a second at so many messages a second.

    off        nothing is registered or scraped; the clients count, as they always do
    again      the same once more: what it differs from `off` is noise
    scraped    the clients' metrics are served by HTTP, and scraped once in each round
    base       as `off`, with `multicast` of the checkout in FOLDER (of a commit before the clients
               counted). With it all ratios are to `base`, so they contain the counting
    cpu_us     CPU of an arm's process for one message, sent and received, all threads: microseconds
    ratio      to `off` (or `base`) in the same round: the median over the rounds
    low, high  the median lies between them with a probability of 95 %
    scrape_cpu_ms  CPU of one scrape while messages are sent, the request for the lags among it:
               from the difference of 16 pairs of rounds, with 25 scrapes and without any
    scrape_share   that, as a share of what the messages of one round cost in `off`
    freeze     each arm calls `gc.freeze()` once its clients are open: else each full collection of
               garbage scans all imported modules, those of `prometheus_client` among them
    call       messages of one call: 1 is `multicast`, received one by one; else `multicast_all`,
               received in batches
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from bench.harness import figures
from bench.harness.arms import in_turns, medians, ratios
from bench.harness.rig import Rig, standing
from multicast.errors import AmcastError

_BESIDE = "P5"  # the log that all arms read, and nobody writes: so there is an order
_SCRAPE_S = 30.0
_SCRAPES = 25  # in one round, for the cost of a single one
_PAIRS = 16  # of rounds with so many scrapes, and without any
_OUTSIDE = 3  # of 16 sorted differences on each side: the rest holds the median with 97.9 %
_SLICES = 10  # of a round: short, so that what else the machine does meets all arms alike
_WARM_UP = 3  # rounds, until buffers and caches have what they need
_CLIENT = Path(__file__).with_name("client.py")
_ADDRESS = re.compile(r"metrics: (\S+)")


class ArmProcess:
    """The process of one arm; a context manager."""

    def __init__(self, rig: Rig, arm: str, number: int, options: argparse.Namespace) -> None:
        source = options.base if arm == "base" else None
        mode = "scraped" if arm == "scraped" else "off"
        objects = "frozen" if options.freeze else "collected"
        words = [rig.bootstrap, rig.topic, f"P{number}", _BESIDE, str(options.call), mode, objects]
        self._process = subprocess.Popen(
            [sys.executable, str(_CLIENT), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if mode == "scraped" else None,
            env=os.environ if source is None else {**os.environ, "PYTHONPATH": str(source)},
            text=True,
        )
        self._page: str | None = None

    def __enter__(self) -> Self:
        if self._process.stderr is not None:
            line = self._process.stderr.readline()
            address = _ADDRESS.match(line)
            if address is None:
                raise AmcastError(f"the client wrote {line!r} instead of its address")
            self._page = address[1]
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def cpu_us(self, messages: int, *, scrapes: int) -> float:
        """Send and receive so many messages, and scrape meanwhile; give the CPU for each."""
        began_s = self._cpu_s()
        self._ask(messages)
        if self._page is not None:
            for _ in range(scrapes):
                self._scrape()
        return (self._answer() - began_s) / messages * 1e6

    def scrape_ms(self, messages: int) -> list[float]:
        """Give the CPU of one scrape while messages are sent, from pairs of rounds, sorted."""
        rounds = [
            [self.cpu_us(messages, scrapes=count) for count in (0, _SCRAPES)] for _ in range(_PAIRS)
        ]
        return sorted((some - none) * messages / _SCRAPES / 1e3 for none, some in rounds)

    def _cpu_s(self) -> float:
        self._ask(0)
        return self._answer()

    def _ask(self, messages: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{messages}\n")
        self._process.stdin.flush()

    def _answer(self) -> float:
        assert self._process.stdout is not None
        return float(self._process.stdout.readline())

    def _scrape(self) -> None:
        assert self._page is not None
        with urllib.request.urlopen(self._page, timeout=_SCRAPE_S) as answer:  # noqa: S310
            answer.read()


def main(arguments: Sequence[str]) -> None:
    """Measure once, and print the figures."""
    parser = figures.parser("metrics", __doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--messages", type=int, default=100_000, help="of each arm in a round")
    parser.add_argument("--call", type=int, default=256, help="messages of one call")
    parser.add_argument("--base", type=Path, help="a checkout to compare with")
    parser.add_argument("--freeze", action="store_true", help="gc.freeze() in all arms")
    options = parser.parse_args(arguments)
    names = ["off", "again", "scraped", *(["base"] if options.base else [])]
    with standing(5) as rig, rig.collectors() as processes, ExitStack() as opened:
        processes.wait_healthy()
        arms = {
            name: opened.enter_context(ArmProcess(rig, name, number, options))
            for number, name in enumerate(names, start=1)
        }
        made = in_turns(
            arms,
            options.rounds,
            lambda arm, part: arm.cpu_us(options.messages // _SLICES, scrapes=int(part == 0)),
            warm_up=_WARM_UP,
            slices=_SLICES,
        )
        measured = medians(made, "cpu_us") | ratios(made, "base" if options.base else "off")
        scrape_ms = arms["scraped"].scrape_ms(options.messages)
        least, most = scrape_ms[_OUTSIDE], scrape_ms[-1 - _OUTSIDE]
        round_ms = measured["off_cpu_us"] * options.messages / 1e3
        for name, value in (("", statistics.median(scrape_ms)), ("_low", least), ("_high", most)):
            measured[f"scrape_cpu_ms{name}"] = round(value, 2)
            measured[f"scrape_share{name}"] = round(value / round_ms, 4)
        document = figures.document("metrics", measured, kafka=rig.kafka, arguments=arguments)
    figures.show(document, options.output)


if __name__ == "__main__":
    main(sys.argv[1:])
