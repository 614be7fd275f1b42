"""One KRaft broker of our own: its files, its command line, its first answer.

In: an installed version (`install`), a number, two ports, a directory. Out: a process that serves,
or an error that carries the last lines of the broker's log. Which brokers make a cluster, and what
is remembered of them between commands, is `cluster.py`'s.

Two things of each version are made once and kept beside its jars, since both cost a start of Java:
`formatted/`, what Kafka's own `StorageTool format` writes (the feature levels; with the voters in
the configuration it is the same for every cluster and broker, but for `meta.properties`, four
lines of text that we write), and an archive of loaded classes, with which a broker starts in less
than half the time (measured: 0.8 s against 1.9 s).
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from multicast.errors import AmcastError, TimedOut
from multicast.local.jars import Java, Progress, broker_jars, cache_directory, find_java
from multicast.local.process import (
    Guard,
    ProcessId,
    argument_of,
    identify,
    reap,
    run_bounded,
    send,
    spawn,
    state_of,
    wait_ended,
)

HOST = "127.0.0.1"
MESSAGE_BYTES_MAX = 16 * 1024 * 1024
_PORTS = range(15_000, 32_000)  # below Linux's ephemeral ports: no outgoing connection takes one
_META = "meta.properties"
_LAST_LINES = 15
_POLL_S = 0.03  # between two knocks at a port; a broker's death wakes us at once
_ADMIN_TIMEOUT_S = 3.0
_CLOSED_GRACE_S = 0.5
_PREPARE_TIMEOUT_S = 60.0


class BrokerDied(AmcastError):
    """A broker ended by itself; the text has the last lines of its log."""


class PortTaken(AmcastError):
    """Another program listens on a port that was asked for; nothing was started."""


# --- an installed version -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Installed:
    """One version of Kafka, ready to run; `archive` is None where Java cannot make one."""

    version: str
    java: Java
    jars: Sequence[Path]
    formatted: Path
    archive: Path | None

    def command(self, main: str, *arguments: str, options: Sequence[str] = ()) -> list[str]:
        """Give the command line of one of Kafka's programs, `options` being Java's."""
        shared = [] if self.archive is None else [f"-XX:SharedArchiveFile={self.archive}"]
        return [
            os.fspath(self.java.executable),
            *shared,
            *("-Xshare:auto", "-Xlog:disable", "-Xlog:all=error:stderr"),
            *("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"),
            *options,
            *("-cp", os.pathsep.join(map(os.fspath, self.jars)), main, *arguments),
        ]


def install(version: str, *, progress: Progress) -> Installed:
    """Find Java, get the jars and make the two things that are made once.

    Blocks for seconds the first time (bounded), for 0.2 s later. Safe to do in many processes.
    """
    java = find_java()
    jars = broker_jars(version, java=java, progress=progress)
    home = cache_directory() / f"kafka-{version}"
    build = hashlib.sha256(java.build.encode()).hexdigest()[:12]
    formatted, archive = home / "formatted", home / f"classes-{build}.jsa"
    if not (formatted.exists() and archive.exists()):
        progress(f"preparing Kafka {version} for this Java (once)")
        bare = Installed(version, java, jars, formatted, None)
        with tempfile.TemporaryDirectory(prefix=f".prepare-{version}-", dir=home.parent) as work:
            _prepare(bare, archive, Path(work))
    usable = archive.exists() and archive.stat().st_size > 0
    return Installed(version, java, jars, formatted, archive if usable else None)


def _prepare(bare: Installed, archive: Path, work: Path) -> None:
    """Format by Kafka's own tool, run a broker once and keep what both leave."""
    port, controller_port = free_ports(2)
    broker = Broker(1, port, controller_port, directory=work / "broker")
    broker.write_properties([broker], {})
    tool = bare.command(
        "kafka.tools.StorageTool",
        *("format", "--cluster-id", new_id(), "--config", os.fspath(broker.properties)),
    )
    try:
        code, output = run_bounded(tool, timeout_s=_PREPARE_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise TimedOut(f"Kafka's format tool did not end in {_PREPARE_TIMEOUT_S:.0f} s") from None
    if code != 0:
        raise AmcastError(f"Kafka's format tool failed: {_last_lines(output)}")
    formatted = work / "formatted"
    shutil.copytree(broker.data, formatted, ignore=shutil.ignore_patterns(_META))

    classes = work / "classes.jsa"
    token = uuid.uuid4().hex
    guard = Guard(token, remove=work)
    try:
        broker.start(
            bare, token=token, heap_mb=256, options=[f"-XX:ArchiveClassesAtExit={classes}"]
        )
        wait_serving([broker], token=token, timeout_s=_PREPARE_TIMEOUT_S)
        # The archive is written on the way out, after the logs are closed.
        grace_s = _PREPARE_TIMEOUT_S
        if not stop([broker], token=token, grace_s=grace_s, closed_grace_s=grace_s):
            classes.touch()  # an empty one, where this Java makes none
    finally:
        stop([broker], token=token, grace_s=0)
        guard.dismiss()
    if classes.exists():
        classes.replace(archive)
    with contextlib.suppress(OSError):  # another process was first, with the same
        formatted.rename(bare.formatted)


# --- ports and names ------------------------------------------------------------------------------


def port_is_free(port: int) -> bool:
    """Whether a broker could listen on this port of the loopback now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Java does
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def free_ports(count: int) -> list[int]:
    """Choose free ports at random: two clusters that start at once take different ones."""
    candidates = iter(random.SystemRandom().sample(_PORTS, 50 * count))
    found: list[int] = []
    while len(found) < count:
        port = next(candidates, None)
        if port is None:
            raise PortTaken(f"no free port found between {_PORTS.start} and {_PORTS.stop}")
        if port_is_free(port):
            found.append(port)
    return found


def new_id() -> str:
    """Make an identifier as Kafka writes them: 16 random bytes, Base64 for URLs, no padding."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):  # a command line would take it for an option
            return text


# --- one broker ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BrokerHost:
    """Where one broker runs, if not simply on the loopback: such as a network namespace.

    `run` comes before its Java command (its first word a path) and has to exec it, since the
    process is known by its number. `settings` are Kafka's, for this broker alone, the strongest.
    """

    address: str
    run: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    port: int = 9092
    controller_port: int = 9093


LOOPBACK = BrokerHost(HOST)


@dataclass(slots=True)
class Broker:
    """One broker; `process` is None until it was started, and stays what it was when it ends."""

    broker_id: int
    port: int
    controller_port: int
    directory: Path
    process: ProcessId | None = None
    log_from: int = field(default=0)  # where in the log the present start begins, in bytes
    host: BrokerHost = LOOPBACK

    @property
    def properties(self) -> Path:
        """Kafka's configuration file."""
        return self.directory / "server.properties"

    @property
    def data(self) -> Path:
        """Where the records are."""
        return self.directory / "data"

    @property
    def log(self) -> Path:
        """What the broker says, all its starts one after the other."""
        return self.directory / "log.txt"

    @property
    def address(self) -> str:
        """HOST:PORT for clients."""
        return f"{self.host.address}:{self.port}"

    @property
    def is_closed(self) -> bool:
        """Whether Kafka has closed its logs in order; it removes this mark when it starts."""
        return (self.data / ".kafka_cleanshutdown").exists()

    def move(self, host: BrokerHost) -> None:
        """Let it be at this host from its next start on."""
        self.host, self.port, self.controller_port = host, host.port, host.controller_port

    def state(self, *, token: str) -> str:
        """Give "running", "paused" or "ended"."""
        return "ended" if self.process is None else state_of(self.process, token=token)

    def send(self, number: signal.Signals, *, token: str) -> bool:
        """Send a signal; False if the broker has ended."""
        return self.process is not None and send(self.process, number, token=token)

    def write_properties(self, brokers: Sequence[Broker], settings: Mapping[str, str]) -> None:
        """Write Kafka's configuration; `settings` come last and win, but for the host's own."""
        self.directory.mkdir(parents=True, exist_ok=True)
        values = _properties(self, brokers) | dict(settings) | dict(self.host.settings)
        text = "".join(f"{key}={_escaped(value)}\n" for key, value in values.items())
        self.properties.write_text(text, encoding="ascii")

    def format(self, installed: Installed, *, cluster_id: str) -> None:
        """Make the data directory one of this cluster; one that is so already is left alone."""
        if (self.data / _META).exists():
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
        (draft / _META).write_text(text, encoding="ascii")
        draft.rename(self.data)  # the system refuses where there is data already

    def start(
        self, installed: Installed, *, token: str, heap_mb: int, options: Sequence[str] = ()
    ) -> None:
        """Start the process; it serves some time later (`wait_serving`)."""
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
                # It prints every setting, 250 lines, at each start.
                f"{simple}.log.org.apache.kafka.common.config.AbstractConfig=warn",
                *options,
            ],
        )
        self.process = identify(spawn([*self.host.run, *command], log=self.log))

    def last_words(self) -> str:
        """Give the end of the log of the present start, without Java's stack traces."""
        with self.log.open("rb") as file:
            file.seek(self.log_from)
            return _last_lines(file.read().decode(errors="replace"))


