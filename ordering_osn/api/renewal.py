"""Follows the files of a node's identity and TLS: what changes is read anew, without a restart.

What cannot be used leaves the last in force, is logged once, and is shown by a metric. Connections
that are open stay as they are. No clock: `serving.py` says when to look.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

_log = logging.getLogger("amcast.osn.renewal")
_Read = TypeVar("_Read")


class FollowedFiles(Generic[_Read]):
    """The files of an option, read once, and again when they have changed.

    `used` are what takes each new reading (`current`), in this order; one may refuse it by an
    error. `trouble` says why the files as they are now are not in force; empty: they are.
    """

    def __init__(self, option: str, paths: Sequence[Path], read: Callable[[], _Read]) -> None:
        """Read the files, or the files in these folders; raises what `read` raises."""
        self.option, self._paths, self._read = option, paths, read
        self.used: list[Callable[[_Read], None]] = []
        self.trouble = ""
        self._state = self._look()
        self.current = read()

    def renew(self, *, anyhow: bool = False) -> None:
        """Read and use the files if they have changed, or `anyhow`; raises nothing."""
        state = self._look()
        if state == self._state and not (anyhow or self.trouble):
            return
        try:
            read = self._read()
            if state != self._look():
                return  # a key and its certificate may be of different times: the next look sees
            for use in self.used:
                use(read)
        except Exception as error:  # noqa: BLE001 - no file may end the node's looks
            trouble = f"{self.option} and what goes with it: {error}; what was in force stays so"
            if anyhow or trouble != self.trouble:
                _log.error("%s", trouble)
            self.trouble = trouble  # which may end without a change of the files: tried again
        else:
            self.current, self.trouble = read, ""
            _log.warning("%s and what goes with it: read anew", self.option)
        self._state = state

    def _look(self) -> list[tuple[Any, ...]]:
        """Give what tells files that have changed from those before."""
        looked = []
        for path in self._paths:
            with suppress(OSError):  # it is missing, which the reading says
                for file in sorted(path.iterdir()) if path.is_dir() else [path]:
                    state = file.stat()
                    looked.append((file, state.st_mtime_ns, state.st_size, state.st_ino))
        return looked
