"""Reads a part of a log again for the judges of a delivery, up to one segment of it."""

from __future__ import annotations

from multicast.conditional.judges import LogJudges, Wanted
from multicast.control import log_partition
from multicast.drivers.protocol import Driver, Reader


class Lookback:
    """Reads what judges want, over several calls; one reader is open meanwhile."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._wanted: Wanted | None = None
        self._reader: Reader | None = None

    def read(self, judges: LogJudges, timeout_s: float) -> None:
        """Read for at most `timeout_s` seconds; raises what `Reader.poll` raises.

        Opening the reader blocks for a request to the cluster, as its driver bounds it.
        """
        wanted = judges.wanted
        assert wanted is not None
        try:
            if self._reader is None or self._wanted is not wanted:
                self._reader = self._begin(judges, wanted)
            for fetched in self._reader.poll(timeout_s):
                if judges.wanted is wanted:
                    judges.read_again(fetched.records, fetched.position)
        except BaseException:
            self.close()
            raise
        if judges.wanted is not wanted:
            self.close()

    def _begin(self, judges: LogJudges, wanted: Wanted) -> Reader:
        self.close()
        partition = log_partition(wanted.log)
        retained = self._driver.log_start_offsets([partition])[partition]
        first = min(max(wanted.first, retained), wanted.next)
        judges.look_back(first)
        if first == wanted.next:
            judges.read_again([], first)
        self._wanted = wanted
        return self._driver.reader({partition: first})

    def close(self) -> None:
        """Close the reader, if one is open."""
        if self._reader is not None:
            self._reader.close()
        self._reader = None
        self._wanted = None
