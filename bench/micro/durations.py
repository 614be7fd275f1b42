"""Measures how long starts, restarts and takeovers take until the first delivery, and their parts.

    python -m bench.micro.durations [--repetitions 5] [--only NAME] [--beside FOLDER]

One broker, two partitions, a declared set of both, one collector. Each process is a new one. With
`--beside` the same is measured in turns with another checkout's code, to compare within one run.

    start       a consumer process starts, and delivers the one message that is stored
    restart     the same with a committed cursor, 10,000 messages behind it, and one after it
    begin       the first process that shares a new topic's collectors starts; messages wait
    return      the only collector is killed (SIGKILL), and started again at once
    takeover    a collector is killed, and its standby takes over
    handover    a collector gets SIGTERM, and its standby takes over
    replan      a plan is applied whose tree differs, while one process runs all collectors; the
                producer writes tickets, as producers do

Parts, in milliseconds, each from the end of the one before. Of a consumer:

    python      the interpreter runs our first line
    imports     the package is imported, and the client's
    connect     the driver is open: a broker has answered
    open        the consumer is open: control topic, cursor, plan, topic ids
    deliver     the first message is delivered: order stream, then its log

Of a collector (`begin` has the first and the last part only):

    connect     its process has been started, has read the control topic, and serves its pages
    advertise   it follows its logs; a taken-over one is advertised once it acts
    order       its first order record is written (producers write no tickets here)
    deliver     a consumer delivers the first message that was sent after the signal

Of a re-planning:

    apply       `apply` has returned: the next epoch has begun
    deliver     the first delivery in the next epoch, if it comes later

`total` is their sum. `longest` is the longest delay of any message that was delivered from then
until a second after. A message is sent every 20 ms; a look costs up to 5 ms.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

_T0_NS = time.monotonic_ns()  # of a consumer's process, before all other imports

_MESSAGES_BEHIND = 10_000  # a cursor deep in the log, and still stored within a second
_SEND_EVERY_S = 0.02  # 50 messages a second: a light load, and a resolution of 20 ms
_LOOK_S = 0.005  # a twentieth of the shortest duration that is measured
_AFTER_S = 1.0  # longer than what waits for a takeover takes to be delivered
_STEADY_S = 3.0  # before a kill: longer than a consumer and a producer take to start
_PATIENCE_S = 60.0  # for any single step
_PARTS = {
    "start": ("python", "imports", "connect", "open", "deliver"),
    "restart": ("python", "imports", "connect", "open", "deliver"),
    "begin": ("connect", "deliver"),
    "return": ("connect", "advertise", "order", "deliver"),
    "takeover": ("advertise", "order", "deliver"),
    "handover": ("deliver",),
    "replan": ("apply", "deliver"),
}


def consume(bootstrap: str, topic: str) -> None:
    """Deliver one message, commit it, and print the times (monotonic, in ns) of the parts."""
    from multicast.consumer import Consumer  # noqa: PLC0415 - the import is measured
    from multicast.drivers import open_driver  # noqa: PLC0415

    for package in ("kafka_python", "librdkafka"):  # else `open_driver` imports them
        import_module(f"multicast.drivers.{package}")
    stamps = {"python": _T0_NS, "imports": time.monotonic_ns()}
    driver = open_driver("librdkafka", bootstrap)
    stamps["connect"] = time.monotonic_ns()
    with Consumer(topic=topic, name="C1", driver=driver) as consumer:
        stamps["open"] = time.monotonic_ns()
        message = next(iter(consumer))
        stamps["deliver"] = time.monotonic_ns()
        consumer.commit(message.cursor)
    driver.close()
    sys.stdout.write(json.dumps(stamps))


def _parts(kind: str, began_ns: int, stamps: Mapping[str, int]) -> dict[str, float]:
    parts: dict[str, float] = {}
    before = began_ns
    for part in _PARTS[kind]:
        after = max(before, stamps[part])
        parts[part], before = (after - before) / 1e6, after
    parts["total"] = (before - began_ns) / 1e6
    return parts


class Bench:
    """The running broker, plan and clients of this process; `measure` takes one sample."""

    def __init__(self, rig: Any) -> None:
        self._rig = rig
        self._number = 0
        self._ours = ("-t", rig.topic, "--node", rig.plan.collectors[0].name)

    def measure(self, kind: str, checkout: Path) -> dict[str, float]:
        """Measure one duration with the code of a checkout; parts in milliseconds."""
        if kind in ("start", "restart"):
            return self._consumer(kind, checkout)
        if kind == "begin":
            return self._begin(checkout)
        if kind == "replan":
            return self._replan(checkout)
        return self._collector(kind, checkout)

    def _consumer(self, kind: str, checkout: Path) -> dict[str, float]:
        from multicast import Producer  # noqa: PLC0415 - not in the measured process
        from multicast.consumer import Consumer  # noqa: PLC0415

        rig = self._rig
        with self._process(checkout, *self._ours) as (_, page):
            _until(lambda: page() is not None, "a collector's page")
            with Producer(topic=rig.topic, driver=rig.driver) as producer:
                behind = _MESSAGES_BEHIND if kind == "restart" else 0
                if behind:
                    producer.multicast_all([b"x"] * behind, to={"P1"}).ordered(_PATIENCE_S)
                with Consumer(topic=rig.topic, name="C1", driver=rig.driver) as consumer:
                    end = consumer.end()
                    while not consumer.reached(end):
                        consumer.poll(_LOOK_S)
                    consumer.commit(consumer.position)
                producer.multicast(b"x", to={"P1"}).ordered(_PATIENCE_S)
        began_ns = time.monotonic_ns()
        done = subprocess.run(
            [sys.executable, "-P", __file__, "--consume", rig.bootstrap, rig.topic],
            **_within(checkout),
            capture_output=True,
            text=True,
            check=True,
            timeout=_PATIENCE_S,
        )
        return _parts(kind, began_ns, json.loads(done.stdout))

    @contextmanager
    def _process(
        self, checkout: Path, *options: str
    ) -> Iterator[tuple[subprocess.Popen[bytes], Callable[[], str | None]]]:
        """Run the collector as a process; gives a call that tells its page's address, once open."""
        from collectors.testing.processes import end  # noqa: PLC0415

        rig = self._rig
        self._number += 1
        log = rig.folder / f"{self._number}.log"
        command = [sys.executable, "-m", "multicast", "collectors", "run", "-b", rig.bootstrap]
        command += ["--web-port", "0", *options]
        with log.open("wb") as out:
            process = subprocess.Popen(command, **_within(checkout), stdout=out, stderr=out)

        def page() -> str | None:
            words = log.read_text(errors="replace").split()
            return next((word for word in words if word.startswith("http://")), None)

        try:
            yield process, page
        finally:
            process.terminate()
            end(process)

    def _collector(self, kind: str, checkout: Path) -> dict[str, float]:
        with self._process(checkout, *self._ours) as (first, page):
            _until(lambda: page() is not None, "a collector's page")
            if kind == "return":
                return self._killed(first, lambda: self._process(checkout, *self._ours), kind)
            with self._process(checkout, *self._ours, "--standby") as second:
                _until(lambda: second[1]() is not None, "a standby's page")

                @contextmanager
                def running() -> Iterator[tuple[Any, Callable[[], str | None]]]:
                    yield second

                return self._killed(first, running, kind)

    def _killed(
        self, victim: subprocess.Popen[bytes], successor: Callable[[], Any], kind: str
    ) -> dict[str, float]:
        """End a collector's process, run its successor, and watch until the first delivery."""
        with ExitStack() as opened, _sending(self._rig.driver, self._rig.topic):
            watch = _Watch(self._rig, opened)
            watch.get_steady()
            victim.send_signal(signal.SIGTERM if kind == "handover" else signal.SIGKILL)
            began_ns = time.monotonic_ns()
            with successor() as (_, page):
                acts_on = kind == "handover"
                stamps = watch.until_delivered(began_ns, page, victim_acts=acts_on)
                longest = watch.deliveries.longest_ms_until(began_ns + int(1e9 * _AFTER_S))
        return _parts(kind, began_ns, stamps) | {"longest": longest}

    def _begin(self, checkout: Path) -> dict[str, float]:
        """Start the first process of a new topic, and watch until the first delivery."""
        with ExitStack() as opened:
            running = self._new_topic(opened)[0]
            deliveries = _Deliveries(self._rig, running.topic, opened)
            opened.enter_context(_sending(self._rig.driver, running.topic))
            stamps: dict[str, int] = {}
            began_ns = time.monotonic_ns()
            _, page = opened.enter_context(self._process(checkout, "-t", running.topic))
            while not deliveries.count:
                assert time.monotonic_ns() < began_ns + _PATIENCE_S * 1e9, "nothing was delivered"
                deliveries.look()
                if page() is not None:
                    stamps.setdefault("connect", time.monotonic_ns())
            stamps["deliver"] = time.monotonic_ns()
        return _parts("begin", began_ns, stamps)

    def _new_topic(self, opened: ExitStack) -> tuple[Any, Any, Callable[[Any], Any]]:
        """Apply the poster's plan to a new topic; give it, another tree, and a call to apply it."""
        from bench.harness.interests import file_of  # noqa: PLC0415 - not in the measured process
        from bench.micro.replanning import INTERESTS, SETS  # noqa: PLC0415
        from collectors.reconfiguration.apply import apply  # noqa: PLC0415
        from multicast.drivers.kafka_python import Admin  # noqa: PLC0415
        from topology.changes import with_kept_names  # noqa: PLC0415
        from topology.planner.solver import plan as solve  # noqa: PLC0415

        driver = self._rig.driver
        self._number += 1
        interests = replace(file_of(INTERESTS, SETS), topic=f"new-{self._number}")
        admin = opened.enter_context(Admin(self._rig.bootstrap))
        running = apply(driver, admin, solve(interests)).plan
        other = with_kept_names(running, solve(interests, prefer="latency", base_epoch=1))
        return running, other, partial(apply, driver, admin)

    def _replan(self, checkout: Path) -> dict[str, float]:
        """Apply two plans with different trees to a new topic, and watch the second change."""
        rig = self._rig
        stamps: dict[str, int] = {}
        with ExitStack() as opened:
            running, other, apply = self._new_topic(opened)
            _, page = opened.enter_context(self._process(checkout, "-t", running.topic))
            _until(lambda: page() is not None, "a collector's page")
            opened.enter_context(_sending(rig.driver, running.topic, tickets=True))
            deliveries = _Deliveries(rig, running.topic, opened)
            deliveries.follow_until(lambda: deliveries.count > 1 / _SEND_EVERY_S)

            def change() -> None:
                apply(other)
                stamps["apply"] = time.monotonic_ns()

            changing = threading.Thread(target=change)
            deliveries.begin()
            began_ns = time.monotonic_ns()
            changing.start()
            deliveries.follow_until(lambda: deliveries.epoch == other.epoch)
            stamps["deliver"] = time.monotonic_ns()
            longest = deliveries.longest_ms_until(began_ns + int(1e9 * _AFTER_S))
            changing.join(_PATIENCE_S)
        return _parts("replan", began_ns, stamps) | {"longest": longest}


