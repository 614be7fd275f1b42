"""The Faust worker that hosts collectors: lifecycle, supervision and web pages.

`amcast collectors run` and `faust -A collectors.app worker` start the same worker. Faust's own
consumer, producer and tables are off: the engine (`engine/engine.py`), with a fixed number of
threads, polls Kafka for all collectors of the process through one of our drivers. (A Faust agent
cannot merge partitions and append the result exactly once. The acceptance rule of
`multicast/order/runs.py` does that without transactions.)

    AMCAST_BOOTSTRAP, AMCAST_TOPIC, AMCAST_DRIVER   as for all commands; or `amcast.toml`
    AMCAST_NODES                                    collectors, comma-separated; default: a share
    AMCAST_STANDBY                                  "on": be a standby for AMCAST_NODES
    AMCAST_CHECK                                    "on": check all deliveries (docs/check.md)
    AMCAST_MATERIALIZE                              copiers, as C1=TOPIC, comma-separated
    AMCAST_WEB_HOST, AMCAST_WEB_PORT                default 127.0.0.1 and 6066
    AMCAST_LISTEN                                   where others reach pages served at all addresses

Without AMCAST_NODES all processes share the collectors: each is primary of some, and standby of
others. A consumer group knows the processes (`membership.py`); each process computes the placement
itself (`placement.py`). Until the group first answers, a process is a standby of all collectors; it
waits for `_GROUP_S` before, unless no other process has opened any of them. A collector that left
its share ends at once if it does not act, else when another instance's record is accepted, or after
10 s (`supervisor.py`). At SIGTERM a process leaves the group, offers what it acts for to the
standbys, and acts on until they have taken over.

`/healthz` answers 200 while all collectors of the process run, or its share is empty, else 503.
`/status` describes each collector, `/` is the live page (`live/routes.py`); all at AMCAST_WEB_HOST.
"""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import logging
import os
import re
import secrets
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from http import HTTPStatus
from typing import Any, TypeVar

from collectors.consumer_watch import LOOK_EVERY_S, ConsumerWatch
from collectors.copiers import Copiers
from collectors.doctor.startup_check import StartCheck
from collectors.engine.ended_processes import this_machine
from collectors.engine.engine import Engine
from collectors.live.routes import LivePages
from collectors.membership import GroupMember
from collectors.metrics import page_of
from collectors.placement import share_out
from collectors.supervisor import ErrorLog, Supervisor
from multicast.control import PROCESS_BYTES, ControlReader, ControlState, StatusPage
from multicast.drivers import open_driver
from multicast.drivers.kafka import Admin
from multicast.drivers.protocol import Driver
from multicast.errors import AmcastError, UncoveredInterest, UsageError
from multicast.settings import settings
from multicast.verification.running_check import RunningCheck
from multicast.web import Page, WebServer, address_of, address_towards, listen_at
from topology import extra
from topology.files import failure_text

with extra("collectors"):
    import faust
    from faust.app.base import BootStrategy
    from mode import Service

_log = logging.getLogger("amcast.collectors")
# The group's errors are at /status in our own sentences; kafka-python would log each retry.
logging.getLogger("kafka").setLevel(logging.CRITICAL)
_T = TypeVar("_T")
_PROCESS = secrets.token_bytes(PROCESS_BYTES)  # this process, among all that ever served a page
_DEFAULT_PORT = 6066  # Faust's default
_PORT_MAX = 65535  # of TCP
_HOST = re.compile(r"[A-Za-z0-9._:%-]+")  # of a host's name or address, IPv6 with its zone
# A new epoch is noticed within this time. The drain waits 3 s for its collectors (`drain.py`). New
# members are noticed at once: all learn of them together, so two are primary for a moment only.
_EPOCH_EVERY_S = 1.0
# Whether the cluster was wiped is seen by reading the control topic anew: soon where a collector
# has failed for that, and from time to time where there is none.
_RECREATED_EVERY_S = 5.0
_RECREATED_IDLE_EVERY_S = 30.0
_CHECK_EVERY_S = 3.0  # an operator corrects a refused setting; the check asks several brokers
# How long a new process waits for its group before it is a standby of all collectors. A rebalance
# may take longer (Kafka's group.initial.rebalance.delay.ms is 3 s), and collectors must not wait.
_GROUP_S = 1.0
_GROUP_EVERY_S = 0.05  # only while a process waits for its group or its first collectors
# How long a process that stops acts on for a standby: ten times what the two records of a takeover
# take on a busy machine. Without a standby the stop takes that much longer.
_HAND_OVER_S = 0.5
_CHECK_ENDS_S = 5.0  # its thread may wait for the cluster; the process does not wait for that


