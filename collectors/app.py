"""The Faust worker that hosts collectors: lifecycle, supervision and the web; no Kafka of its own.

`amcast collectors run` and `faust -A collectors.app worker` start the same. Faust's own consumer,
producer and tables stay off: each node polls Kafka itself, in a thread, on one of our drivers
(a Faust agent cannot append a merge exactly once; our acceptance rule needs no transaction).

    AMCAST_BOOTSTRAP, AMCAST_TOPIC, AMCAST_DRIVER   as everywhere; `amcast.toml` serves, too
    AMCAST_NODES                                    names, separated by commas; default: all
    AMCAST_WEB_PORT                                 default 6066

`/healthz` answers 200 while every node's loop runs, else 503. `/status` describes each node.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
import sys
from typing import Any

import faust
from faust.app.base import BootStrategy
from mode import Service

from collectors.node import Node
from multicast.control import ControlReader
from multicast.drivers import open_driver
from multicast.errors import AmcastError, ProtocolViolation, UsageError
from multicast.log import Driver
from multicast.settings import Settings, settings

_log = logging.getLogger("amcast.collectors")
_RETRY_S = (0.1, 0.5, 2.0, 5.0)
_EPOCH_EVERY_S = 1.0
_STOP_S = 1.5


class Worker(faust.Worker):
    """A worker that writes nothing to stdout, and ends when its loops have.

    Faust's own turns a spinner on stdout, and rests for a second before it goes.
    """

    def __init__(self, *services: Any, **options: Any) -> None:
        super().__init__(*services, **{**options, "stdout": sys.stderr})
        self.spinner = None

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


def _settings_or_exit() -> Settings:
    try:
        return settings()
    except UsageError as error:
        sys.stderr.write(f"amcast: {error}\n")
        sys.exit(error.exit_code)


def _web_port() -> int:
    """Read AMCAST_WEB_PORT; 0 asks for any free port."""
    asked = int(os.environ.get("AMCAST_WEB_PORT", "6066"))
    if asked:
        return asked
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


_settings = _settings_or_exit()
app = _Shell(
    f"amcast-collectors-{_settings.topic}",
    broker=[f"kafka://{address}" for address in _settings.bootstrap.split(",")],
    store="memory",
    web_host=os.environ.get("AMCAST_WEB_HOST", "127.0.0.1"),
    web_port=_web_port(),
    web_enabled=True,
    worker_redirect_stdouts=False,
    Worker=Worker,
)


class Supervisor(Service):
    """Keeps one node running, epoch after epoch: restarts its loop when it dies."""

    def __init__(self, driver: Driver, topic: str, name: str) -> None:
        super().__init__()
        self.node_name = name
        self.node: Node | None = None
        self.restarts = 0
        self.error: str | None = None
        self._checkpoints = True
        self._driver = driver
        self._topic = topic

    @Service.task
    async def _supervise(self) -> None:
        failures = 0
        while not self.should_stop:
            try:
                await asyncio.to_thread(self._run_once)
                failures = 0
            except AmcastError as error:
                self.error = str(error)
                self._checkpoints = not isinstance(error, ProtocolViolation)
                _log.error("collector %s: %s", self.node_name, error)
            except Exception:  # noqa: BLE001
                # A loop that died of our own mistake must not end the others in this process.
                self.error = "its loop died of an unexpected error; see the log"
                _log.exception("collector %s died", self.node_name)
            self.node = None
            if self.should_stop:
                return
            if self.error is not None:
                self.restarts += 1
            await self.sleep(_RETRY_S[min(failures, len(_RETRY_S) - 1)])
            failures += 1

    def _run_once(self) -> None:
        """Run the newest epoch that has begun until it is over, or we are stopped."""
        node = Node(self._driver, self._topic, self.node_name, checkpoints=self._checkpoints)
        self.node, self.error = node, None
        if self.should_stop:
            node.stop()
        _log.info("collector %s runs in epoch %d", self.node_name, node.plan.epoch)
        node.run()

    async def on_stop(self) -> None:
        """End the loop, and wait for its end; what is in flight then counts or not, as ever."""
        node = self.node
        if node is not None:
            node.stop()
            await asyncio.to_thread(node.ended.wait, _STOP_S)

    def status(self) -> dict[str, Any]:
        """Describe the node: what its loop says, and how it fares."""
        node = self.node
        state = "running" if node is not None and self.error is None else "starting"
        told: dict[str, Any] = {"node": self.node_name} if node is None else node.status()
        told["state"] = "failed" if self.error else state
        told["restarts"] = self.restarts
        told["error"] = self.error
        return told


@app.service
class Host(Service):
    """Opens the driver, and supervises the nodes that this process hosts."""

    supervisors: dict[str, Supervisor]

    def __post_init__(self) -> None:
        self.supervisors = {}
        self._control: ControlReader | None = None

    async def on_start(self) -> None:
        """Connect, and begin with the nodes that the newest plan and AMCAST_NODES name."""
        # What was imported stays: without this the collector of garbage looks through all of it,
        # and stops the loops for a tenth of a second.
        gc.collect()
        gc.freeze()
        self._driver = await asyncio.to_thread(
            open_driver, _settings.driver, _settings.bootstrap, _settings.client
        )
        hosts.append(self)

    @Service.task
    async def _follow_plans(self) -> None:
        """Start a supervisor for every node that is ours in the newest epoch."""
        while not self.should_stop:
            try:
                names = await asyncio.to_thread(self._names)
            except AmcastError as error:
                _log.warning("%s", error)
                names = []
            for name in names:
                if name not in self.supervisors:
                    self.supervisors[name] = Supervisor(self._driver, _settings.topic, name)
                    await self.add_runtime_dependency(self.supervisors[name])
            await self.sleep(_EPOCH_EVERY_S)

    def _names(self) -> list[str]:
        wanted = [name for name in os.environ.get("AMCAST_NODES", "").split(",") if name]
        if wanted:
            return wanted
        if self._control is None:
            self._control = ControlReader(self._driver, _settings.topic)
        return [node.name for node in self._control.refresh().plan().collectors]

    async def on_stop(self) -> None:
        """End all loops at once, then release the driver."""
        for supervisor in self.supervisors.values():
            if supervisor.node is not None:
                supervisor.node.stop()

    async def on_shutdown(self) -> None:
        """Release the driver after the loops have ended."""
        if self._control is not None:
            self._control.close()
        self._driver.close()


hosts: list[Host] = []


@app.page("/healthz")
async def healthz(view: Any, _request: Any) -> Any:
    """Tell whether every node's loop runs: 200 or 503."""
    told = _status()
    healthy = bool(told["nodes"]) and all(n["state"] == "running" for n in told["nodes"])
    return view.json({"healthy": healthy}, status=200 if healthy else 503)


@app.page("/status")
async def status(view: Any, _request: Any) -> Any:
    """Describe every node in this process."""
    return view.json(_status())


def _status() -> dict[str, Any]:
    nodes = [node.status() for host in hosts for node in host.supervisors.values()]
    return {"schema_version": 1, "topic": _settings.topic, "pid": os.getpid(), "nodes": nodes}
