"""Measures the delivery delay while the tree of a running topic changes under load.

    python -m bench.micro.replanning [--brokers 3] [--rate 5000] [--changes 7]

Three brokers, a producer process with a steady rate, a process for each collector. The poster's
tree and another tree for the same consumers take turns; a second tree of the plan never changes.
Probes read as every consumer. A window without a change precedes each change, for comparison.

    delay       from the producer's stamp on a message to its delivery: p99 over a window
    untouched   the delay of the consumer of the second tree, which no change affects
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench.harness import figures
from bench.harness.interests import file_of
from bench.harness.rig import pause, ticks
from collectors.reconfiguration.apply import apply
from collectors.reconfiguration.probes import Probes, Seen
from collectors.testing.processes import CollectorProcesses, end
from multicast import Producer
from multicast.drivers import open_driver
from multicast.drivers.kafka_python import Admin
from multicast.drivers.protocol import Driver
from multicast.errors import AmcastError
from multicast.local.cluster import LocalCluster
from topology.carry_over import retained
from topology.changes import with_kept_names
from topology.planner.solver import plan as solve
from topology.rollback import back
from topology.tree import Plan

_UNTOUCHED = "C4"
INTERESTS = {
    "C1": ["P1", "P2", "P3"],
    "C2": ["P2", "P3", "P4"],
    "C3": ["P3", "P4", "P5"],
    _UNTOUCHED: ["P6", "P7"],
}
SETS = (("P1", "P3"), ("P2", "P3", "P4"))
_TICK_S = 0.05  # all messages of a set in one batch: three brokers on two cores carry few requests
_MESSAGE_BYTES = 100
_WINDOW_S = 3.0  # 15,000 messages at the default rate, so that a p99 has 150 beyond it
WARM_S = 15.0  # new brokers compile their code for about ten seconds
_SEND_S = 3600.0  # the longest load; a measurement takes minutes


def measure(driver: Driver, admin: Admin, plan: Plan, *, changes: int) -> dict[str, Any]:
    """Alternate between two trees; return percentiles, and the totals that the probes saw."""
    # Another tree for the same consumers: with one root that knows all logs.
    other = solve(file_of(INTERESTS, SETS), prefer="latency", base_epoch=1)
    other = with_kept_names(plan, other)
    assert retained(plan, other).collectors, "the second tree must not change"
    layouts, running = [plan, other], plan
    usual: list[float] = []
    during: list[float] = []
    untouched: dict[str, list[float]] = {"usual": [], "during": []}
    messages = violations = 0
    for number in range(changes):
        figures.progress(f"change {number + 1} of {changes}")
        with Probes(driver, running) as probes:
            pause(_WINDOW_S)
            before = probes.judged(running)
        after = back(layouts[(number + 1) % 2], running)
        with Probes(driver, running) as probes:
            running = apply(driver, admin, after, timeout_s=60.0, say=figures.progress).plan
            pause(_WINDOW_S / 2)
            seen = probes.judged(running)
        for window in (before, seen):
            refuse_blind(window)
            messages += window.messages
            violations += len(window.violations)
        usual.append(before.delay_p99_ms or 0.0)
        during.append(seen.delay_p99_ms or 0.0)
        untouched["usual"].append(before.delay_p99_ms_of[_UNTOUCHED] or 0.0)
        untouched["during"].append(seen.delay_p99_ms_of[_UNTOUCHED] or 0.0)
    return {
        "changes": changes,
        "messages": messages,
        "violations": violations,
        "usual_p99_ms": round(statistics.median(usual), 1),
        "during_p99_ms": round(statistics.median(during), 1),
        "usual_p99_ms_each": [round(delay_ms, 1) for delay_ms in usual],
        "during_p99_ms_each": [round(delay_ms, 1) for delay_ms in during],
        "untouched_usual_p99_ms": round(statistics.median(untouched["usual"]), 1),
        "untouched_during_p99_ms": round(statistics.median(untouched["during"]), 1),
    }


def refuse_blind(seen: Seen) -> None:
    """Raise `AmcastError` if a probe read nothing, so that its silence is not taken for order."""
    if seen.unread or None in seen.delay_p99_ms_of.values():
        raise AmcastError(f"a probe read nothing: {seen.unread or 'no message came'}")


@contextmanager
def load(bootstrap: str, topic: str, rate: int) -> Iterator[None]:
    """Run a producer process during the context."""
    command = [
        sys.executable,
        "-m",
        "bench.micro.replanning",
        "--send",
        bootstrap,
        topic,
        str(rate),
    ]
    process = subprocess.Popen(command)
    try:
        yield
    finally:
        process.terminate()
        end(process)


def _send(bootstrap: str, topic: str, rate: int) -> None:
    """Multicast at a rate to each set in turns, until SIGTERM."""
    sets = [*([f"P{number}"] for number in range(1, 8)), *SETS]
    values = [bytes(_MESSAGE_BYTES)] * max(1, round(rate * _TICK_S / len(sets)))
    with Producer(bootstrap, topic=topic) as producer:
        for _ in ticks(_SEND_S, _TICK_S):
            for to in sets:
                producer.multicast_all(values, to=to)


def main(arguments: Sequence[str]) -> None:
    """Measure once, and print the figures."""
    parser = figures.parser("replanning", __doc__)
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--rate", type=int, default=5000)
    parser.add_argument("--changes", type=int, default=7)
    parser.add_argument("--send", nargs=3, metavar=("BOOTSTRAP", "TOPIC", "RATE"))
    options = parser.parse_args(arguments)
    if options.send:
        _send(options.send[0], options.send[1], int(options.send[2]))
        return
    with ExitStack() as stack:
        cluster = stack.enter_context(LocalCluster(brokers=options.brokers))
        driver = open_driver("librdkafka", cluster.bootstrap)
        stack.callback(driver.close)
        admin = stack.enter_context(Admin(cluster.bootstrap))
        plan = apply(driver, admin, solve(file_of(INTERESTS, SETS))).plan
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="amcast-bench-")))
        hosts = CollectorProcesses(cluster.bootstrap, plan.topic, "librdkafka", plan, folder)
        stack.enter_context(hosts).wait_healthy()
        stack.enter_context(load(cluster.bootstrap, plan.topic, options.rate))
        pause(WARM_S)
        measured = measure(driver, admin, plan, changes=options.changes)
        document = figures.document(
            "replanning", measured, kafka=cluster.version, arguments=arguments
        )
    figures.show(document, options.output)


if __name__ == "__main__":
    main(sys.argv[1:])