class Worker(faust.Worker):
    """A worker that writes nothing to stdout, and ends as soon as its loops have ended.

    Faust's own worker shows a spinner on stdout, and waits for a second at the end. This one also
    opens the web port first.
    """

    def __init__(self, *services: Any, **options: Any) -> None:
        super().__init__(*services, **{**options, "stdout": sys.stderr})
        self.spinner = None
        if app.conf.web_enabled:
            # First of all: a port that is in use ends the command before anything is started.
            _or_exit(_web.bind)

    async def _sentinel_task(self) -> None:
        await asyncio.sleep(0)


class _NoKafka(BootStrategy):
    """Faust without its Kafka client: our own drivers read and write Kafka."""

    enable_kafka = False


class _Shell(faust.App):
    """A Faust app without local state, and so without a data directory."""

    BootStrategy = _NoKafka

    async def on_first_start(self) -> None:
        """Create no directories: the state of a collector is its order stream."""


def _or_exit(call: Callable[[], _T]) -> _T:
    try:
        return call()
    except UsageError as error:
        sys.stderr.write(failure_text(error))
        sys.exit(error.exit_code)


def _listed(variable: str) -> list[str]:
    return list(filter(None, map(str.strip, os.environ.get(variable, "").split(","))))


def _open_driver() -> Driver:
    return open_driver(_settings.driver, _settings.bootstrap, _settings.client)


def _web_port() -> int:
    """Read AMCAST_WEB_PORT; 0 means any free port."""
    port = os.environ.get("AMCAST_WEB_PORT", str(_DEFAULT_PORT))
    if not port.isdecimal() or int(port) > _PORT_MAX:
        raise UsageError(f"AMCAST_WEB_PORT is {port!r}; it has to be a port from 0 to {_PORT_MAX}")
    return int(port)


def _web_host() -> str:
    """Read AMCAST_WEB_HOST."""
    host = os.environ.get("AMCAST_WEB_HOST", "127.0.0.1")
    if not _HOST.fullmatch(host):
        raise UsageError(
            f"AMCAST_WEB_HOST is {host!r}; it has to be an address of this machine, such as "
            f"127.0.0.1"
        )
    return host


_settings = _or_exit(settings)
_chosen_port = _or_exit(_web_port)
_chosen_host = _or_exit(_web_host)
app = _Shell(
    f"amcast-collectors-{_settings.topic}",
    store="memory",
    # Faust makes a URL of it that nobody reads, and cannot make one of an IPv6 address.
    web_host="localhost",
    web_bind=_chosen_host,  # without it Faust listens on all addresses
    web_port=_chosen_port or _DEFAULT_PORT,  # Faust does not know port 0
    web_enabled=True,
    worker_redirect_stdouts=False,
    Worker=Worker,
)


