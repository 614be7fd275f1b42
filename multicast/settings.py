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

Secrets belong in this file only; no flag takes one. An unknown key is an error. A file of somebody
else, or one that others may write to, is refused: it could send the passwords and messages of
whoever works in a folder below it to brokers of its own (as git does, CVE-2022-24765).
"""

from __future__ import annotations

import logging
import os
import stat
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from multicast.control.topics import refuse_topic
from multicast.drivers import DRIVERS
from multicast.errors import UsageError

FILE = "amcast.toml"
_SECRETS = ("sasl.password", "ssl.key.password")
DEFAULT_DRIVER = "librdkafka"
_log = logging.getLogger("amcast.settings")


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
        with file.open(encoding="utf-8-sig") as opened:
            state = os.fstat(opened.fileno())
            _refuse_of_others(file, (file.lstat(), state))
            document = tomllib.loads(opened.read())
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
    client = document.get("client", {})
    if (
        state.st_uid == os.geteuid()
        and state.st_mode & 0o077
        and not {*_SECRETS}.isdisjoint(client)
    ):
        _log.warning("%s holds a password and others may read it: chmod 600 %s", file, file)
    return document


def _refuse_of_others(file: Path, states: tuple[os.stat_result, os.stat_result]) -> None:
    """Raise `UsageError` unless only this user, his own group and root may change the settings.

    `states` are those of the file, and of the link that leads to it.
    """
    own = {0, os.geteuid()}
    if os.geteuid() == 0 and (behind := os.environ.get("SUDO_UID", "")).isdecimal():
        own.add(int(behind))
    for state in states:
        others = stat.S_IWOTH | (0 if state.st_gid == os.getegid() else stat.S_IWGRP)
        if state.st_uid not in own:
            raise UsageError(
                f"{file} belongs to user {state.st_uid}, so it is not believed: if it is yours, "
                f"make it this user's or root's; else work in another folder"
            )
        if not stat.S_ISLNK(state.st_mode) and state.st_mode & others:
            raise UsageError(
                f"{file} may be written by others, so it is not believed: look at what it says, "
                f"then chmod go-w {file}"
            )
