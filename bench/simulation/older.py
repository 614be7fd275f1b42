"""The core of an older program, which orders messages of version 1 before they are stored.

Such programs did so for messages that producers had announced. Their order records stay in the
streams, and their instances may run beside newer ones while a system is updated. This core differs
from `Collector` in that only: what is announced is drawn, and perhaps no message ever comes.

Invariant: what is handed out of log l is <= end of l + `early_max`.
"""

from __future__ import annotations

from collectors.collector import Collector, CollectorLimits
from multicast.order import OrderStream, Run


class OlderCollector(Collector):
    """A collector that also orders offsets beyond the ends of its own logs."""

    def __init__(
        self,
        own: OrderStream,
        parent: OrderStream | None,
        *,
        writer: int,
        limits: CollectorLimits,
        early_max: int,
    ) -> None:
        super().__init__(own, parent, writer=writer, limits=limits)
        self._early_max = early_max
        self._announced: dict[int, int] = {}  # by log: the offset up to which it may be ordered

    def announced(self, bits: int) -> None:
        """Announce messages of one own log: at most `early_max` beyond its end."""
        if self._logs:
            log = self._logs[bits % len(self._logs)]
            self._announced[log] = self._ends[log] + 1 + (bits >> 8) % self._early_max

    def _from_logs(self) -> tuple[Run, ...]:
        """Gather runs of our own logs, also of announced messages unless the epoch ends."""
        ends = self._ends
        if self._freeze_after is None:
            self._ends = {
                log: end if log in self.held else max(end, self._announced.get(log, end))
                for log, end in ends.items()
            }
        try:
            return super()._from_logs()
        finally:
            self._ends = ends
