"""One local KRaft broker: its files, its command line, and the wait until it serves.

A `Broker` has an installed version (`installation.py`), a number, two ports and a directory. An
error of a start contains the last lines of the broker's log. `cluster.py` decides which brokers
form a cluster and what is stored about them between commands.
"""

from __future__ import annotations

import base64
import json
import os
import random
import shutil
import signal
import socket
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from multicast.errors import AmcastError, TimedOut
from multicast.local.jars import Java, last_lines
from multicast.local.process import (
    ProcessId,
    argument_of,
    identify,
    reap,
    send,
    spawn,
    state_of,
    wait_ended,
)

HOST = "127.0.0.1"
# Of one message on a local cluster; Kafka's default is 1 MB. A broker's heap (256 MB) bounds it.
MESSAGE_BYTES_MAX = 16 * 1024 * 1024
_PORTS = range(15_000, 32_000)  # below Linux's ephemeral ports: no outgoing connection takes one
META = "meta.properties"  # of a data directory: which broker of which cluster it belongs to
_POLL_S = 0.03  # between two attempts to connect; the end of a broker ends the wait at once
_ADMIN_TIMEOUT_S = 3.0  # for an answer of a broker on the same machine, which takes milliseconds
_ENDING_S = 0.1  # between two looks at what a stopping broker has closed; its end ends the wait
_CLOSED_GRACE_S = 0.5  # after its logs are closed a broker has nothing to lose
_KILLED_TIMEOUT_S = 10.0  # SIGKILL takes milliseconds, unless the process waits for a disk


class BrokerDied(AmcastError):
    """A broker ended by itself; the text contains the last lines of its log."""


class PortTaken(AmcastError):
    """Another program listens on the requested port; nothing was started."""


# --- an installed version -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Installed:
    """One version of Kafka, ready to run; `archive` is None if this Java cannot write one."""

    version: str
    java: Java
    jars: Sequence[Path]
    formatted: Path
    archive: Path | None

    def command(self, main: str, *arguments: str, options: Sequence[str] = ()) -> list[str]:
        """Return the command line of one of Kafka's programs; `options` are Java's."""
        shared = [] if self.archive is None else [f"-XX:SharedArchiveFile={self.archive}"]
        return [
            os.fspath(self.java.executable),
            *shared,
            *("-Xshare:auto", "-Xlog:disable", "-Xlog:all=error:stderr"),
            *("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"),
            *options,
            *("-cp", os.pathsep.join(map(os.fspath, self.jars)), main, *arguments),
        ]


# --- ports and names ------------------------------------------------------------------------------


def port_is_free(port: int) -> bool:
    """Return whether a broker could listen on this port of the loopback now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Java does
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def free_ports(count: int) -> list[int]:
    """Choose free ports at random, so that two clusters that start at once take different ones."""
    candidates = iter(random.SystemRandom().sample(_PORTS, 50 * count))
    ports: list[int] = []
    while len(ports) < count:
        port = next(candidates, None)
        if port is None:
            raise PortTaken(
                f"no free port found between {_PORTS.start} and {_PORTS.stop}; name one with --port"
            )
        if port_is_free(port):
            ports.append(port)
    return ports


def new_id() -> str:
    """Return a new ID in Kafka's format: 16 random bytes, Base64 for URLs, no padding."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):  # a command line would read it as an option
            return text


# --- one broker ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BrokerHost:
    """Where one broker runs if not on the loopback, such as in a network namespace.

    `run` precedes the Java command (its first word is a path) and must exec it, because the process
    is identified by its number. `settings` are Kafka's for this broker alone; they override all
    others.
    """

    address: str
    run: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    port: int = 9092
    controller_port: int = 9093


LOOPBACK = BrokerHost(HOST)


