"""How long the last change of plan stopped each collector of a process. No I/O, no clock.

    frozen  its stream of one epoch is seen frozen: it orders nothing more
    begun   its next stream, in the epoch that follows, can be appended to

The two are seen by different instances, and perhaps in the other order: then the pause is 0.
Methods are safe from any thread.
"""

from __future__ import annotations


class ChangePauses:
    """Remembers by name when collectors froze, and when they first began in which epoch."""

    def __init__(self) -> None:
        self._frozen: dict[str, tuple[int, float]] = {}
        self._begun: dict[str, tuple[int, float]] = {}

    def frozen(self, name: str, following: int, now: float) -> None:
        """Note that a collector is frozen; `following` is the epoch after, `now` in seconds."""
        self._frozen[name] = (following, now)

    def begun(self, name: str, epoch: int, now: float) -> None:
        """Note that a collector begins an epoch; that it begins it again changes nothing."""
        if self._begun.get(name, (0, 0.0))[0] != epoch:
            self._begun[name] = (epoch, now)

    def seconds(self, name: str, epoch: int) -> float | None:
        """Give the pause before an epoch; None if this process has not seen both ends of it."""
        following, froze = self._frozen.get(name, (0, 0.0))
        begun_epoch, began = self._begun.get(name, (0, 0.0))
        return max(0.0, began - froze) if following == begun_epoch == epoch else None
