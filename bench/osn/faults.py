"""Kills nodes, collectors, brokers and clients while transfers are sent, and restarts them.

A fault is due when the first arm has begun a share of its transfers. Everything is killed by
SIGKILL and started again at once; a node is killed only when all nodes are healthy, so that no two
are down at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from bench.osn.clients import ClientRun
from bench.osn.configs import changed_timeout
from bench.osn.nodes import OrdererDeployment

NODE, COLLECTOR, BROKER, CLIENT, CONFIG = "node", "collector", "broker", "client", "config"


@dataclass(frozen=True, slots=True)
class DueFault:
    """One fault: due at a share of the transfers; `number` says which one of its kind, modulo."""

    share: float
    kind: str
    number: int = 0


@dataclass(frozen=True, slots=True)
class Happened:
    """A fault that was made."""

    kind: str
    what: str


class Faults:
    """Makes the faults of a list in turn; for one thread."""

    def __init__(
        self,
        world: OrdererDeployment,
        clients: Mapping[str, ClientRun],
        faults: Sequence[DueFault],
        say: Callable[[str], None],
    ) -> None:
        self._world = world
        self._clients = clients
        self._waiting = sorted(faults, key=lambda fault: fault.share)
        self._say = say
        self.happened: list[Happened] = []

    @property
    def left(self) -> int:
        """How many faults are still to be made."""
        return len(self._waiting)

    def revive(self) -> None:
        """Start collectors again that ended by themselves, as they do where no broker answers."""
        for name in self._world.collectors.ended():
            self._world.collectors.start(name)

    def make_due(self, share: float) -> None:
        """Make all faults that are due; blocks while a broker restarts. Raises `TimedOut`."""
        while self._waiting and self._waiting[0].share <= share:
            self._make(self._waiting.pop(0))

    def _make(self, fault: DueFault) -> None:
        world = self._world
        match fault.kind:
            case "node":
                number = fault.number % len(world.nodes.addresses)
                what = f"node {number}"
                world.nodes.wait_healthy()
                world.nodes.kill(number)
                world.nodes.start(number)
            case "collector":
                name = world.collectors.names[fault.number % len(world.collectors.names)]
                what = f"collector {name}"
                world.collectors.kill(name)
                world.collectors.start(name)
            case "broker":
                number = 1 + fault.number % world.nodes.service.brokers
                what = f"broker {number}"
                world.cluster.kill(number)
            case "client":
                what = "the clients"
                for client in self._clients.values():
                    client.kill()
                    client.start()
            case _:
                chain = world.nodes.service.chains[fault.number % len(world.nodes.service.chains)]
                what = f"the config of {chain}"
                changed_timeout(world.nodes, chain, now=datetime.now(UTC))
        for client in self._clients.values():
            client.journal.look()
        begun = max(client.journal.begun for client in self._clients.values())
        self.happened.append(Happened(fault.kind, what))
        did = "changed" if fault.kind == CONFIG else "killed and restarted"
        self._say(f"{begun} transfers have begun; {did}: {what}")
        if fault.kind == BROKER:
            world.cluster.restart(number)