@dataclass(slots=True)
class Broker:
    """One broker; `process` is None until its first start, and is kept after its end."""

    broker_id: int
    port: int
    controller_port: int
    directory: Path
    process: ProcessId | None = None
    log_from: int = field(default=0)  # where the present start begins in the log, in bytes
    host: BrokerHost = LOOPBACK

    @property
    def properties(self) -> Path:
        """Kafka's configuration file."""
        return self.directory / "server.properties"

    @property
    def data(self) -> Path:
        """The directory of the records."""
        return self.directory / "data"

    @property
    def log(self) -> Path:
        """The broker's output, over all its starts."""
        return self.directory / "log.txt"

    @property
    def address(self) -> str:
        """HOST:PORT for clients."""
        return f"{self.host.address}:{self.port}"

    @property
    def is_closed(self) -> bool:
        """Whether Kafka closed its logs cleanly; it removes this mark when it starts."""
        return (self.data / ".kafka_cleanshutdown").exists()

    def move(self, host: BrokerHost) -> None:
        """Run at this host from the next start on."""
        self.host, self.port, self.controller_port = host, host.port, host.controller_port

    def state(self, *, token: str) -> str:
        """Return "running", "paused" or "ended"."""
        return "ended" if self.process is None else state_of(self.process, token=token)

    def send(self, number: signal.Signals, *, token: str) -> bool:
        """Send a signal; return False if the broker has ended."""
        return self.process is not None and send(self.process, number, token=token)

    def write_properties(self, brokers: Sequence[Broker], settings: Mapping[str, str]) -> None:
        """Write Kafka's configuration; `settings` override ours, the host's override both."""
        self.directory.mkdir(parents=True, exist_ok=True)
        values = _properties(self, brokers) | dict(settings) | dict(self.host.settings)
        # A property file is ASCII, and escapes as a text of JSON does.
        text = "".join(f"{key}={json.dumps(value)[1:-1]}\n" for key, value in values.items())
        self.properties.write_text(text, encoding="ascii")

    def format(self, installed: Installed, *, cluster_id: str) -> None:
        """Create the data directory for this cluster, unless it exists."""
        if (self.data / META).exists():
            return
        draft = self.directory / "data.draft"
        shutil.rmtree(draft, ignore_errors=True)
        shutil.copytree(installed.formatted, draft)
        lines = {
            "version": 1,
            "cluster.id": cluster_id,
            "node.id": self.broker_id,
            "directory.id": new_id(),
        }
        text = "".join(f"{key}={value}\n" for key, value in lines.items())
        (draft / META).write_text(text, encoding="ascii")
        draft.rename(self.data)  # the system refuses this if there is data already

    def start(
        self, installed: Installed, *, token: str, heap_mb: int, options: Sequence[str] = ()
    ) -> None:
        """Start the process without waiting until it serves (`wait_serving`)."""
        scratch = self.directory / "tmp"
        scratch.mkdir(exist_ok=True)
        if self.process is not None:
            reap(self.process)
        simple = "-Dorg.slf4j.simpleLogger"
        self.log_from = self.log.stat().st_size if self.log.exists() else 0
        command = installed.command(
            "kafka.Kafka",
            os.fspath(self.properties),
            options=[
                *(argument_of(token), f"-Xmx{heap_mb}m", "-XX:+ExitOnOutOfMemoryError"),
                *(f"-Djava.io.tmpdir={scratch}", f"-XX:ErrorFile={self.directory}/crash.log"),
                *(f"{simple}.logFile=System.out", f"{simple}.showDateTime=true"),
                f"{simple}.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSS",
                # It prints all settings, 250 lines, at each start.
                f"{simple}.log.org.apache.kafka.common.config.AbstractConfig=warn",
                *options,
            ],
        )
        self.process = identify(spawn([*self.host.run, *command], log=self.log))

    def last_words(self) -> str:
        """Return the end of the present start's log, without Java's stack traces."""
        with self.log.open("rb") as file:
            file.seek(self.log_from)
            return last_lines(file.read().decode(errors="replace"))


def _properties(broker: Broker, brokers: Sequence[Broker]) -> dict[str, str]:
    count = len(brokers)
    in_sync_min = str(max(1, count - 1))
    voters = ",".join(
        f"{each.broker_id}@{each.host.address}:{each.controller_port}" for each in brokers
    )
    address = broker.host.address
    values = {
        "process.roles": "broker,controller",
        "node.id": str(broker.broker_id),
        "controller.quorum.voters": voters,
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "listeners": f"PLAINTEXT://{broker.address},CONTROLLER://{address}:{broker.controller_port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": os.fspath(broker.data),
        "auto.create.topics.enable": "false",
        "unclean.leader.election.enable": "false",
        "default.replication.factor": str(count),
        "min.insync.replicas": in_sync_min,
        "message.max.bytes": str(MESSAGE_BYTES_MAX),
        "replica.fetch.max.bytes": str(MESSAGE_BYTES_MAX),
        "replica.fetch.response.max.bytes": str(2 * MESSAGE_BYTES_MAX),
        "group.initial.rebalance.delay.ms": "0",
        "offsets.topic.num.partitions": "4",
        "offsets.topic.replication.factor": str(count),
        "transaction.state.log.num.partitions": "4",
        "transaction.state.log.replication.factor": str(count),
        "transaction.state.log.min.isr": in_sync_min,
        "share.coordinator.state.topic.num.partitions": "4",
        "share.coordinator.state.topic.replication.factor": str(count),
        "share.coordinator.state.topic.min.isr": in_sync_min,
        # Allocated in full at the start; the default would be half of a small heap.
        "log.cleaner.dedupe.buffer.size": str(32 * 1024 * 1024),
    }
    if count > 1:
        # A dead broker is noticed after 2 s, not 9 (measured: 1.8 s without acks against 8-9 s).
        values |= {
            "broker.session.timeout.ms": "2000",
            "broker.heartbeat.interval.ms": "300",
            "controller.quorum.election.timeout.ms": "500",
            "controller.quorum.fetch.timeout.ms": "1000",
            "controller.quorum.election.backoff.max.ms": "500",
            "replica.lag.time.max.ms": "5000",
        }
    return values


