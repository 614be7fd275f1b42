"""A Kafka cluster of our own on the loopback, for development, tests and the demo.

`LocalCluster` starts one broker or three from the locked jars, remembers them in a directory and
ends them. All that is known of a cluster stands in its directory, so any process may look at it or
stop it later:

    DIR/cluster.json   version, cluster ID, ports, the process of each broker
    DIR/lock           held while a command changes anything
    DIR/broker-N/      server.properties, data/, log.txt, tmp/

A cluster belongs to the process that started it: a guard (`process.py`) kills its brokers
when that process ends, even by SIGKILL, unless it was told to outlive it (`amcast local up`).

    running     every broker's process runs, and the cluster counts it as registered
    degraded    some do
    stopped     none does; the data is kept
    absent      the directory holds no cluster
"""

from __future__ import annotations

import collections
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
from multicast.local.broker import (
    LOOPBACK,
    Broker,
    BrokerHost,
    Installed,
    PortTaken,
    free_ports,
    install,
    membership,
    new_id,
    port_is_free,
    stop,
    wait_serving,
)
from multicast.local.jars import Progress, versions
from multicast.local.process import Guard, kill_carriers
from multicast.local.state import STATE_FILE, ClusterState, new_token

DEFAULT_VERSION = "4.3.1"
DEFAULT_DIRECTORY = Path(".amcast") / "local"
BROKERS_ALLOWED = (1, 3)
_HEAP_MB = {1: 512, 3: 256}
_STOP_GRACE_S = 10.0
_PORT_MAX = 65_535
_PAUSE_LOOK_S = 0.005
_PAUSE_LOOKS_MAX = 1000
_LOCK_FILE = "lock"


class NoCluster(UsageError):
    """The directory holds no cluster of ours."""


class Busy(AmcastError):
    """Another process is starting or stopping the cluster in this directory."""

    retriable = True


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """One broker: "running", "unregistered", "paused" or "stopped"; `pid` None if stopped."""

    broker_id: int
    address: str
    state: str
    pid: int | None
    log: Path


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """A cluster: "running", "degraded", "stopped" or "absent" (then the rest is empty)."""

    state: str
    directory: Path
    version: str = ""
    cluster_id: str = ""
    bootstrap: str = ""
    brokers: Sequence[BrokerStatus] = ()


