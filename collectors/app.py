"""The Faust worker that hosts collectors: lifecycle, supervision and the web; no Kafka of its own.

`amcast collectors run` and `faust -A collectors.app worker` start the same. Faust's own consumer,
producer and tables stay off: an engine (`engine.py`) with a fixed number of threads polls Kafka for
all nodes of the process, on one of our drivers. (A Faust agent cannot append a merge exactly once;
our acceptance rule needs no transaction.)

    AMCAST_BOOTSTRAP, AMCAST_TOPIC, AMCAST_DRIVER   as everywhere; `amcast.toml` serves, too
    AMCAST_ANNOUNCE, AMCAST_LISTEN                  whether and where announcements are taken
    AMCAST_NODES                                    names, separated by commas; default: a share
    AMCAST_STANDBY                                  "on": these nodes stand by
    AMCAST_WEB_PORT                                 default 6066

Without AMCAST_NODES all instances share out the nodes: each is primary of some, and stands by for
others. Who is there is asked of a consumer group (`membership.py`); who then runs what everybody
reckons alone (`placement.py`). Until the group has answered, an instance stands by for all. What
is no longer its share an instance gives up when another's records count, or after a while.

`/healthz` answers 200 while every node runs, else 503. `/status` describes each node. They are
served at AMCAST_WEB_HOST (127.0.0.1) and at no other address.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any, TypeVar

import faust
from faust.app.base import BootStrategy
from mode import Service

from collectors.doctor.startup_check import StartCheck
from collectors.engine.engine import Engine
from collectors.engine.instance import CollectorInstance
from collectors.engine.listener import address_towards
from collectors.membership import Members
from collectors.placement import share_out
from collectors.web import WebServer, address_of, listen_at
from multicast.control import ControlState
from multicast.drivers import open_driver
from multicast.drivers.protocol import Driver
from multicast.errors import AmcastError, ProtocolViolation, UsageError
from multicast.settings import settings

_log = logging.getLogger("amcast.collectors")
# Of the group's client all that matters is told in our sentences, at /status.
logging.getLogger("kafka").setLevel(logging.CRITICAL)
_T = TypeVar("_T")
_DEFAULT_PORT = 6066
_PORT_MAX = 65535
_RETRY_S = (0.1, 0.5, 2.0, 5.0)
_EPOCH_EVERY_S = 1.0
_CHECK_EVERY_S = 3.0
_GROUP_S = 1.0  # so long an instance that comes waits for the group, before it stands by for all
_GROUP_EVERY_S = 0.05
_LINGER_S = 10.0
_STEADY_S = 10.0  # who ran for so long is started at once where it fails


class Worker(faust.Worker):
    """A worker that writes nothing to stdout, and ends when its loops have.

    Faust's own turns a spinner on stdout, and rests for a second before it goes. It opens the web
    port, too.
    """

    def __init__(self, *services: Any, **options: Any) -> None:
        super().__init__(*services, **{**options, "stdout": sys.stderr})
        self.spinner = None
        if app.conf.web_enabled:
            # At once: who cannot have the port is to be told so before anything is started.
            _or_exit(_web.bind)

    async def _sentinel_task(self) -> None:
        await asyncio.sleep(0)


class _NoKafka(BootStrategy):
    """Faust serves as the shell; what reads and writes Kafka are our drivers."""

    enable_kafka = False


class _Shell(faust.App):
    """A Faust app without local state, so without a data directory."""

    BootStrategy = _NoKafka

    async def on_first_start(self) -> None:
        """Make no directories: a collector's state is its own order stream."""


def _or_exit(what: Callable[[], _T]) -> _T:
    try:
        return what()
    except UsageError as error:
        sys.stderr.write(f"amcast: {error}\n")
        sys.exit(error.exit_code)


def _listen() -> str:
    """Say where announcements are taken."""
    return _settings.listen or address_towards(_settings.bootstrap)