# --- waiting -------------------------------------------------------------------------------------


def wait_serving(
    brokers: Sequence[Broker],
    *,
    token: str,
    timeout_s: float,
    client: Mapping[str, str] | None = None,
) -> None:
    """Wait until every broker answers and is registered and not fenced.

    Raises `BrokerDied` as soon as one of them ends, and `TimedOut` after `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    processes = [broker.process for broker in brokers if broker.process is not None]
    wanted = {broker.broker_id for broker in brokers}
    assert len(processes) == len(brokers)
    while True:
        bootstrap = ",".join(broker.address for broker in brokers)
        if all(map(_accepts, brokers)) and wanted <= registered(bootstrap, client):
            return
        ended = wait_ended(processes, token=token, timeout_s=_POLL_S, first=True)
        if ended:
            dead = next(broker for broker in brokers if broker.process == ended[0])
            code = reap(ended[0])
            how = "" if code is None else f" (exit code {code})"
            raise BrokerDied(
                f"broker {dead.broker_id} died while starting{how}; "
                f"the end of its log {dead.log}:{dead.last_words()}"
            )
        if time.monotonic() > deadline:
            raise TimedOut(
                f"the brokers were not all registered within {timeout_s:.0f} s; "
                f"their logs: {', '.join(os.fspath(broker.log) for broker in brokers)}"
            )


def _accepts(broker: Broker) -> bool:
    address = (broker.host.address, broker.port)
    try:
        socket.create_connection(address, timeout=_ADMIN_TIMEOUT_S).close()
    except OSError:
        return False
    return True


def registered(bootstrap: str, client: Mapping[str, str] | None = None) -> set[int]:
    """Return the brokers that are registered and not fenced; none if nobody answers in seconds."""
    # Imported here, while Java starts: the import takes 0.2 s, and a stopped cluster needs none.
    from multicast.drivers.kafka import Admin  # noqa: PLC0415

    try:
        with Admin(bootstrap, client, request_timeout_s=_ADMIN_TIMEOUT_S) as admin:
            return set(admin.members()[1])
    except AmcastError:
        return set()


def stop(
    brokers: Sequence[Broker],
    *,
    token: str,
    grace_s: float,
    closed_grace_s: float = _CLOSED_GRACE_S,
) -> list[Broker]:
    """End the brokers by SIGTERM and, after `grace_s`, by SIGKILL; without grace by SIGKILL only.

    Once all have closed their logs, they get at most `closed_grace_s` more. Afterwards none of them
    runs, and children of this process are reaped. Returns those that SIGKILL ended.
    """
    if grace_s:
        left = _signal(brokers, signal.SIGTERM, token=token)
        deadline = time.monotonic() + grace_s
        while left and time.monotonic() < deadline:
            if all(broker.is_closed for broker in left):
                # All records are safe. The last leader of the quorum may take 5 s more, because it
                # waits for a successor among controllers that have ended.
                deadline = min(deadline, time.monotonic() + closed_grace_s)
            _wait_ended(left, token=token, timeout_s=_ENDING_S)
            left = [broker for broker in left if broker.state(token=token) != "ended"]
    killed = _signal(brokers, signal.SIGKILL, token=token)
    _wait_ended(killed, token=token, timeout_s=_KILLED_TIMEOUT_S)
    for broker in brokers:
        if broker.process is not None:
            reap(broker.process)
    return killed


def _signal(brokers: Sequence[Broker], number: signal.Signals, *, token: str) -> list[Broker]:
    """Send a signal that ends a process, also to paused ones; return those that had not ended."""
    reached = [broker for broker in brokers if broker.send(number, token=token)]
    for broker in reached:
        broker.send(signal.SIGCONT, token=token)
    return reached


def _wait_ended(brokers: Sequence[Broker], *, token: str, timeout_s: float) -> None:
    processes = [broker.process for broker in brokers if broker.process is not None]
    wait_ended(processes, token=token, timeout_s=timeout_s)
