"""The state of a local cluster between commands: the file `cluster.json`.

It is replaced as a whole, so a reader without the lock sees either the old or the new state. A
process in it may have ended since: `Broker.state` checks.
"""

from __future__ import annotations

import json
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from multicast.errors import AmcastError, UsageError
from multicast.local.broker import LOOPBACK, Broker, BrokerHost
from multicast.local.process import ProcessId
from topology.files import write_text

STATE_FILE = "cluster.json"
_SCHEMA_VERSION = 1  # of the file; a reader refuses another


def new_token() -> str:
    """Return a new token for the processes of one run (`process.py`)."""
    return uuid.uuid4().hex


@dataclass(slots=True)
class ClusterState:
    """A cluster; `token` is that of its present or last run."""

    cluster_id: str
    version: str
    settings: dict[str, str]
    brokers: list[Broker]
    token: str = field(default_factory=new_token)

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers, separated by commas."""
        return ",".join(broker.address for broker in self.brokers)

    def broker(self, broker_id: int) -> Broker:
        """Return a broker by its number; `UsageError` if there is none."""
        for broker in self.brokers:
            if broker.broker_id == broker_id:
                return broker
        known = ", ".join(str(broker.broker_id) for broker in self.brokers)
        raise UsageError(f"there is no broker {broker_id}; there are {known}")

    def running(self) -> list[Broker]:
        """List the brokers whose process runs or is paused."""
        return [broker for broker in self.brokers if broker.state(token=self.token) != "ended"]

    def ended(self) -> list[Broker]:
        """List the brokers that do not run."""
        return [broker for broker in self.brokers if broker.state(token=self.token) == "ended"]

    def save(self, directory: Path) -> None:
        """Write the file; the caller holds the directory's lock."""
        text = json.dumps(self._document(), indent=1) + "\n"
        write_text(directory / STATE_FILE, text, force=True)

    def save_stopped(self, directory: Path) -> None:
        """Write that no broker runs. Where the disk is full, the old file stays.

        Its processes have ended, and who reads it finds that out.
        """
        for broker in self.brokers:
            broker.process = None
        with suppress(OSError):
            self.save(directory)

    @classmethod
    def load(cls, directory: Path) -> Self | None:
        """Read the file; return None if there is none."""
        path = directory / STATE_FILE
        try:
            return cls._parse(json.loads(path.read_text("utf-8")), directory)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise AmcastError(
                f"{path} is damaged ({error!r}); remove {directory} and start a new cluster"
            ) from error

    def _document(self) -> dict[str, Any]:
        return {
            "schema_version": _SCHEMA_VERSION,
            "version": self.version,
            "cluster_id": self.cluster_id,
            "bootstrap": self.bootstrap,
            "token": self.token,
            "settings": self.settings,
            "brokers": [
                {
                    "id": broker.broker_id,
                    "port": broker.port,
                    "controller_port": broker.controller_port,
                    "pid": broker.process.pid if broker.process else None,
                    "started": broker.process.started if broker.process else None,
                    "log_from": broker.log_from,
                }
                | _host_document(broker.host)
                for broker in self.brokers
            ],
        }

    @classmethod
    def _parse(cls, document: dict[str, Any], directory: Path) -> Self:
        if document["schema_version"] != _SCHEMA_VERSION:
            raise ValueError(f"schema_version {document['schema_version']}")
        brokers = [
            Broker(
                each["id"],
                each["port"],
                each["controller_port"],
                directory=directory / f"broker-{each['id']}",
                process=None if each["pid"] is None else ProcessId(each["pid"], each["started"]),
                log_from=each["log_from"],
                host=_host(each),
            )
            for each in document["brokers"]
        ]
        return cls(
            document["cluster_id"],
            document["version"],
            document["settings"],
            brokers,
            token=document["token"],
        )


def _host_document(host: BrokerHost) -> dict[str, Any]:
    if host == LOOPBACK:
        return {}
    return {"address": host.address, "run": list(host.run), "settings": dict(host.settings)}


def _host(document: dict[str, Any]) -> BrokerHost:
    if "address" not in document:
        return LOOPBACK
    ports = document["port"], document["controller_port"]
    return BrokerHost(document["address"], tuple(document["run"]), document["settings"], *ports)
