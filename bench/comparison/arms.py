"""One arm of a comparison on a real cluster: its topics, collectors and clients.

All arms of a run are set up first; then one at a time runs a round, while the others are idle. Each
client is a process.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from bench.baselines.poster import PosterTask, collect, order_of
from bench.comparison.client import ArmClient, serve
from bench.comparison.events import PARTITIONS, describe, events_topic, write_statement
from bench.comparison.layouts import lay_out
from bench.comparison.workload import BACKLOG, Workload
from bench.harness.histogram import Latencies
from bench.harness.hosts import ClientProcess, busy_seconds, cpu_seconds
from bench.harness.processes import CollectorProcesses
from collectors.reconfiguration.apply import apply
from collectors.reconfiguration.topics import topics_of
from multicast.control import control_partition, control_topics, order_topic, sentinel_topic
from multicast.drivers.kafka import Admin, TopicSpec
from multicast.drivers.protocol import Driver
from multicast.errors import AmcastError

# The ends of the names of the topics that `amcast bench pipeline` reads: a plan's, and the order's.
_JUDGED_TOPICS = (control_partition("").topic, order_topic(""))
_OPEN_S = 60.0  # for a client to connect, or for the first collector to start
_START_S = 4.0  # for each further collector: they share the cores
_EVENTS_S = 120.0  # to write the events of a round
# A round gets the time that it takes at these rates; a slower one fails with a time-out.
_SLOWEST_BYTES_PER_S = 2_000_000
_SLOWEST_MESSAGES_PER_S = 500
_WARM_S = 1.5  # of an arm with a rate, before the first round: clients connect, code is compiled
_CPU_MIN_S = 0.05  # a rate per CPU second of less CPU time would be noise


@dataclass(frozen=True, slots=True)
class MeasuredCluster:
    """Where to measure: addresses, an open driver, and the process IDs of local brokers.

    With a name for the `run`, the clients write events (`bench.comparison.events`), and the topics
    of plan and order are kept.
    """

    bootstrap: str
    driver: Driver
    broker_pids: tuple[int, ...]
    folder: Path
    run: str | None = None


@dataclass(frozen=True, slots=True)
class Round:
    """The result of one round of an arm: rates and CPU seconds by name, and three histograms."""

    figures: Mapping[str, float]
    publish: Latencies
    delay: Latencies
    end_to_end: Latencies


class Arm:
    """One arm; a context manager that ends its processes and deletes its topics."""

    def __init__(self, workload: Workload, name: str, cluster: MeasuredCluster) -> None:
        self.name = name
        self._workload = workload
        self._cluster = cluster
        self._topic = f"bench-{name}-{time.time_ns()}"
        self._layout = lay_out(workload, name, self._topic)
        self._topics: list[str] = []
        self._stack = ExitStack()
        self._pids: dict[str, list[int]] = {}
        self._producer: ClientProcess
        self._consumers: list[ClientProcess] = []

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._stack = stack
            folder = self._cluster.folder / self.name
            folder.mkdir()
            stack.callback(self._remove_topics)
            collectors = self._collectors(folder)
            self._describe()
            self._clients(folder)
            self._pids = {
                "producers": [self._producer.pid],
                "consumers": [client.pid for client in self._consumers],
                "collectors": collectors,
                "brokers": list(self._cluster.broker_pids),
            }
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:  # noqa: PYI036 - handed on
        self._stack.__exit__(*error)

    def warm_up(self) -> None:
        """Let every client connect, and write the backlog if there is one; measures nothing."""
        rate = self._workload.rate
        total = self._workload.warm_up + self._workload.messages
        count = total if self._workload.load == BACKLOG else max(20, min(total, total // 5))
        if rate is not None:
            count = max(20, min(total, int(rate * _WARM_S)))
        count = min(count, total)
        self._round(0, count, warm_up=0, sends=True, full_speed=rate is None)
        if self._workload.load == BACKLOG:
            self.round(0)

    def round(self, number: int) -> Round:
        """Run one round; raises `AmcastError` if a message was lost or came too late."""
        workload = self._workload
        return self._round(
            number,
            workload.warm_up + workload.messages,
            warm_up=workload.warm_up,
            sends=workload.load != BACKLOG,
            full_speed=False,
        )

    def write_events(self, number: int) -> None:
        """Let every client write the events of its last round, if the run has a name."""
        if self._cluster.run is None:
            return
        for client in (self._producer, *self._consumers):
            client.tell(events=True, round=number, timeout_s=_EVENTS_S)
        for client in (self._producer, *self._consumers):
            client.answer(2 * _EVENTS_S)

    def _round(
        self, number: int, messages: int, *, warm_up: int, sends: bool, full_speed: bool
    ) -> Round:
        """Start the clients, consumers first; wait for their answers, and combine them."""
        backlog = self._workload.load == BACKLOG
        size = self._workload.message_bytes
        seconds = max(messages / _SLOWEST_MESSAGES_PER_S, messages * size / _SLOWEST_BYTES_PER_S)
        timeout_s = 30.0 + max(seconds, 2 * messages / (self._workload.rate or 1e9))
        command: dict[str, Any] = {"round": number, "messages": messages, "warm_up": warm_up}
        command |= {"timeout_s": timeout_s, "full_speed": full_speed}
        before = {role: cpu_seconds(pids) for role, pids in self._pids.items()}
        busy, began = busy_seconds(), time.monotonic()
        reads = not (backlog and sends)
        consumers = self._consumers if reads else []
        for consumer in consumers:
            consumer.tell(**command)
        if sends:
            if reads:
                for consumer in consumers:
                    consumer.answer(timeout_s)
            self._producer.tell(**command, ordered=backlog)
            sent = self._producer.answer(2 * timeout_s)
        else:
            sent = {}
        answers = [consumer.answer(2 * timeout_s) for consumer in consumers]
        after = {role: cpu_seconds(pids) for role, pids in self._pids.items()}
        cpu = {role: after[role] - before[role] for role in self._pids}
        # The rest of the machine: idle clients of other arms, and all other processes.
        busy = busy_seconds() - busy
        cpu["others"] = max(0.0, busy - sum(cpu.values()))
        figures = {"busyCores": round(busy / max(0.001, time.monotonic() - began), 3)}
        figures |= {f"cpuSeconds.{role}": round(seconds, 3) for role, seconds in cpu.items()}
        return self._round_of(sent, answers, figures)

    def _round_of(
        self, sent: Mapping[str, Any], answers: list[dict[str, Any]], figures: dict[str, float]
    ) -> Round:
        if sent.get("errors"):
            raise AmcastError(f"arm {self.name}: {sent['errors']} messages were not acknowledged")
        publish, delay, end_to_end = Latencies(), Latencies(), Latencies()
        if sent:
            publish.add(sent["publish"])
            delay.add(sent["delay"])
            figures["publishRate"] = sent["rate"]
        for index, answer in enumerate(answers):
            if answer["delivered"] != answer["expected"]:
                raise AmcastError(
                    f"arm {self.name}: consumer {index + 1} delivered {answer['delivered']} of "
                    f"{answer['expected']} messages in time"
                )
            end_to_end.add(answer["latency"])
        rates = [answer["rate"] for answer in answers]
        if rates and None not in rates:
            figures["consumeRate"] = sum(rates)
        cpu_s = sum(answer["cpu_s"] for answer in answers)
        if cpu_s > _CPU_MIN_S:
            figures["consumeRatePerCpuSecond"] = (
                sum(answer["cpu_messages"] for answer in answers) / cpu_s
            )
        return Round(figures, publish, delay, end_to_end)

    # -- setting up -------------------------------------------------------------------------

    def _collectors(self, folder: Path) -> list[int]:
        """Create the topics, and start the processes that order; return their IDs."""
        bootstrap, plan = self._cluster.bootstrap, self._layout.plan
        partitions = 1 if self.name == "one-partition" else len(self._layout.partitions)
        with Admin(bootstrap) as admin:
            if plan is not None:
                self._topics = [*topics_of(plan), *control_topics(plan.topic)]
                self._topics.append(sentinel_topic(plan.topic))
                plan = apply(self._cluster.driver, admin, plan).plan
            else:
                topics = {self._topic: TopicSpec(partitions)}
                if self.name == "algorithm1":
                    topics[order_of(self._topic).topic] = TopicSpec(1)
                self._topics = list(topics)
                admin.create_topics(topics)
        if plan is not None:
            host = CollectorProcesses(bootstrap, self._topic, "librdkafka", plan, folder)
            self._stack.enter_context(host)
            # They start at the same time, and share the machine's cores.
            host.wait_healthy(_OPEN_S + _START_S * len(host.names))
            return host.pids
        if self.name == "algorithm1":
            task = PosterTask(bootstrap=bootstrap, topic=self._topic, partitions=partitions)
            return [self._stack.enter_context(ClientProcess("poster", collect, task, folder)).pid]
        return []

    def _describe(self) -> None:
        """Write the arm's description to the run's events now, and its end when the arm closes.

        A run that was interrupted, or failed, has no end: what it lacks is not lost.
        """
        run = self._cluster.run
        if run is None:
            return
        with Admin(self._cluster.bootstrap) as admin:
            admin.create_topics({events_topic(run): TopicSpec(PARTITIONS)})
        description = describe(run, self.name, self._workload, self._layout, self._topic)
        write_statement(self._cluster.driver, run, "arm", description)
        end = {"run": run, "arm": self.name}

        def closed(kind: type[BaseException] | None, *_: object) -> None:
            if kind is None:
                write_statement(self._cluster.driver, run, "end", end)

        self._stack.push(closed)

    def _clients(self, folder: Path) -> None:
        task = ArmClient(
            workload={**asdict(self._workload), "arms": list(self._workload.arms)},
            arm=self.name,
            topic=self._topic,
            bootstrap=self._cluster.bootstrap,
            driver="kafka-python" if self.name == "algorithm1" else "librdkafka",
            run=self._cluster.run,
        )
        enter = self._stack.enter_context
        self._producer = enter(ClientProcess("producer", serve, task, folder))
        for number in range(len(self._layout.consumers)):
            of_one = replace(task, consumer=number)
            self._consumers.append(
                enter(ClientProcess(f"consumer-{number + 1}", serve, of_one, folder))
            )
        for client in (self._producer, *self._consumers):
            client.answer(_OPEN_S)

    def _remove_topics(self) -> None:
        """Delete the topics; of a run with events, those of payloads, which nobody reads again."""
        kept = () if self._cluster.run is None else _JUDGED_TOPICS
        removed = [topic for topic in self._topics if not topic.endswith(kept)]
        if removed:
            with suppress(AmcastError), Admin(self._cluster.bootstrap) as admin:
                admin.delete_topics(removed)