def _web_port() -> int:
    """Read AMCAST_WEB_PORT; 0 asks for any free port."""
    asked = os.environ.get("AMCAST_WEB_PORT", str(_DEFAULT_PORT))
    if not asked.isdecimal() or int(asked) > _PORT_MAX:
        raise UsageError(f"AMCAST_WEB_PORT is {asked!r}; it has to be a port from 0 to {_PORT_MAX}")
    return int(asked)


_settings = _or_exit(settings)
_asked_port = _or_exit(_web_port)
_web_host = os.environ.get("AMCAST_WEB_HOST", "127.0.0.1")
app = _Shell(
    f"amcast-collectors-{_settings.topic}",
    broker=[f"kafka://{address}" for address in _settings.bootstrap.split(",")],
    store="memory",
    web_host=_web_host,
    web_bind=_web_host,  # where that is not said, Faust listens on all addresses
    web_port=_asked_port or _DEFAULT_PORT,  # Faust knows no port 0
    web_enabled=True,
    worker_redirect_stdouts=False,
    Worker=Worker,
)


class Supervisor(Service):
    """Keeps one node of one epoch running until that is over: makes a new one when it fails."""

    def __init__(self, engine: Engine, epoch: int, name: str, *, primary: bool) -> None:
        super().__init__()
        self.epoch = epoch
        self.node_name = name
        self.primary = primary
        self.unwanted_since: float | None = None
        self.over = False
        self.node: CollectorInstance | None = None
        self.restarts = 0
        self.error: str | None = None
        self._checkpoints = True
        self._engine = engine

    @Service.task
    async def _supervise(self) -> None:
        failures = 0
        while not self.should_stop:
            try:
                began = time.monotonic()
                await self._run_once()
                if self.over:
                    return
            except AmcastError as error:
                self.error = str(error)
                self._checkpoints = not isinstance(error, ProtocolViolation)
                _log.error("collector %s: %s", self.node_name, error)
            except Exception as error:  # noqa: BLE001
                # A node that failed of our own mistake must not end the others in this process.
                self.error = "it failed of an unexpected error; see the log"
                _log.error("collector %s failed", self.node_name, exc_info=error)
            self.node = None
            if self.should_stop:
                return
            if self.error is not None:
                self.restarts += 1
            if time.monotonic() - began > _STEADY_S:
                failures = 0
            await self.sleep(_RETRY_S[min(failures, len(_RETRY_S) - 1)])
            failures += 1

    async def _run_once(self) -> None:
        """Run the node until its epoch is over, or we are stopped; raise what it failed of."""
        node = CollectorInstance(
            self._engine,
            self.node_name,
            epoch=self.epoch,
            checkpoints=self._checkpoints,
            standby=not self.primary,
        )
        ended, loop = asyncio.Event(), asyncio.get_running_loop()

        def tell() -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(ended.set)

        node.on_end = tell
        self.node = node
        self._engine.add(node)
        if self.should_stop:
            node.stop()
        _log.info("collector %s runs in epoch %d", self.node_name, node.plan.epoch)
        await ended.wait()
        if node.error is not None:
            raise node.error
        self.over = node.begun and node.core.frozen

    def play(self, *, primary: bool) -> None:
        """Have the node act as the primary, or stand by."""
        self.primary = primary
        if self.node is not None:
            self.node.play(primary=primary)

    def dispensable(self, now: float) -> bool:
        """Whether to end an instance that is nobody's part here: another acts, or ought to."""
        self.play(primary=False)
        if self.unwanted_since is None:
            self.unwanted_since = now
        acting = self.node is not None and self.node.role.acting
        return self.over or not acting or now - self.unwanted_since > _LINGER_S

    async def on_stop(self) -> None:
        """End the node; what is in flight then counts or not, as ever."""
        if self.node is not None:
            self.node.stop()

    def status(self) -> dict[str, Any]:
        """Describe the node: what it says itself, and how it fares."""
        node = self.node
        running = node is not None and node.is_open and not node.over
        role = "primary" if self.primary else "standby"
        bare = {"node": self.node_name, "epoch": self.epoch, "role": role}
        told: dict[str, Any] = bare if node is None else node.status()
        told["state"] = "running" if running else "failed" if self.error else "starting"
        told["restarts"] = self.restarts
        told["error"] = None if running else self.error
        return told


