"""The system under test: three brokers, instances of collectors, and clients with a steady load.

Each part is a process. With a network each process runs on one of its hosts; without one, all run
on the loopback. The clients of host c4 reach the brokers through a proxy.

    b1 b2 b3    a broker each
    c1 c2       instances that share the collectors: i1; i2 and i3
    c3          producers p1, s1 and s2, consumers C1, C3 and C5
    c4          producers p2, f1 and bulk, consumers C2 and C4, through the proxy

No fault strikes s1 and s2: their logs never rest for 250 ms. f1 keeps its own order. Bulk runs only
for some faults.

This module knows no faults; `faults/` has them.
"""

from __future__ import annotations

import json
import os
import time
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

from bench.harness.client import command
from bench.harness.interests import file_of
from bench.nemesis.manual import ManualProducer
from bench.nemesis.network import DESK, Network
from bench.nemesis.programs import Consume, Produce, consume, produce
from bench.nemesis.proxy import Proxy
from bench.nemesis.running import Canary, MakeCommand, Program, Starvation, flags_of, marked, until
from collectors.cli.cluster import control_of
from collectors.reconfiguration.apply import apply
from multicast import Producer
from multicast.control import control_topics, log_partition, order_topic, stream_partition
from multicast.drivers import open_driver
from multicast.drivers.kafka import Admin
from multicast.drivers.protocol import Driver, TopicPartition
from multicast.errors import AmcastError, TimedOut
from multicast.local.broker import BrokerHost, free_ports
from multicast.local.cluster import LocalCluster
from multicast.local.process import Guard
from multicast.local.state import new_token
from multicast.settings import Settings
from topology.planner.solver import plan as solve
from topology.tree import Plan

SETS = (("P1",), ("P2",), ("P3",), ("P4",), ("P5",), ("P1", "P3"), ("P2", "P3", "P4"))
# Logs with 160 and 8 messages/s. By producer the sets that it sends to in turns, and its rate.
STEADY_SETS = (("P6",), ("P7",))
_STEADY: Mapping[str, tuple[Sequence[Sequence[str]], float]] = {
    "s1": ([("P6",)] * 10 + [("P7",)], 88.0),
    "s2": ([("P6",)], 80.0),
}
_FIFO = "f1"
_FIFO_RATE = 10.0
INTERESTS: Mapping[str, Sequence[str]] = {
    "C1": ("P1", "P2", "P3"),
    "C2": ("P2", "P3", "P4"),
    "C3": ("P3", "P4", "P5"),
    "C4": ("P5",),  # a lone reader: no collector serves it
    "C5": ("P6", "P7"),
}
# Each of these interests adds a collector without a reader, so that an instance hosts more
# collectors than a default thread pool has threads (cores + 4).
IDLE: Mapping[str, Sequence[str]] = {
    f"Z{number}": (f"Q{number}", f"R{number}") for number in range(2 * (os.cpu_count() or 1) + 8)
}
BROKERS = (1, 2, 3)
INSTANCES = {"i1": "c1", "i2": "c2", "i3": "c2"}
_SPARE = ("i4", "c1")
STRUCK = ("p1", "p2")  # the producers that faults strike
_PRODUCERS = {"p1": "c3", "p2": "c4", _FIFO: "c4", **dict.fromkeys(_STEADY, "c3")}
_BULK = ("bulk", "c4")
# Some faults outlast them; a broker that does not answer leads for 9 s more.
_DELIVERY_TIMEOUTS_S = {"p1": 2.0, "p2": 6.0, _FIFO: 4.0, "s1": 4.0, "s2": 4.0, "bulk": 10.0}
CONSUMERS = {"C1": "c3", "C2": "c4", "C3": "c3", "C4": "c4", "C5": "c3"}
_ON_KAFKA_PYTHON = ("C4",)
CLIENT_HOSTS = ("c1", "c2", "c3", "c4")
HOSTS = (*(f"b{number}" for number in BROKERS), *CLIENT_HOSTS)
PROXIED = "c4"
# A restarted consumer and an auditor may read the whole run, on a loaded machine.
_CONSUMED_S, _AUDITED_S = 150.0, 300.0
_MESSAGE_BYTES = 100
_START_S = 90.0  # three Java brokers and a dozen Python processes on two loaded cores
_ADMIN_TIMEOUT_S = 4.0  # for one answer of a broker, which may be frozen or cut off
# Allows shorter group sessions than Kafka's default minimum of 6 s.
_SETTINGS = {"group.min.session.timeout.ms": "1000"}
_LOOPBACK = "127.0.0.1"
_PROTOCOLS = "PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT,CONTROLLER:PLAINTEXT"


