"""Measures ordering without Kafka: runs per CPU second of collector core, codec and acceptance.

    python -m bench.micro.ordering [--logs 64] [--ticks 4000] [--grown 520]

One collector orders logs in memory. At each tick every log grows; the core makes order records,
which are stored and read back by the collector and by an independent reader. The figure includes
the CPU time of all these steps, that is of everything except Kafka.
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
            fetched = log.read(_STREAM, core.own.offset_next, 1000)
            assert fetched is not None
            for record in fetched.records:
                core.own_read(record.offset, record.value)
                judged = reader.read(record.offset, record.value)
                assert isinstance(judged, OrderRecord)
                runs += len(judged.runs)
                messages += sum([end - first for _, first, end in judged.runs])
            log.trim(_STREAM, fetched.position)
    seconds = time.process_time() - began
    assert messages == logs * ticks * grown
    return {
        "runs_per_cpu_second": round(runs / seconds),
        "records_per_cpu_second": round(reader.state.count / seconds),
        "messages_per_cpu_second": round(messages / seconds),
        "cpu_seconds": round(seconds, 3),
    }


def main(arguments: Sequence[str]) -> None:
    """Measure once, and print the figures."""
    parser = figures.parser("ordering", __doc__)
    parser.add_argument("--logs", type=int, default=64)
    parser.add_argument("--ticks", type=int, default=4000)
    parser.add_argument("--grown", type=int, default=520, help="messages a log and tick")
    options = parser.parse_args(arguments)
    measured = measure(logs=options.logs, ticks=options.ticks, grown=options.grown)
    document = figures.document("ordering", measured, kafka="none", arguments=arguments)
    figures.show(document, options.output)


if __name__ == "__main__":
    main(sys.argv[1:])