@app.service
class CollectorHost(Service):
    """Opens the driver and the engine, and supervises the nodes that this process hosts."""

    supervisors: dict[tuple[int, str], Supervisor]

    def __post_init__(self) -> None:
        self.supervisors = {}
        self.idle = False
        self._driver: Driver | None = None  # a start that was interrupted has none
        self._engine: Engine | None = None
        self._pinned = [name for name in os.environ.get("AMCAST_NODES", "").split(",") if name]
        self.members: Members | None = None
        self._began = time.monotonic()
        self.check = StartCheck(_settings)

    async def on_start(self) -> None:
        """Connect, and take part in the group unless AMCAST_NODES says what is ours."""
        # What was imported stays: without this the collector of garbage looks through all of it,
        # and stops the loops for a tenth of a second.
        gc.collect()
        gc.freeze()
        try:
            self._driver = await asyncio.to_thread(
                open_driver, _settings.driver, _settings.bootstrap, _settings.client
            )
        except AmcastError as error:
            sys.stderr.write(f"amcast: {error}\n")
            raise SystemExit(error.exit_code) from None  # Faust would show a traceback
        if not self._pinned:
            self.members = Members(_settings.bootstrap, _settings.client, _settings.topic)
            self.members.start()
        hosts.append(self)

    @Service.task
    async def _follow_plans(self) -> None:
        """Supervise every node that is ours, of every epoch that is not over."""
        while not self.should_stop:
            parts: Mapping[tuple[int, str], bool] | None = None
            try:
                if self._engine is None:
                    self._engine = await asyncio.to_thread(self._open_engine)
                parts = self._parts(self._engine.control)
            except AmcastError as error:
                _log.warning("%s", error)
                await self.sleep(_EPOCH_EVERY_S)
            if self.check.refused is not None:
                for key in list(self.supervisors):
                    await self.remove_dependency(self.supervisors.pop(key))
            elif parts is not None and self._engine is not None:
                self.idle = not parts
                await self._take_parts(self._engine, parts)
            waits = not self.supervisors and not self.idle and self.check.refused is None
            await self.sleep(_GROUP_EVERY_S if waits else _EPOCH_EVERY_S)

    def _open_engine(self) -> Engine:
        assert self._driver is not None
        listen = _listen() if _settings.announce else None
        return Engine(self._driver, _settings.topic, listen=listen)

    @Service.task
    async def _check_cluster(self) -> None:
        """Say what is wrong with the cluster; what is refused stops all nodes until mended."""
        while not self.should_stop and not await asyncio.to_thread(self.check.look):
            await self.sleep(_CHECK_EVERY_S)

    async def _take_parts(self, engine: Engine, parts: Mapping[tuple[int, str], bool]) -> None:
        """Begin with nodes that are new here, and end those that others take care of."""
        for (epoch, name), primary in parts.items():
            found = self.supervisors.get((epoch, name))
            if found is None:
                made = Supervisor(engine, epoch, name, primary=primary)
                self.supervisors[epoch, name] = made
                await self.add_runtime_dependency(made)
            else:
                found.unwanted_since = None
                found.play(primary=primary)
        for key in [key for key in self.supervisors if key not in parts]:
            if self.supervisors[key].dispensable(time.monotonic()):
                await self.remove_dependency(self.supervisors.pop(key))

    def _parts(self, state: ControlState) -> Mapping[tuple[int, str], bool] | None:
        """Say what is ours, and of what we are the primary; None where that is not known yet.

        Of the newest epoch, and of the one before until that has ended.
        """
        parts: dict[tuple[int, str], bool] = {}
        for epoch in (state.epoch - 1, state.epoch):
            if epoch > 0 and epoch not in state.ends:
                ours = self._share([node.name for node in state.plan(epoch).collectors])
                if ours is None:
                    return None
                for name, primary in ours.items():
                    # What goes on into the newest epoch is shared out with that one.
                    if epoch == state.epoch or name not in state.retained(epoch).collectors:
                        parts[state.first_epoch(epoch, name), name] = primary
        return parts

    def _share(self, names: list[str]) -> Mapping[str, bool] | None:
        """Say which of an epoch's nodes are ours, and of which we are the primary."""
        if self.members is None:
            stands_by = os.environ.get("AMCAST_STANDBY") == "on"
            return {name: not stands_by for name in names if name in self._pinned}
        meeting = self.members.meeting
        if meeting is None:
            early = time.monotonic() - self._began < _GROUP_S
            return None if early else dict.fromkeys(names, False)
        places = share_out(names, meeting.members).items()
        return {
            name: place.primary == meeting.me
            for name, place in places
            if meeting.me in (place.primary, place.standby)
        }

    def status(self) -> list[dict[str, Any]]:
        """Describe every node of an epoch that is not over."""
        return [node.status() for node in list(self.supervisors.values()) if not node.over]

    async def on_stop(self) -> None:
        """End all nodes at once, and leave the group."""
        if self.members is not None:
            self.members.stop()
        for supervisor in self.supervisors.values():
            if supervisor.node is not None:
                supervisor.node.stop()

    async def on_shutdown(self) -> None:
        """Release what was opened, however far the start had come."""
        if self.members is not None:
            await asyncio.to_thread(self.members.join)
        if self._engine is not None:
            await asyncio.to_thread(self._engine.close)
        if self._driver is not None:
            self._driver.close()


