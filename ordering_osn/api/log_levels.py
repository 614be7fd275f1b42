"""Log levels by a spec in Fabric's grammar: `LEVEL` and `LOGGER[,LOGGER…]=LEVEL`, joined by ":".

"info:amcast.osn.deliver,amcast.osn.wire=debug" sets this project's loggers to info, and two of
them to debug. Only loggers that the process has can be named. A spec replaces the one before it.
Fabric's levels that Python does not have (`dpanic`, `panic`, `fatal`) set Python's `critical`.
"""

from __future__ import annotations

import logging
import threading

from ordering_osn.quoting import quoted

ROOT = "amcast"
_LEVELS = {
    "payload": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "dpanic": logging.CRITICAL,
    "panic": logging.CRITICAL,
    "fatal": logging.CRITICAL,
}
# The project has fewer than twenty loggers.
_FIELDS_MAX = 200


class MalformedSpec(ValueError):
    """The spec cannot be parsed; the text names the wrong part."""


class LogLevels:
    """The spec in force. `set` and `spec` may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._levels: dict[str, str] = {}
        level = logging.getLevelName(logging.getLogger(ROOT).getEffectiveLevel()).lower()
        self._default = level if level in _LEVELS else "info"

    @property
    def spec(self) -> str:
        """The spec in force, in canonical form: loggers sorted, the default level last."""
        with self._lock:
            named = [f"{name}={level}" for name, level in sorted(self._levels.items())]
            return ":".join([*named, self._default])

    def set(self, spec: object) -> None:
        """Put a spec in force; raises `MalformedSpec`, and then changes nothing."""
        if not isinstance(spec, str):
            raise MalformedSpec("the spec is not a string")
        default, levels = _parsed(spec)
        with self._lock:
            for name in self._levels:
                logging.getLogger(name).setLevel(logging.NOTSET)
            logging.getLogger(ROOT).setLevel(_LEVELS[default])
            for name, level in levels.items():
                logging.getLogger(name).setLevel(_LEVELS[level])
            self._default, self._levels = default, levels


def _parsed(spec: str) -> tuple[str, dict[str, str]]:
    default, levels = "info", {}
    fields = spec.split(":") if spec else []
    if len(fields) > _FIELDS_MAX:
        raise MalformedSpec(f"invalid logging specification: more than {_FIELDS_MAX} fields")
    for field in fields:
        names, is_named, level = field.rpartition("=")
        if level.lower() not in _LEVELS:
            raise MalformedSpec(f"invalid logging specification: bad level {quoted(level)}")
        if not is_named:
            default = level.lower()
            continue
        for name in names.split(","):
            # Python never frees a logger once it is named, so a spec names none that is not there.
            if name not in logging.root.manager.loggerDict:
                raise MalformedSpec(f"invalid logging specification: no logger {quoted(name)}")
            levels[name] = level.lower()
    return default, levels
