"""What consumers of a topic have committed, looked at again and again: lags, and who stands.

A process of collectors shows it at `/status` and `/metrics`, the live page shows it, so a consumer
that is dead or frozen is seen without its own metrics. Writes nothing, and joins no group.

A look reads the commits of all groups. Whether messages wait in a log, and how old the first is, is
read once for each position of a group, by turns: of `_READS_MAX` groups a look.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from collectors.doctor.consumer_groups import (
    committed_group,
    group_prefix,
    never_committed,
    with_left,
)
from collectors.doctor.facts import GroupFacts
from collectors.doctor.streams import now_ms
from multicast.control import ControlReader
from multicast.drivers.protocol import Driver
from multicast.errors import AmcastError

_log = logging.getLogger("amcast.collectors")
LOOK_EVERY_S = 5.0  # an alert comes within some seconds of its threshold
_GROUPS_MAX = 1_000  # each costs a request a look
_READS_MAX = 20  # each costs a fetch of the logs in which something waits


class ConsumerWatch:
    """Looks at the groups of one topic; `names` lists those with a prefix. For one thread."""

    def __init__(self, driver: Driver, topic: str, names: Callable[[str], Iterable[str]]) -> None:
        self._driver = driver
        self._topic = topic
        self._names = names
        self._control: ControlReader | None = None
        self._groups: dict[str, GroupFacts] = {}
        self._read_at: dict[str, int] = {}  # by group, the look that read its logs last
        self._looks = 0
        self.never: tuple[str, ...] = ()
        self.error = ""

    def look(self) -> None:
        """Look once; blocks until the brokers have answered. `error` says what cannot be seen."""
        try:
            self._look()
            self.error = ""
        except AmcastError as error:
            if self.error != str(error):
                _log.warning("consumers cannot be seen: %s", error)
            self.error, self._groups, self.never = str(error), {}, ()

    def _look(self) -> None:
        self._looks += 1
        if self._control is None:
            self._control = ControlReader(self._driver, self._topic)
        state = self._control.refresh()
        if not state.epoch:
            return
        names = list(self._names(group_prefix(self._topic)))[:_GROUPS_MAX]
        groups: dict[str, GroupFacts] = {}
        for name in names:
            group = committed_group(self._driver, state, name)
            if group is not None:
                groups[name] = _as_read(group, self._groups.get(name))
        unread = [name for name, group in groups.items()
                  if any(place.lag and place.first is None for place in group.places)]  # fmt: skip
        read_at = {name: self._read_at.get(name, 0) for name in groups}
        for name in sorted(unread, key=read_at.__getitem__)[:_READS_MAX]:
            groups[name] = with_left(self._driver, groups[name], state)
            read_at[name] = self._looks
        self.never = tuple(each.group for each in never_committed(state.plan(), groups.values()))
        self._groups, self._read_at = groups, read_at

    def status(self) -> list[dict[str, Any]]:
        """Describe each group: what waits, for how long, its last commit, and since when it stands.

        A consumer of the plan that never committed has the consumer's name and no more.
        """
        now = now_ms()
        rows: list[dict[str, Any]] = [{"consumer": name, "never": True} for name in self.never]
        for group in self._groups.values():
            row: dict[str, Any] = {"consumer": group.group, "never": False, "lag": group.lag}
            for name, since in (("lag_seconds", group.oldest_ms if group.lag else now),
                                ("stands_seconds", group.stands_since_ms or now)):  # fmt: skip
                if since is not None:
                    row[name] = max(0, now - since) / 1000
            if group.committed_ms is not None:
                row["committed_at"] = group.committed_ms / 1000
            rows.append({**row, "problem": group.problem})
        return rows

    def close(self) -> None:
        """Close what it reads; the driver stays open."""
        if self._control is not None:
            self._control.close()


def _as_read(group: GroupFacts, before: GroupFacts | None) -> GroupFacts:
    """Take over what was read of the logs in which the group has the same position as before."""
    known = {} if before is None else {(each.log, each.position): each for each in before.places}
    places = []
    for place in group.places:
        same = known.get((place.log, place.position))
        if same is not None and (same.oldest_ms is not None or same.end == place.end):
            place = replace(place, first=same.first, oldest_ms=same.oldest_ms)  # noqa: PLW2901
        places.append(place)
    return replace(group, places=tuple(places))
