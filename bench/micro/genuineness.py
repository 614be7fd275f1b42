"""Draws who handles what: for each process and each log, how many order entries it handles.

    python -m bench.micro.genuineness [--interests docs/examples/poster.toml] --out FILE.svg

The same number of messages goes to each log of a system in memory, from producers without tickets,
so collectors order all. A collector handles the entries of its own stream, and those of its
parent's that it drops; a consumer those of the stream that it reads. What a process handles for
nobody that the messages address is foreign work.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from contextlib import closing
from html import escape
from pathlib import Path
from typing import NamedTuple

from multicast.control import ControlReader, stream_partition
from multicast.order.stream import OrderStream
from multicast.testing import system
from multicast.testing.memory_system import MemorySystem
from topology.tree import Plan

_CELL = 60  # of the grid, in pixels
_LEGEND = ("dot: handled for an addressee", "cross: foreign work, read and dropped")
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
    """Write a grid of processes and logs as SVG: a dot for an addressee, a cross for nobody."""
    processes = list(dict.fromkeys(each.process for each in counts))
    logs = sorted({each.log for each in counts})
    width, height = _CELL * (len(logs) + 1), _CELL * (len(processes) + 2)
    marks = [
        *(_text(log, number + 1, 0) for number, log in enumerate(logs)),
        *(_text(process, 0, number + 1) for number, process in enumerate(processes)),
        *(
            _mark(logs.index(each.log) + 1, processes.index(each.process) + 1, each)
            for each in counts
            if each.entries
        ),
        *(
            f'<text x="{width // 2}" y="{height - _CELL + 20 * line}">{text}</text>'
            for line, text in enumerate(_LEGEND, start=1)
        ),
    ]
    out.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'font-family="sans-serif" font-size="14" text-anchor="middle">'
        f'<rect width="100%" height="100%" fill="#fff"/>\n' + "\n".join(marks) + "\n</svg>\n",
        encoding="utf-8",
    )


def _text(text: str, column: int, row: int) -> str:
    return f'<text x="{_middle(column)}" y="{_middle(row) + 5}">{escape(text)}</text>'


def _mark(column: int, row: int, each: Handled) -> str:
    x, y = _middle(column), _middle(row)
    title = f"<title>{escape(each.process)}: {each.entries} entries of {escape(each.log)}</title>"
    if each.foreign:
        path = f"M{x - 7} {y - 7}l14 14m0-14l-14 14"
        return f'<path d="{path}" stroke="#D55E00" stroke-width="4">{title}</path>'
    return f'<circle cx="{x}" cy="{y}" r="8" fill="#0072B2">{title}</circle>'


def _middle(place: int) -> int:
    return place * _CELL + _CELL // 2


def main() -> None:
    """Measure and draw."""
    parser = argparse.ArgumentParser(description="Who handles what")
    parser.add_argument("--interests", type=Path, default=_EXAMPLE)
    parser.add_argument("--messages", type=int, default=100, help="to each log")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    counts = measure(options.interests, options.messages)
    draw(counts, options.out)
    for each in counts:
        what = " foreign" if each.foreign else ""
        sys.stdout.write(f"{each.process} {each.log} {each.entries}{what}\n")


if __name__ == "__main__":
    main()
