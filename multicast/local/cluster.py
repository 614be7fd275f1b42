"""A local Kafka cluster on the loopback, for development, tests and the demo.

`LocalCluster` starts one broker or three from the locked jars, and stops them. Its directory holds
everything about the cluster, so any process may inspect or stop it later:

    DIR/cluster.json   version, cluster ID, ports, the process of each broker
    DIR/lock           held while a command changes anything
    DIR/broker-N/      server.properties, data/, log.txt, tmp/

A cluster belongs to the process that started it: a guard (`process.py`) kills its brokers when
that process ends, even by SIGKILL, unless the cluster outlives it (`amcast local up`).

    running     every broker's process runs and is registered in the cluster
    degraded    some brokers run, or all are paused or unregistered
    stopped     no broker runs; the data is kept
    absent      the directory holds no cluster
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from multicast.errors import AmcastError, TimedOut, UsageError
from multicast.local import secure as secured
from multicast.local.broker import (
    LOOPBACK,
    Broker,
    BrokerHost,
    Installed,
    PortTaken,
    free_ports,
    new_id,
    port_is_free,
    registered,
    stop,
    wait_serving,
)
from multicast.local.installation import install
from multicast.local.jars import Progress, find_java, versions
from multicast.local.process import Guard, kill_carriers
from multicast.local.state import STATE_FILE, ClusterState, new_token

DEFAULT_VERSION = "4.3.1"
DEFAULT_DIRECTORY = Path(".amcast") / "local"
BROKERS_ALLOWED = (1, 3)
# By the number of brokers, for each: under 1 GB together. Java's default is a quarter of the RAM.
_HEAP_MB = {1: 512, 3: 256}
# A plain choice. With a tenth, SIGKILL would hit brokers that still close their logs, and these
# would have to recover them at the next start.
_STOP_GRACE_S = 10.0
# Only bounds a hang: one that ends is noticed at once. Brokers serve after 1-3 s, but three of them
# take ten times as long where many processes share a processor core, and more with a slow disk.
_START_TIMEOUT_S = 180.0
_PORT_MAX = 65_535  # of TCP
# All threads of a Java process stop within milliseconds of SIGSTOP; together 5 s.
_PAUSE_LOOK_S = 0.005
_PAUSE_LOOKS_MAX = 1000
_LOCK_FILE = "lock"


class NoCluster(UsageError):
    """The directory holds no cluster."""


class Busy(AmcastError):
    """Another process is starting or stopping the cluster in this directory."""

    retriable = True


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """One broker: "running", "unregistered", "paused" or "stopped"; `pid` is None if stopped."""

    broker_id: int
    address: str
    state: str
    pid: int | None
    log: Path


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """A cluster: "running", "degraded", "stopped" or "absent" (then the other fields are empty)."""

    state: str
    directory: Path
    version: str = ""
    cluster_id: str = ""
    bootstrap: str = ""
    brokers: Sequence[BrokerStatus] = ()


class LocalCluster:
    """A cluster in a directory; as a context manager it starts the cluster and stops it again.

    `directory`   None: a temporary one, removed with all data when the cluster stops
    `brokers`     1 or 3, numbered from 1; None: as before, 1 for a new cluster
    `version`     of Apache Kafka; None: as before, `DEFAULT_VERSION` for a new cluster
    `port`        of broker 1, the others follow; None: as before, free ones for a new cluster
    `settings`    Kafka's settings for each broker, which override ours; kept for later starts
    `hosts`       where each broker runs, if not on the loopback; kept for later starts
    `heap_mb`     of each broker; None: 512 for one broker, 256 for three
    `java`        options for Java, which override ours (chosen for a quick start)
    `secure`      a new cluster has TLS, users and rights (`secure.py`)
    `outlives`    whether the brokers keep running when this process ends

    A `UsageError` names a parameter that contradicts the existing cluster; nothing was changed
    then. Methods may be called from any thread and process; while one changes the cluster, others
    that would change it raise `Busy`.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        brokers: int | None = None,
        version: str | None = None,
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
        hosts: Sequence[BrokerHost] | None = None,
        heap_mb: int | None = None,
        java: Sequence[str] = (),
        outlives: bool = False,
        secure: bool = False,
        start_timeout_s: float = _START_TIMEOUT_S,
        progress: Progress = lambda _: None,
    ) -> None:
        if hosts is not None:
            if brokers is not None or port is not None:
                raise UsageError(
                    "the hosts say how many brokers there are and at which ports; leave out "
                    "brokers and port"
                )
            brokers = len(hosts)
        if brokers not in (None, *BROKERS_ALLOWED):
            raise UsageError(f"a cluster has 1 broker or 3, not {brokers}")
        if version not in (None, *versions()):
            raise UsageError(f"Kafka {version} is not known; choose one of {', '.join(versions())}")
        if directory is None and outlives:
            raise UsageError("a cluster that outlives its process needs a directory")
        self._hosts = hosts
        self._temporary = directory is None
        self._directory = None if directory is None else Path(directory).absolute()
        self._brokers, self._version, self._port = brokers, version, port
        self._settings = None if settings is None else dict(settings)
        self._heap_mb = heap_mb
        self._java = tuple(java)
        self._outlives, self._secure = outlives, secure
        self._start_timeout_s = start_timeout_s
        self._progress = progress
        self._guard: Guard | None = None
        self._started = False

    # --- what it is -------------------------------------------------------------------------

    @property
    def directory(self) -> Path:
        """The cluster's directory; a temporary one exists from start to stop."""
        if self._directory is None:
            raise NoCluster("the temporary cluster is not started; call start() first")
        return self._directory

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers for Kafka's clients: HOST:PORT, separated by commas."""
        return self._need().bootstrap

    @property
    def version(self) -> str:
        """The version of Apache Kafka."""
        return self._need().version

    def status(self) -> ClusterStatus:
        """Inspect the processes and the cluster, for a few seconds at most."""
        state = None if self._directory is None else self._recall()
        if state is None:
            return ClusterStatus("absent", self._directory or Path())
        processes = {b.broker_id: b.state(token=state.token) for b in state.brokers}
        here: set[int] = set()
        if "running" in processes.values():
            here = registered(state.bootstrap, secured.client_of(self.directory))
        brokers = []
        for broker in state.brokers:
            status = processes[broker.broker_id]
            if status == "running" and broker.broker_id not in here:
                status = "unregistered"
            pid = broker.process.pid if broker.process and status != "ended" else None
            status = "stopped" if status == "ended" else status
            brokers.append(BrokerStatus(broker.broker_id, broker.address, status, pid, broker.log))
        states = {broker.state for broker in brokers}
        whole = states.pop() if len(states) == 1 else "degraded"
        return ClusterStatus(
            whole if whole in ("running", "stopped") else "degraded",
            self.directory,
            state.version,
            state.cluster_id,
            state.bootstrap,
            brokers,
        )

    # --- start and stop ---------------------------------------------------------------------

    def start(self) -> list[int]:
        """Start the brokers that do not run and resume paused ones; return the started ones.

        Blocks until all are registered, for `start_timeout_s` at most once the jars are there.
        After an error or interrupt, none of the brokers that it started runs.
        """
        fresh = self._directory is None
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="amcast-"))
        try:
            with self._working(self._directory):
                state = self._recall()
                state = self._invent() if state is None else self._agree(state)
                ended = state.ended()
                for broker in state.brokers:
                    broker.send(signal.SIGCONT, token=state.token)
                own = len(ended) == len(state.brokers)
                self._launch(state, ended, wait_for=state.brokers, own=own)
        except BaseException:
            if fresh:
                self._remove_temporary()
            raise
        return [broker.broker_id for broker in ended]

    def stop(self) -> list[int]:
        """Stop all brokers, by SIGTERM and after 10 s by SIGKILL; return those that ran.

        Afterwards no process is left. The data is kept, except that of a temporary cluster.
        """
        if self._directory is None or not (self._directory / STATE_FILE).exists():
            return []
        with self._working(self._directory):
            state = self._need()
            running = state.running()
            stop(running, token=state.token, grace_s=_STOP_GRACE_S)
            left = [
                f"{b.broker_id} (process {b.process.pid})" for b in state.running() if b.process
            ]
            if left:
                raise AmcastError(f"SIGKILL did not end broker {', '.join(left)}")
            state.save_stopped(self._directory)
        self._drop_guard()
        self._started = False
        self._remove_temporary()
        return [broker.broker_id for broker in running]

    def wipe(self) -> None:
        """Remove a stopped cluster with its data: what `start` created, nothing else."""
        with self._working(self.directory):
            state = self._need()
            if state.running():
                raise UsageError(f"the cluster in {self.directory} runs; stop it first")
            for broker in state.brokers:
                shutil.rmtree(broker.directory, ignore_errors=True)
            if secured.client_of(self.directory):
                shutil.rmtree(self.directory / "secure")
            (self.directory / STATE_FILE).unlink()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._started:  # a cluster that ran before keeps running
            self.stop()

    # --- faults -----------------------------------------------------------------------------

    def kill(self, broker_id: int) -> None:
        """End a broker by SIGKILL and wait until the process has ended."""
        state = self._need()
        stop([state.broker(broker_id)], token=state.token, grace_s=0)

    def pause(self, broker_id: int) -> None:
        """Freeze a broker (SIGSTOP): its connections stay open, but it does not answer."""
        state = self._signal(broker_id, signal.SIGSTOP)
        # All its threads must stop; no event reports this to another process.
        for _ in range(_PAUSE_LOOKS_MAX):
            if state.broker(broker_id).state(token=state.token) != "running":
                return
            threading.Event().wait(_PAUSE_LOOK_S)
        raise TimedOut(f"broker {broker_id} still runs after SIGSTOP")

    def resume(self, broker_id: int) -> None:
        """Continue a paused broker."""
        self._signal(broker_id, signal.SIGCONT)

    def restart(self, broker_id: int) -> None:
        """Stop a broker if it runs, start it and wait until it is registered again."""
        with self._working(self.directory):
            state = self._need()
            broker = state.broker(broker_id)
            stop([broker], token=state.token, grace_s=_STOP_GRACE_S)
            self._launch(state, [broker], wait_for=[broker], own=False)

    def _signal(self, broker_id: int, number: signal.Signals) -> ClusterState:
        state = self._need()
        if not state.broker(broker_id).send(number, token=state.token):
            raise AmcastError(f"broker {broker_id} does not run; start it first")
        return state

    # --- the state that the parameters require ----------------------------------------------

    def _invent(self) -> ClusterState:
        """Build the state of a new cluster in an empty directory, with free ports."""
        foreign = sorted(self.directory.glob("broker-*"))
        if foreign:
            raise UsageError(
                f"{foreign[0]} exists without {STATE_FILE}, so it was not made by amcast; use "
                f"another directory"
            )
        if "," in os.fspath(self.directory):
            raise UsageError(
                f"Kafka cannot store data under a path with a comma: {self.directory}; use another "
                f"directory"
            )
        count = self._brokers or 1
        brokers = [
            Broker(number, 0, 0, directory=self.directory / f"broker-{number}")
            for number in range(1, count + 1)
        ]
        state = ClusterState(
            new_id(), self._version or DEFAULT_VERSION, self._settings or {}, brokers
        )
        self._give_ports(state)
        if self._secure:
            secured.make(self.directory, find_java().executable)
        return state

    def _agree(self, state: ClusterState) -> ClusterState:
        """Apply the parameters to an existing state; raise `UsageError` if they contradict it."""
        remedy = f"remove it (amcast local down --wipe --dir {self.directory}) or use another --dir"
        if self._brokers not in (None, len(state.brokers)):
            raise UsageError(
                f"the cluster in {self.directory} has {len(state.brokers)} broker(s), "
                f"not {self._brokers}; {remedy}"
            )
        if self._version not in (None, state.version):
            raise UsageError(
                f"the cluster in {self.directory} is Kafka {state.version}, "
                f"not {self._version}; {remedy}"
            )
        if self._settings is not None:
            state.settings = self._settings
        if self._secure and not secured.client_of(self.directory):
            raise UsageError(f"the cluster in {self.directory} is not secure; {remedy}")
        moves = self._port not in (None, state.brokers[0].port)
        if not state.running():
            own = [broker for broker in state.brokers if broker.host == LOOPBACK]
            ports = [port for broker in own for port in (broker.port, broker.controller_port)]
            if moves or self._hosts is not None or not all(map(port_is_free, ports)):
                self._give_ports(state)
                self._progress(f"new addresses: {state.bootstrap}")
            state.token = new_token()
        elif moves:
            raise UsageError(f"the cluster already runs at {state.bootstrap}; stop it first")
        return state

    def _give_ports(self, state: ClusterState) -> None:
        """Give every broker its two ports: the requested ones, else free ones."""
        if self._hosts is not None:
            for broker, host in zip(state.brokers, self._hosts, strict=True):
                broker.move(host)
            return
        count = len(state.brokers)
        if self._port is None:
            ports = free_ports(count)
        else:
            ports = list(range(self._port, self._port + count))
            if ports[-1] > _PORT_MAX:
                raise UsageError(
                    f"{count} ports from {self._port} on exceed {_PORT_MAX}; name a lower port"
                )
        for port in ports:
            if not port_is_free(port):
                raise PortTaken(f"port {port} is taken; name another by --port, or leave it out")
        controllers = [port for port in free_ports(2 * count) if port not in ports][:count]
        for broker, port, controller_port in zip(state.brokers, ports, controllers, strict=True):
            broker.port, broker.controller_port = port, controller_port

    # --- processes and files ----------------------------------------------------------------

    def _launch(
        self,
        state: ClusterState,
        brokers: Sequence[Broker],
        *,
        wait_for: Sequence[Broker],
        own: bool,
    ) -> None:
        """Start these brokers and wait; after an error or interrupt none of them runs.

        `own`: no other broker ran, so from now on the run belongs to this process.
        """
        guard = None
        try:
            if brokers:
                installed = install(state.version, progress=self._progress)
                guard = Guard(state.token, remove=self._directory if self._temporary else None)
                self._start_processes(state, brokers, installed)
            client, limit_s = secured.client_of(self.directory), self._start_timeout_s
            wait_serving(wait_for, token=state.token, timeout_s=limit_s, client=client)
        except BaseException:
            stop(brokers, token=state.token, grace_s=0)
            if own:  # an interrupt may come between a broker's start and its entry in the state
                kill_carriers(state.token)
            if guard is not None:
                guard.dismiss()
            raise
        if own:
            self._drop_guard()
            self._started = True
        if own and not self._outlives:
            self._guard = guard
        elif guard is not None:
            guard.dismiss()  # it protected only the start: the run belongs to another process

    def _start_processes(
        self, state: ClusterState, brokers: Sequence[Broker], installed: Installed
    ) -> None:
        count = "1 broker" if len(brokers) == 1 else f"{len(brokers)} brokers"
        self._progress(f"starting {count} of Kafka {state.version}")
        state.save(self.directory)
        settings = {**state.settings, **secured.broker_settings(self.directory)}
        for broker in brokers:
            broker.write_properties(state.brokers, settings)
            broker.format(installed, cluster_id=state.cluster_id)
        heap_mb = self._heap_mb or _HEAP_MB[len(state.brokers)]
        for broker in brokers:
            broker.start(installed, token=state.token, heap_mb=heap_mb, options=self._java)
            state.save(self.directory)

    def _drop_guard(self) -> None:
        if self._guard is not None:
            self._guard.dismiss()
            self._guard = None

    @contextlib.contextmanager
    def _working(self, directory: Path) -> Iterator[None]:
        """Hold the directory's lock; translate the system's errors."""
        try:
            directory.mkdir(parents=True, exist_ok=True)
            with (directory / _LOCK_FILE).open("a") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise Busy(
                        f"another process is starting or stopping the cluster in {directory}; try "
                        f"again"
                    ) from None
                try:
                    yield
                finally:
                    if not (directory / STATE_FILE).exists():
                        (directory / _LOCK_FILE).unlink()
                        _remove_empty(directory)
        except OSError as error:
            raise AmcastError(f"cannot work in {directory}: {error}") from error

    def _recall(self) -> ClusterState | None:
        return ClusterState.load(self.directory)

    def _need(self) -> ClusterState:
        state = self._recall()
        if state is None:
            raise NoCluster(f"there is no cluster in {self.directory}; start one: amcast local up")
        return state

    def _remove_temporary(self) -> None:
        if self._temporary and self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None


def _remove_empty(directory: Path) -> None:
    """Remove the directory and the `.amcast` above it, if they are empty."""
    with contextlib.suppress(OSError):
        directory.rmdir()
        if directory.parent.name == DEFAULT_DIRECTORY.parent.name:
            directory.parent.rmdir()
