"""The state of a local cluster between commands: the file `cluster.json`.

It is replaced as a whole, so a reader without the lock sees either the old or the new state. A
process in it may have ended since: `Broker.state` checks.
"""

from __future__ import annotations

import json
import os
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from multicast.errors import AmcastError, UsageError
from multicast.local.broker import Broker, BrokerHost
from multicast.local.process import ProcessId
from topology.files import write_text

STATE_FILE = "cluster.json"


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
        text = json.dumps(asdict(self), indent=1, default=os.fspath) + "\n"
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
            read = json.loads(path.read_text("utf-8"))
            read["brokers"] = [_broker(each, directory) for each in read["brokers"]]
            return cls(**read)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise AmcastError(
                f"{path} is damaged ({error!r}); remove {directory} and start a new cluster"
            ) from error


def _broker(read: dict[str, Any], directory: Path) -> Broker:
    """Make a broker of what was written; the directory may have been moved since."""
    read["directory"] = directory / f"broker-{read['broker_id']}"
    read["process"] = read["process"] and ProcessId(*read["process"])
    read["host"] = BrokerHost(**{**read["host"], "run": tuple(read["host"]["run"])})
    return Broker(**read)