class _Deliveries:
    """One consumer, and the delays of what it delivers; the messages carry when they were sent."""

    def __init__(self, rig: Any, topic: str, opened: ExitStack) -> None:
        from multicast.consumer import Consumer  # noqa: PLC0415 - not in the measured process

        self._consumer = opened.enter_context(
            Consumer(topic=topic, name="C1", driver=rig.driver, start="latest", committed=False)
        )
        self.count = 0
        self.epoch = 0
        self.newest_ns = 0  # when the last message that was delivered was sent
        self._longest_ns = 0

    def begin(self) -> None:
        """Measure delays from now on."""
        self._longest_ns = 0

    def look(self) -> None:
        """Take what comes within `_LOOK_S`."""
        batches = self._consumer.poll(_LOOK_S)
        now_ns = time.monotonic_ns()
        for batch in batches:
            self.epoch = batch.epoch
            for record in batch.records:
                self.count += 1
                self.newest_ns = int(record.value or 0)
                self._longest_ns = max(self._longest_ns, now_ns - self.newest_ns)

    def follow_until(self, condition: Callable[[], bool]) -> None:
        """Look until a condition holds."""
        deadline = time.monotonic() + _PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, "nothing was delivered"
            self.look()

    def longest_ms_until(self, end_ns: int) -> float:
        """Follow until then; give the longest delay since `begin`."""
        self.follow_until(lambda: self.newest_ns >= end_ns)
        return self._longest_ns / 1e6