def _escaped(value: str) -> str:
    """Write a value as Java's property files want it: ASCII, the rest as UTF-16 units."""
    units = value.encode("utf-16-be", "surrogatepass")
    numbers = [units[at] << 8 | units[at + 1] for at in range(0, len(units), 2)]
    return "".join(
        chr(number) if 32 <= number < 127 and number != ord("\\") else f"\\u{number:04x}"
        for number in numbers
    )


def _last_lines(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("\tat ")]
    return "\n  ".join(["", *lines[-_LAST_LINES:]])


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
        # Allocated at start in full; the default is half of a small heap.
        "log.cleaner.dedupe.buffer.size": str(32 * 1024 * 1024),
    }
    if count > 1:
        # A dead broker is noticed in 2 s, not 9 (measured: 1.8 s without acks against 8-9 s).
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


def wait_serving(brokers: Sequence[Broker], *, token: str, timeout_s: float) -> str:
    """Wait until every broker answers and is registered, none fenced; give the cluster's ID.

    Raises `BrokerDied` as soon as one of them ends, `TimedOut` after `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    processes = [broker.process for broker in brokers if broker.process is not None]
    wanted = {broker.broker_id for broker in brokers}
    assert len(processes) == len(brokers)
    while True:
        if all(_accepts(broker) for broker in brokers):
            found = membership(",".join(broker.address for broker in brokers))
            if found is not None and wanted <= found[1]:
                return found[0]
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
    at = (broker.host.address, broker.port)
    try:
        socket.create_connection(at, timeout=_ADMIN_TIMEOUT_S).close()
    except OSError:
        return False
    return True


def membership(bootstrap: str) -> tuple[str, set[int]] | None:
    """Ask a cluster for its ID and the brokers that are registered and not fenced.

    None if it does not answer within seconds.
    """
    # Imported here, while Java starts: it takes 0.2 s, and a stopped cluster needs none of it.
    from multicast.drivers.kafka_python import Admin  # noqa: PLC0415

    try:
        with Admin(bootstrap, request_timeout_s=_ADMIN_TIMEOUT_S) as admin:
            cluster_id, alive = admin.members()
    except AmcastError:
        return None
    return cluster_id, set(alive)


def stop(
    brokers: Sequence[Broker],
    *,
    token: str,
    grace_s: float,
    closed_grace_s: float = _CLOSED_GRACE_S,
) -> list[Broker]:
    """End the brokers: SIGTERM, after `grace_s` SIGKILL; with no grace SIGKILL at once.

    Once all have closed their logs they get `closed_grace_s` more at most. After it none of them
    runs, and those that were our children are reaped. Gives those that it took a SIGKILL to end.
    """
    if grace_s:
        left = _signal(brokers, signal.SIGTERM, token=token)
        deadline = time.monotonic() + grace_s
        while left and time.monotonic() < deadline:
            if all(broker.is_closed for broker in left):
                # All records are safe. What may take 5 s more is a quorum's last leader, which
                # waits for a successor among controllers that have ended.
                deadline = min(deadline, time.monotonic() + closed_grace_s)
            _wait_ended(left, token=token, timeout_s=0.1)
            left = [broker for broker in left if broker.state(token=token) != "ended"]
    killed = _signal(brokers, signal.SIGKILL, token=token)
    _wait_ended(killed, token=token, timeout_s=10)
    for broker in brokers:
        if broker.process is not None:
            reap(broker.process)
    return killed


def _signal(brokers: Sequence[Broker], number: signal.Signals, *, token: str) -> list[Broker]:
    """Send a signal that ends, to paused ones too; give those that had not ended before."""
    reached = [broker for broker in brokers if broker.send(number, token=token)]
    for broker in reached:
        broker.send(signal.SIGCONT, token=token)
    return reached


def _wait_ended(brokers: Sequence[Broker], *, token: str, timeout_s: float) -> None:
    processes = [broker.process for broker in brokers if broker.process is not None]
    wait_ended(processes, token=token, timeout_s=timeout_s)