hosts: list[CollectorHost] = []


def _healthz() -> tuple[HTTPStatus, dict[str, Any]]:
    """Tell whether every node runs: 200 or 503."""
    nodes = _status()["nodes"]
    idle = bool(hosts) and all(host.idle for host in hosts)  # no node of this epoch is ours
    healthy = (idle or bool(nodes)) and all(node["state"] == "running" for node in nodes)
    status = HTTPStatus.OK if healthy else HTTPStatus.SERVICE_UNAVAILABLE
    return status, {"healthy": healthy}


def _status() -> dict[str, Any]:
    """Describe every node in this process."""
    nodes = [node for host in hosts for node in host.status()]
    told = {"schema_version": 1, "topic": _settings.topic, "pid": os.getpid(), "nodes": nodes}
    told["refused"] = next((host.check.refused for host in hosts if host.check.refused), None)
    for members in [host.members for host in hosts if host.members is not None]:
        met = members.meeting
        told["member"] = met.me if met else None
        told["members"] = list(met.members) if met else []
        told["group_error"] = members.error
    return told


@app.web_server
class Web(Service):
    """Serves the pages, in place of Faust's own server, which bounds neither time nor number."""

    def __post_init__(self) -> None:
        self._server = WebServer(
            {"/healthz": _healthz, "/status": lambda: (HTTPStatus.OK, _status())}
        )

    async def on_start(self) -> None:
        """Begin to answer."""
        await self._server.start(_web.bind())

    async def on_stop(self) -> None:
        """Answer no longer."""
        await self._server.stop()


class _WebAddress:
    """The socket that the pages are served at, bound once."""

    def __init__(self) -> None:
        self._listening: socket.socket | None = None

    def bind(self) -> socket.socket:
        """Listen at the host and port of the settings; raises `UsageError`."""
        if self._listening is None:
            free = not _asked_port and app.conf.web_port == _DEFAULT_PORT
            self._listening = listen_at(app.conf.web_bind, 0 if free else app.conf.web_port)
        return self._listening


_web = _WebAddress()


def web_address() -> str:
    """Give HOST:PORT of the web pages; raises `UsageError` where they cannot be served there."""
    return address_of(_web.bind())