class LocalCluster:
    """A cluster in a directory; a context manager that starts it and stops it again.

    `directory`   None: a temporary one, removed with all data when the cluster stops
    `brokers`     1 or 3; None: as many as there were, 1 at first. Numbered from 1
    `version`     of Apache Kafka; None: as before, `DEFAULT_VERSION` at first
    `port`        of broker 1 (the next ones follow); None: as before, free ones at first
    `settings`    Kafka's own, added to each broker's and stronger than ours; kept for later starts
    `hosts`       where each broker runs, if not on the loopback; kept for later starts, too
    `java`        options for Java, stronger than ours, which are made for a quick start
    `outlives`    whether the brokers go on when this process ends

    A `UsageError` says what contradicts the cluster that is there; nothing was done then. Methods
    may be called from any thread and process: two that would change the cluster at once get `Busy`.
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
        start_timeout_s: float = 60.0,
        progress: Progress = lambda _: None,
    ) -> None:
        if hosts is not None:
            if brokers is not None or port is not None:
                raise UsageError("the hosts say how many brokers there are and at which ports")
            brokers = len(hosts)
        if brokers not in (None, *BROKERS_ALLOWED):
            raise UsageError(f"a cluster has 1 broker or 3, not {brokers}")
        if version not in (None, *versions()):
            raise UsageError(f"Kafka {version} is not known; there are {', '.join(versions())}")
        if directory is None and outlives:
            raise UsageError("a cluster that outlives its process needs a directory")
        self._hosts = hosts
        self._temporary = directory is None
        self._directory = None if directory is None else Path(directory).absolute()
        self._brokers, self._version, self._port = brokers, version, port
        self._settings = None if settings is None else dict(settings)
        self._heap_mb = heap_mb
        self._java = tuple(java)
        self._outlives = outlives
        self._start_timeout_s = start_timeout_s
        self._progress = progress
        self._guard: Guard | None = None
        self._started = False

    # --- what it is -------------------------------------------------------------------------

    @property
    def directory(self) -> Path:
        """Where the cluster is; a temporary one exists from start to stop."""
        if self._directory is None:
            raise NoCluster("the temporary cluster is not started")
        return self._directory

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers, HOST:PORT by commas, as Kafka's clients want them."""
        return self._need().bootstrap

    @property
    def version(self) -> str:
        """The version of Apache Kafka."""
        return self._need().version

    def status(self) -> ClusterStatus:
        """Look at the processes and ask the cluster, for a few seconds at most."""
        state = None if self._directory is None else self._recall()
        if state is None:
            return ClusterStatus("absent", self._directory or Path())
        processes = {b.broker_id: b.state(token=state.token) for b in state.brokers}
        answer = membership(state.bootstrap) if "running" in processes.values() else None
        registered = set() if answer is None else answer[1]
        found = []
        for broker in state.brokers:
            said = processes[broker.broker_id]
            if said == "running" and broker.broker_id not in registered:
                said = "unregistered"
            pid = broker.process.pid if broker.process and said != "ended" else None
            said = "stopped" if said == "ended" else said
            found.append(BrokerStatus(broker.broker_id, broker.address, said, pid, broker.log))
        states = {broker.state for broker in found}
        whole = states.pop() if len(states) == 1 else "degraded"
        return ClusterStatus(
            whole if whole in ("running", "stopped") else "degraded",
            self.directory,
            state.version,
            state.cluster_id,
            state.bootstrap,
            found,
        )

    def logs(self, broker_id: int, *, lines: int = 50) -> list[str]:
        """Give the last lines of what a broker said, over all its starts."""
        log = self._need().broker(broker_id).log
        if not log.exists():
            return []
        with log.open(encoding="utf-8", errors="replace") as file:
            return [line.rstrip("\n") for line in collections.deque(file, maxlen=lines)]

    def tool_command(self, main: str, *arguments: str) -> list[str]:
        """Give the command line of one of Kafka's own programs, by its Java class.

        Such as `org.apache.kafka.tools.ConsoleProducer` (with 4.3; 4.4.0 was published without).
        """
        return install(self.version, progress=self._progress).command(main, *arguments)

    # --- start and stop ---------------------------------------------------------------------

    def start(self) -> list[int]:
        """Start the brokers that do not run, resume those that pause; give the started ones.

        Blocks until all are registered, `start_timeout_s` at most after the jars are there. Any
        error or interrupt leaves none of the brokers running that it had started.
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
        """Stop all brokers, give those that ran; SIGTERM first, SIGKILL after 10 s.

        No process is left after it. The data is kept, but for a temporary cluster's.
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
            for broker in state.brokers:
                broker.process = None
            state.save(self._directory)
        self._drop_guard()
        self._started = False
        self._remove_temporary()
        return [broker.broker_id for broker in running]

    def wipe(self) -> None:
        """Remove a stopped cluster with its data: what `start` made, nothing else."""
        with self._working(self.directory):
            state = self._need()
            if state.running():
                raise UsageError("the cluster runs; stop it first")
            for broker in state.brokers:
                shutil.rmtree(broker.directory, ignore_errors=True)
            (self.directory / STATE_FILE).unlink()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._started:  # one that ran before is left running
            self.stop()

    # --- faults -----------------------------------------------------------------------------

    def kill(self, broker_id: int) -> None:
        """End a broker by SIGKILL and wait until it has gone."""
        state = self._need()
        stop([state.broker(broker_id)], token=state.token, grace_s=0)

    def pause(self, broker_id: int) -> None:
        """Freeze a broker (SIGSTOP): its connections stay open and nothing answers."""
        state = self._signal(broker_id, signal.SIGSTOP)
        # All its threads have to stop; no event tells that to another process.
        looks, pause = 0, threading.Event()
        while state.broker(broker_id).state(token=state.token) == "running":
            looks += 1
            if looks > _PAUSE_LOOKS_MAX:
                raise TimedOut(f"broker {broker_id} was told to pause but still runs")
            pause.wait(_PAUSE_LOOK_S)

    def resume(self, broker_id: int) -> None:
        """Let a paused broker go on."""
        self._signal(broker_id, signal.SIGCONT)

    def restart(self, broker_id: int) -> None:
        """Stop a broker in order if it runs, start it and wait until it is registered again."""
        with self._working(self.directory):
            state = self._need()
            broker = state.broker(broker_id)
            stop([broker], token=state.token, grace_s=_STOP_GRACE_S)
            self._launch(state, [broker], wait_for=[broker], own=False)

    def _signal(self, broker_id: int, number: signal.Signals) -> ClusterState:
        state = self._need()
        if not state.broker(broker_id).send(number, token=state.token):
            raise AmcastError(f"broker {broker_id} does not run")
        return state

    # --- a state that fits what was asked for -----------------------------------------------

    def _invent(self) -> ClusterState:
        """Make a state for an empty directory; the ports are known to be free then."""
        strange = sorted(self.directory.glob("broker-*"))
        if strange:
            raise UsageError(f"{strange[0]} is there without {STATE_FILE}: not made by amcast")
        if "," in os.fspath(self.directory):
            raise UsageError(f"Kafka cannot keep data under a path with a comma: {self.directory}")
        count = self._brokers or 1
        brokers = [
            Broker(number, 0, 0, directory=self.directory / f"broker-{number}")
            for number in range(1, count + 1)
        ]
        state = ClusterState(
            new_id(), self._version or DEFAULT_VERSION, self._settings or {}, brokers
        )
        self._give_ports(state)
        return state

    def _agree(self, state: ClusterState) -> ClusterState:
        """Fit what was asked for to a state that is there, or raise `UsageError`."""
        asked = f"remove it (amcast local down --wipe --dir {self.directory}) or take another --dir"
        if self._brokers not in (None, len(state.brokers)):
            raise UsageError(
                f"the cluster in {self.directory} has {len(state.brokers)} broker(s), "
                f"not {self._brokers}; {asked}"
            )
        if self._version not in (None, state.version):
            raise UsageError(
                f"the cluster in {self.directory} is Kafka {state.version}, "
                f"not {self._version}; {asked}"
            )
        if self._settings is not None:
            state.settings = self._settings
        moves = self._port not in (None, state.brokers[0].port)
        if not state.running():
            own = [broker for broker in state.brokers if broker.host == LOOPBACK]
            ports = [port for broker in own for port in (broker.port, broker.controller_port)]
            if moves or self._hosts is not None or not all(map(port_is_free, ports)):
                self._give_ports(state)
                self._progress(f"new addresses: {state.bootstrap}")
            state.token = new_token()
        elif moves:
            raise UsageError(f"the cluster runs already, at {state.bootstrap}")
        return state

    def _give_ports(self, state: ClusterState) -> None:
        """Give every broker its two ports: as asked for, else free ones."""
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
                raise UsageError(f"{count} ports from {self._port} on would pass {_PORT_MAX}")
        for port in ports:
            if not port_is_free(port):
                raise PortTaken(f"port {port} is taken; name another with --port, or none")
        controllers = [port for port in free_ports(2 * count) if port not in ports][:count]
        for broker, port, controller_port in zip(state.brokers, ports, controllers, strict=True):
            broker.port, broker.controller_port = port, controller_port

    # --- carrying it out --------------------------------------------------------------------

    def _launch(
        self,
        state: ClusterState,
        brokers: Sequence[Broker],
        *,
        wait_for: Sequence[Broker],
        own: bool,
    ) -> None:
        """Start these brokers and wait; on any error or interrupt none of them is left.

        `own`: no other broker ran, so the run is ours from here on.
        """
        guard = None
        try:
            if brokers:
                installed = install(state.version, progress=self._progress)
                guard = Guard(state.token, remove=self._directory if self._temporary else None)
                self._start_processes(state, brokers, installed)
            wait_serving(wait_for, token=state.token, timeout_s=self._start_timeout_s)
        except BaseException:
            stop(brokers, token=state.token, grace_s=0)
            if own:  # one, too, that an interrupt left between its start and our note of it
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
            guard.dismiss()  # it was for the start alone; whose the run is has not changed

    def _start_processes(
        self, state: ClusterState, brokers: Sequence[Broker], installed: Installed
    ) -> None:
        count = "1 broker" if len(brokers) == 1 else f"{len(brokers)} brokers"
        self._progress(f"starting {count} of Kafka {state.version}")
        state.save(self.directory)
        for broker in brokers:
            broker.write_properties(state.brokers, state.settings)
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
        """Hold the directory's lock; say plainly what the system refuses."""
        try:
            directory.mkdir(parents=True, exist_ok=True)
            with (directory / _LOCK_FILE).open("a") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise Busy(f"another process works on the cluster in {directory}") from None
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
    """Remove the directory and the `.amcast` above it; what is not empty is not ours alone."""
    with contextlib.suppress(OSError):
        directory.rmdir()
        if directory.parent.name == DEFAULT_DIRECTORY.parent.name:
            directory.parent.rmdir()