@app.service
class CollectorHost(Service):
    """Opens the driver and the engine, and supervises the collectors that this process hosts."""

    supervisors: dict[tuple[int, str], Supervisor]

    def __post_init__(self) -> None:
        self.supervisors = {}
        self._errors = ErrorLog()
        self.idle = False
        self._driver: Driver | None = None  # None until the start has opened it
        self._engine: Engine | None = None
        self._pinned = _listed("AMCAST_NODES")
        self.copiers = _or_exit(lambda: Copiers(_listed("AMCAST_MATERIALIZE"), self._leads))
        self.member: GroupMember | None = None
        self._began = self._looked_at = time.monotonic()
        self._look_now = asyncio.Event()  # the group's members have changed, or we stop
        self.check = StartCheck(_settings)
        self.order_check: RunningCheck | None = None
        self.watch: ConsumerWatch | None = None  # None where another process looks
        self._admin: Admin | None = None

    async def on_start(self) -> None:
        """Connect, and join the group unless AMCAST_NODES names our collectors."""
        # Imported modules stay for ever. Without the freeze, each full garbage collection scans
        # them, and stops the loops for a tenth of a second.
        gc.collect()
        gc.freeze()
        try:
            self._driver = await asyncio.to_thread(_open_driver)
        except AmcastError as error:
            sys.stderr.write(failure_text(error))
            raise SystemExit(error.exit_code) from None  # Faust would show a traceback
        if not self._pinned:
            loop = asyncio.get_running_loop()

            def changed() -> None:
                with suppress(RuntimeError):  # the loop is closed, so nobody waits
                    loop.call_soon_threadsafe(self._look_now.set)

            place = (_settings.bootstrap, _settings.client, _settings.topic)
            self.member = GroupMember(*place, changed=changed)
            self.member.start()
        if os.environ.get("AMCAST_CHECK") == "on":
            self.order_check = RunningCheck(_open_driver, _settings.topic)
            self.order_check.start()
        await self.add_runtime_dependency(self.copiers)
        hosts.append(self)

    def _leads(self) -> bool:
        """Whether what one process does is ours: of those that share, the first one's."""
        snapshot = None if self.member is None else self.member.snapshot
        return self.member is None or bool(snapshot and snapshot.me == min(snapshot.members))

    @Service.task
    async def _follow_plans(self) -> None:
        """Supervise each collector of our share, in each epoch that is not over."""
        while not self.should_stop:
            roles: Mapping[tuple[int, str], bool] | None = None
            try:
                await self._leave_recreated()
                if self._engine is None:
                    self._engine = await asyncio.to_thread(self._open_engine)
                roles = self._roles(self._engine.control)
            except AmcastError as error:
                self._errors.write(logging.WARNING, error, time.monotonic())
                await self.sleep(_EPOCH_EVERY_S)
            if self.check.refused is not None:
                for key in list(self.supervisors):
                    await self.remove_dependency(self.supervisors.pop(key))
            elif roles is not None and self._engine is not None:
                self.idle = not roles
                await self._take_roles(self._engine, roles)
            waits = not self.supervisors and not self.idle and self.check.refused is None
            with suppress(TimeoutError):
                async with asyncio.timeout(_GROUP_EVERY_S if waits else _EPOCH_EVERY_S):
                    await self._look_now.wait()
            self._look_now.clear()

    def _open_engine(self) -> Engine:
        assert self._driver is not None
        page = _web.page() if app.conf.web_enabled else None
        return Engine(self._driver, _settings.topic, page=page)

    async def _leave_recreated(self) -> None:
        """Close the engine if its control topic was recreated, as where a cluster was wiped.

        Another one reads the new topic from its start, once there is one.
        """
        engine, driver = self._engine, self._driver
        failed = [each for each in self.supervisors.values() if each.topic_changed]
        now = time.monotonic()
        # A process without collectors learns nothing of it from them.
        due = self._looked_at + (_RECREATED_EVERY_S if failed else _RECREATED_IDLE_EVERY_S)
        if engine is None or driver is None or now < due or (self.supervisors and not failed):
            return
        self._looked_at = now
        for supervisor in failed:
            supervisor.topic_changed = False
        if not await asyncio.to_thread(_was_recreated, driver, engine.control):
            return
        _log.warning("the control topic was deleted or recreated; all collectors begin anew")
        for key in list(self.supervisors):
            await self.remove_dependency(self.supervisors.pop(key))
        self._engine = None
        await asyncio.to_thread(engine.close)

    @Service.task
    async def _check_cluster(self) -> None:
        """Check the cluster until nothing is refused; a refusal stops all collectors meanwhile."""
        while not self.should_stop and not await asyncio.to_thread(self.check.look):
            await self.sleep(_CHECK_EVERY_S)

    @Service.task
    async def _watch_consumers(self) -> None:
        """Look what consumers have committed."""
        watch: ConsumerWatch | None = None
        while not self.should_stop:
            leads = self._leads()
            try:
                if leads and self._driver is not None:
                    if self._admin is None:
                        place = _settings.bootstrap, _settings.client
                        self._admin = await asyncio.to_thread(Admin, *place)
                    names = self._admin.groups
                    watch = watch or ConsumerWatch(self._driver, _settings.topic, names)
                    await asyncio.to_thread(watch.look)
            except AmcastError as error:
                self._errors.write(logging.WARNING, error, time.monotonic())
            self.watch = watch if leads else None
            await self.sleep(LOOK_EVERY_S)

    async def _take_roles(self, engine: Engine, roles: Mapping[tuple[int, str], bool]) -> None:
        """Start collectors that are new in our share, and end those that left it."""
        for (epoch, name), primary in roles.items():
            supervisor = self.supervisors.get((epoch, name))
            if supervisor is None:
                supervisor = Supervisor(engine, epoch, name, primary=primary, errors=self._errors)
                self.supervisors[epoch, name] = supervisor
                await self.add_runtime_dependency(supervisor)
            else:
                supervisor.unwanted_since = None
                supervisor.set_role(primary=primary)
        for key in [key for key in self.supervisors if key not in roles]:
            if self.supervisors[key].dispensable(time.monotonic()):
                await self.remove_dependency(self.supervisors.pop(key))

    def _roles(self, state: ControlState) -> Mapping[tuple[int, str], bool] | None:
        """Give our share by epoch and name, and whether we are the primary; None: unknown yet.

        It covers the newest epoch, and the one before until that has ended.
        """
        roles: dict[tuple[int, str], bool] = {}
        for epoch in (state.epoch - 1, state.epoch):
            if epoch > 0 and epoch not in state.ends:
                ours = self._share(state, epoch)
                if ours is None:
                    return None
                for name, primary in ours.items():
                    # A retained collector is placed with the newest epoch.
                    if epoch == state.epoch or name not in state.retained(epoch).collectors:
                        roles[state.first_epoch(epoch, name), name] = primary
        return roles

    def _share(self, state: ControlState, epoch: int) -> Mapping[str, bool] | None:
        """Give our share of an epoch's collectors, and whether we are the primary of each."""
        names = [node.name for node in state.plan(epoch).collectors]
        if self.member is None:
            stands_by = os.environ.get("AMCAST_STANDBY") == "on"
            return {name: not stands_by for name in names if name in self._pinned}
        snapshot = self.member.snapshot
        if snapshot is None:
            early = time.monotonic() - self._began < _GROUP_S
            waits = early and any(
                state.advertised.offered_by(state.first_epoch(epoch, name), name) is None
                for name in names
            )
            return None if waits else dict.fromkeys(names, False)
        places = share_out(names, snapshot.members).items()
        return {
            name: place.primary == snapshot.me
            for name, place in places
            if snapshot.me in (place.primary, place.standby)
        }

    def status(self) -> list[dict[str, Any]]:
        """Describe each collector of an epoch that is not over."""
        supervisors = list(self.supervisors.values())
        return [supervisor.status() for supervisor in supervisors if not supervisor.over]

    async def on_stop(self) -> None:
        """Leave the group, and end all collectors once standbys have taken them over."""
        self._look_now.set()
        if self.member is not None:
            self.member.stop()
        if self.order_check is not None:
            self.order_check.stop()
        supervisors = list(self.supervisors.values())
        snapshot = None if self.member is None else self.member.snapshot
        if snapshot is None or len(snapshot.members) != 1:  # another process may take over
            for supervisor in supervisors:
                supervisor.release()
            with suppress(TimeoutError):
                async with asyncio.timeout(_HAND_OVER_S):
                    for supervisor in supervisors:
                        await supervisor.released.wait()
        for supervisor in supervisors:
            if supervisor.instance is not None:
                supervisor.instance.stop()

    async def on_shutdown(self) -> None:
        """Close what was opened; the start may not have opened everything."""
        if self.member is not None:
            await asyncio.to_thread(self.member.join)
        if self.order_check is not None:
            await asyncio.to_thread(self.order_check.join, _CHECK_ENDS_S)
        if self._engine is not None:
            await asyncio.to_thread(self._engine.close)
        for opened in (self._admin, self._driver):
            if opened is not None:
                await asyncio.to_thread(opened.close)


