"""Draws who handles what: for each process and each log, how many order entries it handles.

    python -m bench.micro.genuineness [--interests docs/examples/poster.toml] --out FILE.svg

The same number of messages goes to each log of a system in memory, from producers without tickets,
so collectors order all. A collector handles the entries of its own stream, and those of its
parent's that it drops; a consumer those of the stream that it reads. What a process handles for
nobody that the messages address is foreign work.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from matplotlib import rc_context
from matplotlib.figure import Figure

from multicast.control import ControlReader, stream_partition
from multicast.order.stream import OrderStream
from multicast.testing import system
from multicast.testing.memory_system import MemorySystem
from topology.tree import Plan

_COLOURS = {False: "#0072B2", True: "#D55E00"}  # as in the report
_EXAMPLE = Path("docs/examples/poster.toml")


class Handled(NamedTuple):
    """How many entries of a log a process handled, and whether for nobody addressed."""

    process: str
    log: str
    entries: int
    foreign: bool


def measure(interests: Path, messages: int) -> list[Handled]:
    """Multicast so many messages to each log; count what each process handles."""
    with system(interests) as double:
        plan = double.plan
        producer = double.producer(tickets=False)
        for log in plan.logs:
            for _ in range(messages):
                producer.multicast(b"", to=set(log.to))
        consumers = {entry.name: double.consumer(entry.name) for entry in plan.consumers}
        for consumer in consumers.values():
            double.drain(consumer)
        streams = {node.name: _read(double, node.name) for node in plan.collectors}
        counts = [
            Handled(name, log, count, log not in _wanted(plan, name))
            for name in streams
            for log, count in _of_collector(plan, name, streams).items()
        ]
        for name, consumer in consumers.items():
            entries = consumer.entries()
            dropped = entries.dropped
            counts += [
                Handled(name, log, count, bool(dropped.get(log)))
                for log, count in entries.read.items()
            ]
    return counts


def _read(double: MemorySystem, name: str) -> OrderStream:
    with closing(ControlReader(double.driver, double.topic)) as control:
        stream = control.refresh().stream(1, name, below=0)
    fetched = double.log.read(stream_partition(double.plan, name), 0, 10**9)
    for record in fetched.records if fetched else ():
        stream.read(record.offset, record.value)
    return stream


def _of_collector(plan: Plan, name: str, streams: Mapping[str, OrderStream]) -> dict[str, int]:
    """Count what a collector's stream has ordered, and what it dropped of its parent's."""
    parent = plan.collector(name).parent
    read = [streams[name]] if parent is None else [streams[parent], streams[name]]
    return {
        plan.logs[log].name: stream.state.positions[log] - stream.starts[log]
        for stream in read
        for log in sorted(stream.state.positions)
        if stream.collector == name or plan.logs[log].name not in plan.collector(name).bag
    }


def _wanted(plan: Plan, name: str) -> set[str]:
    """Name the logs that a consumer of this collector, or of one below it, is addressed by."""
    below = {name}
    for node in plan.collectors:
        below |= {node.name} if node.parent in below else set()
    served = [entry.interest for entry in plan.consumers if entry.collector in below]
    return {log.name for interest in served for log in plan.logs_of(interest)}


def draw(counts: list[Handled], out: Path) -> None:
    """Draw a circle for each process and log, as large as its entries are many."""
    processes = list(dict.fromkeys(each.process for each in counts))
    logs = list(dict.fromkeys(sorted(each.log for each in counts)))
    most = max(each.entries for each in counts)
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "amcast", "font.size": 10}):
        figure = Figure(figsize=(6, 0.4 * len(processes) + 1.4), layout="constrained")
        axes = figure.add_subplot()
        for foreign, label in ((False, "for an addressee"), (True, "foreign work: read, dropped")):
            shown = [each for each in counts if each.foreign is foreign and each.entries]
            axes.scatter(
                [logs.index(each.log) for each in shown],
                [processes.index(each.process) for each in shown],
                s=[160 * each.entries / most for each in shown],
                c=_COLOURS[foreign],
                marker="X" if foreign else "o",
                label=label,
            )
        axes.set_xticks(range(len(logs)), logs)
        axes.set_yticks(range(len(processes)), processes)
        axes.set_xlabel("destination set")
        axes.margins(0.12)
        axes.invert_yaxis()
        axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})


def _said(counts: list[Handled]) -> Iterator[str]:
    for each in counts:
        if each.entries:
            yield f"{each.process} {each.log} {each.entries}{' foreign' if each.foreign else ''}"


def main() -> None:
    """Measure and draw."""
    parser = argparse.ArgumentParser(description="Who handles what")
    parser.add_argument("--interests", type=Path, default=_EXAMPLE)
    parser.add_argument("--messages", type=int, default=100, help="to each log")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    counts = measure(options.interests, options.messages)
    draw(counts, options.out)
    print("\n".join(_said(counts)))  # noqa: T201 - its output


if __name__ == "__main__":
    main()