class _Watch:
    """Sees the order stream, the control topic and the deliveries of one consumer."""

    def __init__(self, rig: Any, opened: ExitStack) -> None:
        from multicast.control import ControlReader, stream_partition  # noqa: PLC0415

        stream = stream_partition(rig.plan, rig.plan.collectors[0].name)
        start = rig.driver.last_stable_offsets([stream])[stream]
        self._control = ControlReader(rig.driver, rig.topic)
        opened.callback(self._control.close)
        self._orders = rig.driver.reader({stream: start})
        opened.callback(self._orders.close)
        self.deliveries = _Deliveries(rig, rig.topic, opened)
        self._has_begun = False

    def get_steady(self) -> None:
        """Deliver for `_STEADY_S`, until the collector has written something."""
        steady = time.monotonic() + _STEADY_S
        deadline = steady + _PATIENCE_S
        while time.monotonic() < steady or not self._has_begun:
            assert time.monotonic() < deadline, "the collector ordered nothing"
            self.deliveries.look()
            self._has_begun = self._new_records() or self._has_begun

    def until_delivered(
        self, began_ns: int, page: Callable[[], str | None], *, victim_acts: bool
    ) -> Mapping[str, int]:
        """Watch until a message that was sent after `began_ns` is delivered; give the times.

        While the victim acts on, the next instance's records come after it has advertised itself.
        """
        stamps: dict[str, int] = {}
        self.deliveries.begin()
        pages = dict(self._control.refresh().pages)
        deadline = time.monotonic() + _PATIENCE_S
        while "deliver" not in stamps:
            assert time.monotonic() < deadline, "nothing was delivered after the kill"
            self.deliveries.look()
            has_records = self._new_records()
            seen = {
                "deliver": self.deliveries.newest_ns > began_ns,
                "order": has_records and (not victim_acts or "advertise" in stamps),
                "advertise": self._control.follow(0.0).pages != pages,
                "connect": "connect" in stamps or page() is not None,
            }
            for part in [part for part, is_seen in seen.items() if is_seen]:
                stamps.setdefault(part, time.monotonic_ns())
        # What was not seen by then came before the delivery, within one look.
        return defaultdict(partial(int, stamps["deliver"]), stamps)

    def _new_records(self) -> bool:
        return any(each.records for each in self._orders.poll(0.0))


