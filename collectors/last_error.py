"""The last error of a part of a process, and for how long it has reached no broker. No I/O."""

from __future__ import annotations

from multicast.drivers.client_settings import REQUEST_TIMEOUT_S
from multicast.errors import ClusterUnreachable


class LastError:
    """Hears how calls end; `sentence` is the error of the last one, None if it succeeded."""

    def __init__(self) -> None:
        self.sentence: str | None = None
        self._lost_at: float | None = None

    def hear(self, error: Exception | str | None, now: float) -> None:
        """Take a call's error, None for its success; `now` is in seconds."""
        self.sentence = None if error is None else str(error)
        if not isinstance(error, ClusterUnreachable):
            self._lost_at = None
        elif self._lost_at is None:
            self._lost_at = now - REQUEST_TIMEOUT_S  # for so long the call waited for an answer

    def text(self, now: float) -> str | None:
        """Give the sentence, and for how long no broker has been reached, if none is."""
        if self._lost_at is None:
            return self.sentence
        return f"no broker reached for {now - self._lost_at:.0f} s: {self.sentence}"