def _was_recreated(driver: Driver, known: ControlState) -> bool:
    """Whether the control topic is not the one that was read before; blocks while it is read."""
    try:
        control = ControlReader(driver, known.topic)
    except UncoveredInterest:  # it was deleted
        return True
    with closing(control):
        return not control.refresh().continues(known)


hosts: list[CollectorHost] = []


def _healthz() -> tuple[HTTPStatus, dict[str, Any]]:
    """Give 200 if all collectors of this process run or its share is empty, else 503 and why."""
    described = _status()
    nodes = described["nodes"]
    idle = bool(hosts) and all(host.idle for host in hosts)  # our share is empty
    healthy = (idle or bool(nodes)) and all(node["state"] == "running" for node in nodes)
    # Who has nothing to do would notice that it reaches no broker by its group only.
    lost = described.get("group_error") if not nodes else None
    why = [described["refused"], lost, *(node["error"] for node in nodes)]
    document = {"healthy": healthy and not lost, "why": next(filter(None, why), None)}
    return (HTTPStatus.OK if document["healthy"] else HTTPStatus.SERVICE_UNAVAILABLE), document


def _status() -> dict[str, Any]:
    """Describe all collectors in this process, and its place in the group."""
    nodes = [node for host in hosts for node in host.status()]
    document = {"schema_version": 1, "topic": _settings.topic, "pid": os.getpid(), "nodes": nodes}
    document["process"] = _PROCESS.hex()
    document["refused"] = next((host.check.refused for host in hosts if host.check.refused), None)
    document["consumers"] = [row for host in hosts if host.watch for row in host.watch.status()]
    document["copiers"] = [row for host in hosts for row in host.copiers.status()]
    document["unchecked"] = next((host.check.unchecked for host in hosts), None)
    for check in [host.order_check for host in hosts if host.order_check is not None]:
        document["check"] = check.status()
    for member in [host.member for host in hosts if host.member is not None]:
        snapshot = member.snapshot
        document["member"] = snapshot.me if snapshot else None
        document["members"] = list(snapshot.members) if snapshot else []
        document["group_error"] = member.error.text(time.monotonic())
    return document