@contextmanager
def _sending(driver: Any, topic: str, *, tickets: bool = False) -> Iterator[None]:
    """Multicast the time, every `_SEND_EVERY_S`, during the context."""
    from multicast import Producer  # noqa: PLC0415 - not in the measured process

    stop = threading.Event()

    def send() -> None:
        with Producer(topic=topic, driver=driver, tickets=tickets) as producer:
            while not stop.wait(_SEND_EVERY_S):
                producer.multicast(b"%d" % time.monotonic_ns(), to={"P1"})

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _within(checkout: Path) -> dict[str, Any]:
    """Give the options of a process that imports our packages from a checkout."""
    return {"cwd": checkout, "env": {**os.environ, "PYTHONPATH": str(checkout)}}


def _until(condition: Callable[[], bool], what: str) -> None:
    deadline, pause = time.monotonic() + _PATIENCE_S, threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come"
        pause.wait(_LOOK_S)


def main(arguments: Sequence[str]) -> None:
    """Measure all durations in turns, and print their medians and maxima."""
    from bench.harness import figures  # noqa: PLC0415 - not in the measured process
    from bench.harness.rig import standing  # noqa: PLC0415

    parser = figures.parser("durations", __doc__)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--only", action="append", choices=tuple(_PARTS))
    parser.add_argument("--beside", type=Path, help="a folder with another checkout")
    options = parser.parse_args(arguments)
    here = Path(__file__).parents[2]
    checkouts = {"": here}
    if options.beside is not None:
        checkouts = {"here.": here, "beside.": options.beside.resolve()}
    samples: dict[str, list[float]] = defaultdict(list)
    with standing(2, [("P1", "P2")]) as rig:
        bench = Bench(rig)
        for number in range(options.repetitions + 1):
            for kind in options.only or _PARTS:
                for name, checkout in checkouts.items():
                    figures.progress(f"{kind}, {number} of {options.repetitions}")
                    parts = bench.measure(kind, checkout)
                    for part, value in parts.items() if number else ():  # the first warms up
                        samples[f"{kind}.{name}{part}"].append(value)
        kafka = rig.kafka
    measured: dict[str, float] = {}
    for name, values in samples.items():
        measured[f"{name}_ms"] = round(statistics.median(values), 1)
        measured[f"{name}_max_ms"] = round(max(values), 1)
    document = figures.document("durations", measured, kafka=kafka, arguments=arguments)
    figures.show(document, options.output)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--consume"]:
        consume(*sys.argv[2:4])
    else:
        main(sys.argv[1:])
