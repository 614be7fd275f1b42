"""Measures a collector's share of a core: at 100,000 messages/s of 100 B, and idle.

    python -m bench.micro.collector_cpu [--rate 100000] [--seconds 10] [--idle-seconds 20] [--check]

The collector is a process, the broker is new; the figure is the CPU time of all its threads over
the elapsed time, and its resident memory at the end of the load. The load is an open loop of small
bursts, one a millisecond.

    plain    the messages come from a plain Kafka producer
    tickets  the messages come from this project's `Producer`, which writes tickets
    idle     no messages come
    check_   the same once more with `collectors run --check`, which reads what all consumers read
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from functools import partial

from bench.harness import figures
from bench.harness.hosts import cpu_seconds, resident_bytes
from bench.harness.rig import Rig, append_all, pause, standing, ticks
from multicast.producing.producer import Producer

_MODULE = "bench.micro.collector_cpu"
_PARTITIONS = 2  # the fewest that need a collector
_TICK_S = 0.001  # between two bursts, so that the load is nearly even
_SETTLE_S = 2.0  # before the idle measurement, for timers and checkpoints of the load to end


def measure(
    rig: Rig, options: Sequence[str], *, rate: int, seconds: float, idle_s: float
) -> dict[str, float]:
    """Run the three loads one after the other; return the figures."""
    burst = [bytes(100)] * max(1, round(rate * _TICK_S))
    measured: dict[str, float] = {}
    with rig.collectors(*options) as collectors:
        collectors.wait_healthy()
        pids = collectors.pids
        appender = rig.driver.appender()
        with Producer(topic=rig.topic, driver=rig.driver) as producer:
            names = [{log.name} for log in rig.plan.logs]

            def plain(tick: int) -> None:
                append_all(appender, rig.partitions[tick % _PARTITIONS], burst)

            def with_tickets(tick: int) -> None:
                producer.multicast_all(burst, to=names[tick % _PARTITIONS])

            def load(length_s: float, send: Callable[[int], None]) -> int:
                """Send, and wait until the last message is ordered; return the bursts sent."""
                sent = 0
                for tick in ticks(length_s, _TICK_S):
                    send(tick)
                    sent += 1
                for name in names:
                    producer.multicast(b"", to=name).ordered(5.0)
                return sent

            for name, send in (("plain", plain), ("tickets", with_tickets)):
                figures.progress(f"{rate} messages/s, {name}")
                load(1.0, send)
                share, reached = _share(pids, partial(load, seconds, send))
                measured[f"share_at_100k_{name}"] = share
                measured[f"rate_{name}"] = round(reached * len(burst))
                measured[f"resident_mib_{name}"] = round(resident_bytes(pids) / 2**20, 1)
        appender.close()
        measured["share_at_100k"] = max(
            measured["share_at_100k_plain"], measured["share_at_100k_tickets"]
        )
        figures.progress("idle")
        pause(_SETTLE_S)
        measured["idle_share"], _ = _share(pids, partial(_wait, idle_s))
    return measured


def _wait(seconds: float) -> int:
    pause(seconds)
    return 0


def _share(pids: Sequence[int], what: Callable[[], int]) -> tuple[float, float]:
    """Return the share of a core while `what` runs, and its count per second."""
    before, began = cpu_seconds(pids), time.monotonic()
    counted = what()
    seconds = time.monotonic() - began
    return round((cpu_seconds(pids) - before) / seconds, 4), counted / seconds


def main(arguments: Sequence[str]) -> None:
    """Measure once, and print the figures."""
    parser = figures.parser(_MODULE, __doc__)
    parser.add_argument("--rate", type=int, default=100_000, help="messages/s")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--idle-seconds", type=float, default=20.0)
    parser.add_argument("--check", action="store_true", help="once more, with the always-on check")
    options = parser.parse_args(arguments)
    with standing(_PARTITIONS) as rig:
        loads = partial(
            measure, rig, rate=options.rate, seconds=options.seconds, idle_s=options.idle_seconds
        )
        measured = loads(())
        if options.check:
            measured |= {f"check_{name}": figure for name, figure in loads(["--check"]).items()}
        document = figures.document(_MODULE, measured, kafka=rig.kafka, arguments=arguments)
    figures.show(document, options.output)


if __name__ == "__main__":
    main(sys.argv[1:])