@app.web_server
class Web(Service):
    """Serves the pages instead of Faust's own server, which bounds neither time nor connections."""

    def __post_init__(self) -> None:
        metrics = page_of(_status)
        self._live = LivePages(_settings, _chosen_host)
        pages: dict[str, Page] = {
            "/healthz": _healthz,
            "/status": lambda: (HTTPStatus.OK, _status()),
            "/metrics": lambda: (HTTPStatus.OK, metrics.text()),
        }
        self._server = WebServer(pages, self._live.routes(), host=_chosen_host)

    async def on_start(self) -> None:
        """Start to answer requests."""
        await self._server.start(_web.bind())

    async def on_stop(self) -> None:
        """Stop answering requests."""
        await self._server.stop()
        await self._live.close()


class _WebAddress:
    """The listening socket of the web pages, bound once."""

    def __init__(self) -> None:
        self._listening: socket.socket | None = None

    def bind(self) -> socket.socket:
        """Listen at the configured host and port; raises `UsageError` if that fails."""
        if self._listening is None:
            free = not _chosen_port and app.conf.web_port == _DEFAULT_PORT
            self._listening = listen_at(app.conf.web_bind, 0 if free else app.conf.web_port)
        return self._listening

    def page(self) -> StatusPage:
        """Give the address to reach it at; one that listens on all addresses names one of them."""
        host, port = self.bind().getsockname()[:2]
        if ipaddress.ip_address(host).is_unspecified:
            host = _settings.listen or address_towards(_settings.bootstrap)
        return StatusPage(host, port, _PROCESS, this_machine())


_web = _WebAddress()


def web_address() -> str:
    """Give HOST:PORT of the web pages; raises `UsageError` if they cannot be served there."""
    return address_of(_web.bind())