class _Ports(NamedTuple):
    """A broker's ports: for brokers and clients, for the proxy, for KRaft."""

    plain: int
    proxied: int
    control: int


class System:
    """The running system; a context manager. `folder` holds histories and logs.

    Without a `network` all processes run on the loopback. A `temporary` folder is deleted if this
    process is killed. Entering raises `TimedOut` if the system does not start. One thread uses it.
    """

    proxy: Proxy
    cluster: LocalCluster
    admin: Admin
    driver: Driver
    manual_producer: ManualProducer
    topic: str
    layouts: tuple[Plan, Plan]

    def __init__(
        self,
        folder: Path,
        *,
        rate: float,
        network: Network | None,
        temporary: bool,
        say: Callable[[str], None],
    ) -> None:
        self.folder = folder
        self._temporary = temporary
        self.network = network
        self.token = new_token()
        self.work: dict[tuple[str, str], int] = {}
        self._rate = rate
        self._say = say
        self._bulk: dict[str, Any] = {}
        self._stack = ExitStack()
        self.programs: dict[str, Program] = {}
        names = [*INSTANCES, _SPARE[0]]
        self._web_ports = dict(zip(names, free_ports(len(names)), strict=True))
        due = {name: logs_of(interest) for name, interest in INTERESTS.items()}
        self.canary = Canary(folder, due)
        self.starvation = Starvation(self.token, str(folder))

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # --- hosts and addresses ------------------------------------------------------------------

    def command(self, host: str, argv: Sequence[str]) -> Sequence[str]:
        """Return the command line that runs a program on a host."""
        return argv if self.network is None else self.network.command(host, argv)

    def address(self, host: str) -> str:
        """Return the address of a host, or of the desk."""
        return _LOOPBACK if self.network is None else self.network.address(host)

    def bootstrap_at(self, host: str) -> str:
        """Return the bootstrap addresses for the clients of a host."""
        return self.proxy.bootstrap if host == PROXIED else self.cluster.bootstrap

    def _make_cluster(self) -> LocalCluster:
        """Make the brokers; each has a second listener, which only the proxy uses."""
        free = iter(free_ports(3 * len(BROKERS)))
        ports = {number: _Ports(next(free), next(free), next(free)) for number in BROKERS}
        addresses = {number: self.address(f"b{number}") for number in BROKERS}
        targets = {number: (addresses[number], ports[number].proxied) for number in BROKERS}
        self.proxy = self._stack.enter_context(Proxy(targets, host=self.address(DESK)))
        hosts = []
        for number in BROKERS:
            address, (plain, proxied, control) = addresses[number], ports[number]
            shown_host, shown_port = self.proxy.address(number)
            listeners = f"PLAINTEXT://{address}:{plain},PROXIED://{address}:{proxied}"
            settings = {
                "listeners": f"{listeners},CONTROLLER://{address}:{control}",
                "advertised.listeners": f"PLAINTEXT://{address}:{plain},"
                f"PROXIED://{shown_host}:{shown_port}",
                "listener.security.protocol.map": _PROTOCOLS,
            }
            run = tuple(self.command(f"b{number}", ()))
            hosts.append(BrokerHost(address, run, settings, plain, control))
        return LocalCluster(
            self.folder / "brokers", hosts=hosts, settings=_SETTINGS, start_timeout_s=_START_S
        )

    # --- start --------------------------------------------------------------------------------

    def _start(self) -> None:
        guard = Guard(self.token, remove=self.folder if self._temporary else None)
        self._stack.callback(guard.dismiss)
        self._stack.enter_context(self.starvation)
        self._say("starting three brokers")
        self.cluster = self._stack.enter_context(self._make_cluster())
        self.admin = self._stack.enter_context(
            Admin(self.cluster.bootstrap, request_timeout_s=_ADMIN_TIMEOUT_S)
        )
        self.driver = open_driver("librdkafka", self.cluster.bootstrap)
        self._stack.callback(self.driver.close)
        interests = file_of({**INTERESTS, **IDLE}, [to for to in SETS if len(to) > 1])
        applied = apply(self.driver, self.admin, solve(interests), timeout_s=60.0)
        self.topic = applied.plan.topic
        # Another tree for the same consumers: with one root that knows all logs.
        other = solve(interests, phi=0.1, base_epoch=1)
        self.layouts = (applied.plan, other)
        self._stack.callback(self._end_programs)
        self._say("starting collectors and clients")
        for name, host in INSTANCES.items():
            self._add(name, host, self._instance(name, host)).start()
        for name, host in CONSUMERS.items():
            self._add(name, host, self._consumer(name, host)).start()
        for name, host in _PRODUCERS.items():
            self._add(name, host, self._producer(name, host)).start()
        self._add(*_SPARE, self._instance(*_SPARE))
        self._add(*_BULK, self._producer(*_BULK))
        producer = self._stack.enter_context(Producer(topic=self.topic, driver=self.driver))
        self.manual_producer = ManualProducer(producer, "hand", self.folder)
        began_ns = time.monotonic_ns()
        if not self.recovered(began_ns, timeout_s=_START_S):
            raise TimedOut(f"the system did not start: {self.what_is_missing(began_ns)}")
        if not self.all_run(timeout_s=_START_S, brokers=False):
            raise TimedOut(f"collectors do not run: {', '.join(self.not_running())}")

    def _add(self, name: str, host: str, make_command: MakeCommand) -> Program:
        environment = {"AMCAST_WEB_HOST": self.address(host)}
        command = partial(self.command, host)
        program = Program(name, make_command, command, folder=self.folder, environment=environment)
        self.programs[name] = program
        return program

    def _instance(self, name: str, host: str) -> MakeCommand:
        def make_command(_: int) -> list[str]:
            port = str(self._web_ports[name])
            flags = ["-b", self.bootstrap_at(host), "-t", self.topic, "--web-port", port]
            return marked(self.token, "multicast", "collectors", "run", *flags)

        return make_command

    def _consumer(self, name: str, host: str) -> MakeCommand:
        def make_command(start: int) -> list[str]:
            about = self._about("consume", name, host, start)
            task = Consume(**about, end_timeout_s=_CONSUMED_S)
            return command(consume, task, *flags_of(self.token))

        return make_command

    def _producer(self, name: str, host: str) -> MakeCommand:
        def make_command(start: int) -> list[str]:
            about = self._about("produce", name, host, start)
            own = _FIFO_RATE if name == _FIFO else self._rate / len(STRUCK)
            sets, rate = _STEADY.get(name, (SETS, own))
            steady = {"sets": sets, "rate": rate, "fifo": name == _FIFO}
            load = self._bulk if name == _BULK[0] else steady
            about |= {"delivery_timeout_s": _DELIVERY_TIMEOUTS_S[name], "bytes": _MESSAGE_BYTES}
            return command(produce, Produce(**{**about, **load}), *flags_of(self.token))

        return make_command

    def bulk(self, to: Sequence[str], messages: int, *, size: int = _MESSAGE_BYTES) -> Program:
        """Start a producer that sends many messages of so many bytes at once, and ends."""
        self._bulk = {"sets": [to], "rate": 1.0, "bulk": messages, "bytes": size}
        self.programs[_BULK[0]].start()
        return self.programs[_BULK[0]]

    def _about(self, verb: str, name: str, host: str, start: int) -> dict[str, Any]:
        return {
            "bootstrap": self.bootstrap_at(host),
            "topic": self.topic,
            "driver": "kafka-python" if name in _ON_KAFKA_PYTHON else "librdkafka",
            "client": {"client.id": name},
            "name": name,
            "instance": str(start),
            "history": str(self.folder / f"{verb}-{name}.{start}.jsonl"),
        }

    # --- while it runs ------------------------------------------------------------------------

    @property
    def spare(self) -> Program:
        """A further instance of the collectors, which does not run at first."""
        return self.programs[_SPARE[0]]

    def spare_takes_part(self) -> bool:
        """Whether the spare instance is a member of the group."""
        status = self._status(*_SPARE)
        return status.get("member") in status.get("members", ())

    def primaries(self) -> dict[str, list[str]]:
        """Return by instance the collectors of which it is the primary, if it answers."""
        return {
            name: [str(node["node"]) for node in nodes if node["role"] == "primary"]
            for name, nodes in self._nodes().items()
        }

    def _nodes(self) -> dict[str, list[dict[str, Any]]]:
        """Ask each instance that runs from the start for its collectors."""
        return {name: self._status(name, host).get("nodes", []) for name, host in INSTANCES.items()}

    def not_running(self) -> list[str]:
        """Name the newest plan's collectors that run in no answering instance."""
        work = {
            str(node["node"])
            for nodes in self._nodes().values()
            for node in nodes
            if node["state"] == "running" and node.get("begun")
        }
        return [node.name for node in self.plans()[-1].collectors if node.name not in work]

    def _status(self, name: str, host: str) -> dict[str, Any]:
        """Return an instance's status; {} if it does not answer."""
        try:
            url = f"http://{self.address(host)}:{self._web_ports[name]}/status"
            with urllib.request.urlopen(url, timeout=2) as answer:
                status: dict[str, Any] = json.load(answer)
        except (OSError, ValueError):
            return {}
        return status

    def plans(self) -> list[Plan]:
        """Return the plans of all epochs so far; the last is that of the newest epoch."""
        with control_of(Settings(self.cluster.bootstrap, self.topic)) as (_, state):
            return [state.plan(epoch) for epoch in range(1, state.epoch + 1)]

    def leader_of(self, to: Sequence[str]) -> int:
        """Return the broker that leads the log of a destination set; raises if none does."""
        return self.leader(log_partition(self.layouts[0].log("+".join(to))))

    def leaders(self, sets: Iterable[Sequence[str]]) -> list[tuple[Sequence[str], int, int]]:
        """Return of some sets the leaders of log and order stream; if any differ, only those."""
        plan = self.plans()[-1]
        tops = {tuple(to): plan.top("+".join(to)) for to in sets}
        led: list[tuple[Sequence[str], int, int]] = []
        for to, top in tops.items():
            if top is not None:
                stream = stream_partition(plan, top.name)
                led.append((to, self.leader_of(to), self.leader(stream)))
        return [one for one in led if one[1] != one[2]] or led

    def leader(self, partition: TopicPartition) -> int:
        """Return the broker that leads a partition; raises if none does."""
        for number, leader, _, _ in self.admin.holders([partition.topic])[partition.topic]:
            if number == partition.partition and leader >= 0:
                return leader
        raise TimedOut(f"no broker leads partition {partition.partition} of {partition.topic}")

    def whole(self) -> bool:
        """Whether all brokers run, and every partition of the system has all replicas in sync."""
        try:
            _, alive = self.admin.members()
            topics = {log.topic for log in self.layouts[0].logs}
            names = sorted({*topics, order_topic(self.topic), *control_topics(self.topic)})
            names.append("__consumer_offsets")
            held = self.admin.holders(names)
        except AmcastError:
            return False
        return alive == set(BROKERS) and all(
            set(replicas) == set(in_sync)
            for partitions in held.values()
            for _, _, replicas, in_sync in partitions
        )

    def trouble(self) -> list[str]:
        """Return a sentence for each program that ended unexpectedly."""
        return [
            sentence
            for program in self.programs.values()
            if (sentence := program.trouble()) is not None
        ]

    def all_run(self, *, timeout_s: float, brokers: bool) -> bool:
        """Wait until all collectors run; with `brokers`, all brokers, too, with all replicas."""

        def done() -> bool:
            return not (self.not_running() or (brokers and not self.whole()))

        return until(done, timeout_s=timeout_s, pause_s=0.5)

    def recovered(self, since_ns: int, *, timeout_s: float, brokers: bool = False) -> bool:
        """Wait until each consumer has delivered a message sent after `since_ns` from each log.

        With `brokers`, wait also until all replicas are in sync. Returns whether this came in time;
        a program that ended unexpectedly ends the wait, too.
        """

        def done() -> bool:
            return bool(self.trouble()) or not self.canary.behind(since_ns)

        deadline = time.monotonic() + timeout_s
        came = until(done, timeout_s=timeout_s)
        if came and brokers:
            left_s = deadline - time.monotonic()
            came = until(self.whole, timeout_s=left_s, pause_s=0.2)
        return came and not self.trouble()

    def what_is_missing(self, since_ns: int) -> str:
        """Say in a sentence what `recovered` still waits for."""
        trouble = self.trouble()
        if trouble:
            return "; ".join(trouble)
        behind = self.canary.behind(since_ns)
        if behind:
            return f"nothing new was delivered to {', '.join(behind)}"
        return "some replica is not in sync"

    def restore(self) -> None:
        """Undo as far as possible the effects of a fault that failed halfway."""
        self.proxy.disarm()
        if self.network is not None:
            self.network.heal()
        for broker in self.cluster.status().brokers:
            with suppress(AmcastError):
                if broker.state == "paused":
                    self.cluster.resume(broker.broker_id)
                elif broker.state == "stopped":
                    self.cluster.restart(broker.broker_id)
        for name, program in self.programs.items():
            if program.runs:
                program.thaw()
            elif name in {*INSTANCES, *CONSUMERS, *_PRODUCERS}:
                program.start()

    # --- end ----------------------------------------------------------------------------------

    def finish(self) -> list[str]:
        """Stop the load, let every consumer read to the end, and audit; return failures."""
        wrong = self.trouble()
        self.all_run(timeout_s=_START_S, brokers=False)
        wrong += [f"collector {name} does not run" for name in self.not_running()]
        self.manual_producer.close()
        audits = []
        for name in CONSUMERS:
            about = {**self._about("audit", name, "c3", 0), "instance": "audit"}
            task = Consume(**about, end_timeout_s=_AUDITED_S, audits=True)
            argv = command(consume, task, *flags_of(self.token))
            audits.append(self._add(f"{name}.audit", "c3", partial(_same, argv)))
        for some in (_PRODUCERS, CONSUMERS):
            wrong += self._stopped([self.programs[name] for name in some])
        self.work = self._counted_work()
        for audit in audits:  # one after the other: at once, they would compete for the cores
            audit.start()
            try:
                audit.wait()
            except AmcastError as error:
                wrong.append(str(error))
        return wrong + self._stopped([self.programs[name] for name in INSTANCES])

    def _counted_work(self) -> dict[tuple[str, str], int]:
        """Return how many records each collector of the running epoch has ordered, by log."""
        work: dict[tuple[str, str], int] = {}
        for nodes in self._nodes().values():
            for node in nodes:
                for log, records in node.get("ordered", {}).items():
                    key = (str(node["node"]), log)
                    work[key] = max(work.get(key, 0), records)  # a standby counts the same records
        return work

    def _stopped(self, programs: Sequence[Program]) -> list[str]:
        """Stop programs; return failures as sentences."""
        wrong = []
        running = [program for program in programs if program.runs]
        for program in running:
            program.ask_to_stop()
        for program in running:
            try:
                program.wait()
            except AmcastError as error:
                wrong.append(str(error))
        return wrong

    def _end_programs(self) -> None:
        for program in self.programs.values():
            program.end()


def logs_of(interest: Sequence[str]) -> list[str]:
    """Name the logs with load that an interest meets."""
    return ["+".join(to) for to in (*SETS, *STEADY_SETS) if set(to) & set(interest)]


def _same(argv: Sequence[str], _: int) -> Sequence[str]:
    return argv
