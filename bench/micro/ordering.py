"""Ordering alone, without Kafka: runs a CPU second through collector core, codec and acceptance.

    python -m bench.micro.ordering [--logs 64] [--ticks 4000] [--grown 520]

One collector, a log in memory. At each tick every log has grown; the core makes order records, they
are stored, the collector reads back what counted and an independent reader judges each record, too.
The figure counts the CPU of all of it; nothing is left out but Kafka.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from bench.harness import figures
from bench.harness.interests import file_of
from collectors.collector import Append, Collector
from multicast.drivers.memory.logs import MemoryLog
from multicast.drivers.protocol import TopicPartition
from multicast.order import OrderRecord, OrderStream
from topology.planner.solver import plan as solve

_STREAM = TopicPartition("bench.Msg-TO", 0)


def measure(*, logs: int, ticks: int, grown: int) -> dict[str, float]:
    """Order `logs` logs that grow by `grown` messages a tick; return the figures."""
    plan = solve(file_of({"C1": [f"P{number}" for number in range(logs)]}))
    (node,) = plan.collectors
    starts = {log.name: 0 for log in plan.logs}
    core = Collector(OrderStream(plan, node.name, starts), None, writer=1)
    core.own_end(0)
    reader = OrderStream(plan, node.name, starts)
    log = MemoryLog({_STREAM.topic: 1})
    runs = messages = 0
    began = time.process_time()
    for tick in range(1, ticks + 1):
        for number in range(logs):
            core.log_end(number, tick * grown)
        while core.lag:
            for action in core.step(tick):
                if isinstance(action, Append):
                    log.write(_STREAM, action.raw)
            found = log.read(_STREAM, core.own.offset_next, 1000)
            assert found is not None
            for record in found.records:
                core.own_read(record.offset, record.value)
                judged = reader.read(record.offset, record.value)
                assert isinstance(judged, OrderRecord)
                runs += len(judged.runs)
                messages += sum([end - first for _, first, end in judged.runs])
            log.trim(_STREAM, found.position)
    seconds = time.process_time() - began
    assert messages == logs * ticks * grown
    return {
        "runs_per_cpu_second": round(runs / seconds),
        "records_per_cpu_second": round(reader.state.count / seconds),
        "messages_per_cpu_second": round(messages / seconds),
        "cpu_seconds": round(seconds, 3),
    }


def main(arguments: Sequence[str]) -> None:
    """Measure once and print it."""
    parser = figures.parser("ordering", __doc__)
    parser.add_argument("--logs", type=int, default=64)
    parser.add_argument("--ticks", type=int, default=4000)
    parser.add_argument("--grown", type=int, default=520, help="messages a log and tick")
    asked = parser.parse_args(arguments)
    found = measure(logs=asked.logs, ticks=asked.ticks, grown=asked.grown)
    told = figures.document("ordering", found, kafka="none", arguments=arguments)
    figures.show(told, asked.output)


if __name__ == "__main__":
    main(sys.argv[1:])
