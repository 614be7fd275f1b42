"""The settings of commands and clients: from flags, AMCAST_* variables, `amcast.toml`, or defaults.

The first of these that gives a value wins. `amcast.toml` is searched for in the working directory
and in every folder above it:

    bootstrap = "127.0.0.1:9092"
    topic = "A"
    driver = "librdkafka"            # or "kafka-python"
    tickets = "on"                   # "off": collectors order the messages once they are stored
    listen = "10.0.0.7"              # where others reach the web pages of collectors that serve
                                     # them at all addresses; default: the address of the interface
                                     # that leads to the brokers

    [client]                         # passed to Kafka's clients: TLS, SASL
    "security.protocol" = "SASL_SSL"
    "ssl.ca.location" = "ca.pem"     # beside amcast.toml

Secrets belong in this file only; no flag takes one. An unknown key is an error.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from multicast.control.topics import refuse_topic
from multicast.drivers import DRIVERS
from multicast.errors import UsageError

FILE = "amcast.toml"
DEFAULT_DRIVER = "librdkafka"


@dataclass(frozen=True, slots=True)
class Settings:
    """What commands and clients need to reach one system."""

    bootstrap: str
    topic: str
    driver: str = DEFAULT_DRIVER
    tickets: bool = True
    listen: str | None = None
    client: Mapping[str, str] = field(default_factory=dict)


def find_file(start: Path | None = None) -> Path | None:
    """Find the nearest `amcast.toml` in a folder or above it; None if there is none.

    Folders that this user may not look into are passed over. Raises `UsageError` for one that is
    no regular file.
    """
    folder = (start or Path.cwd()).resolve()
    for candidate in (folder, *folder.parents):
        file = candidate / FILE
        with suppress(PermissionError):  # such as root's home, for the user of a service
            if file.is_file():
                return file
        if os.path.lexists(file):
            raise UsageError(f"{file} is not a regular file: remove it, or give it another name")
    return None


def settings(
    *,
    bootstrap: str | None = None,
    topic: str | None = None,
    driver: str | None = None,
    environment: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> Settings:
    """Collect the settings; raises `UsageError` if one is missing or invalid."""
    variables = os.environ if environment is None else environment
    path = file or find_file()
    document = _read(path) if path else {}

    def pick(name: str, flag: str | None, default: str | None) -> str:
        if flag == "":
            raise UsageError(f"--{name} is empty: give a value, or leave it out")
        value = flag or variables.get(f"AMCAST_{name.upper()}") or document.get(name) or default
        if not isinstance(value, str):
            raise UsageError(
                f"no {name} is set: give --{name}, AMCAST_{name.upper()}, or {name} in {FILE}"
            )
        return value

    named = pick("topic", topic, "A")
    refuse_topic(named)
    chosen = pick("driver", driver, DEFAULT_DRIVER)
    if chosen not in DRIVERS:
        raise UsageError(f"driver {chosen!r} is unknown; choose one of {', '.join(DRIVERS)}")
    if "AMCAST_ANNOUNCE" in variables:
        raise UsageError("AMCAST_ANNOUNCE is set; it is called AMCAST_TICKETS now")
    tickets = pick("tickets", None, "on")
    if tickets not in ("on", "off"):
        raise UsageError(f"tickets is {tickets!r}; choose on or off")
    client = document.get("client", {})
    assert isinstance(client, dict)
    return Settings(
        bootstrap=pick("bootstrap", bootstrap, None),
        topic=named,
        driver=chosen,
        tickets=tickets == "on",
        listen=pick("listen", None, "") or None,
        client=_beside(path, client),
    )


def _beside(file: Path | None, client: dict[str, str]) -> dict[str, str]:
    """Take relative paths in `amcast.toml` from its folder: commands run in folders below it."""
    return {
        name: os.fspath(file.parent / value) if file and name.endswith(".location") else value
        for name, value in client.items()
    }


def _read(file: Path) -> dict[str, object]:
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except OSError as wrong:
        raise UsageError(f"{file} cannot be read: {wrong.strerror or wrong}") from wrong
    except (ValueError, RecursionError) as wrong:  # TOMLDecodeError is a ValueError
        raise UsageError(f"{file}: {wrong}") from wrong
    for name, value in document.items():
        if name not in ("bootstrap", "topic", "driver", "tickets", "listen", "client"):
            instead = "; it is called 'tickets' now" if name == "announce" else ""
            raise UsageError(f"{file}: the key {name!r} is unknown{instead}")
        if name == "client":
            if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
                raise UsageError(
                    f"{file}: [client] is not a table of strings; put values in quotes"
                )
        elif not isinstance(value, str):
            raise UsageError(f"{file}: {name} is {value!r}, not a string; put it in quotes")
    return document
