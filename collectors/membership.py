"""The membership of `amcast collectors run`: a thread that takes part in a consumer group.

It keeps the newest list of members, and which of them is this process. The group's name is
`amcast.TOPIC.collectors`. While the group cannot be reached, the last list stays; an outdated list
is harmless (`placement.py`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass

from collectors.last_error import LastError
from multicast.control import order_topic
from multicast.drivers.kafka.group_member import Membership
from multicast.errors import AmcastError

_log = logging.getLogger("amcast.collectors")
_HEARTBEATS_PER_SESSION = 5  # Kafka advises three or more, so that one delay loses no member
_RETRY_S = 0.1  # while the group rebalances; until then nobody knows the new placement
_DENIED_S = 5.0  # after an error, such as a missing right, which an operator has to correct
_STOP_S = 1.5  # for the request to leave; without it the broker notices after the session time-out


def group_of(topic: str) -> str:
    """Give the name of the consumer group of a topic's instances."""
    return f"amcast.{topic}.collectors"


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """The members of one generation of the group; `me` is this process."""

    me: str
    members: tuple[str, ...]


class GroupMember:
    """The membership of this process in the group, from `start` to `stop`.

    `snapshot` is the newest generation that included us; None: none yet. After each new one
    `changed` is called, on the member's thread. `error` says why the group cannot be used now.
    """

    def __init__(
        self, bootstrap: str, client: Mapping[str, str], topic: str, *, changed: Callable[[], None]
    ) -> None:
        self.snapshot: GroupSnapshot | None = None
        self.error = LastError()
        self._bootstrap = bootstrap
        self._client = client
        self._topic = topic
        self._changed = changed
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="amcast-members", daemon=True)

    def start(self) -> None:
        """Join the group, on a thread of its own."""
        self._thread.start()

    def stop(self) -> None:
        """Begin to leave the group; safe from any thread."""
        self._stopped.set()

    def join(self) -> None:
        """Wait at most `_STOP_S` until we have left."""
        self._thread.join(_STOP_S)

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._take_part()
            except AmcastError as error:
                if self.error.sentence != str(error):
                    _log.warning("the collectors' group cannot be used now: %s", error)
                self.error.hear(error, time.monotonic())
                self._stopped.wait(_DENIED_S)

    def _take_part(self) -> None:
        member = Membership(
            self._bootstrap,
            self._client,
            group=group_of(self._topic),
            topics=[order_topic(self._topic)],
        )
        with closing(member):
            while not self._stopped.is_set():
                agreed = member.step()
                if agreed and member.member in member.members:
                    self.error.hear(None, time.monotonic())
                    self._take(GroupSnapshot(member.member, member.members))
                wait_s = member.session_s / _HEARTBEATS_PER_SESSION if agreed else _RETRY_S
                self._stopped.wait(wait_s)
            with suppress(AmcastError):
                member.leave()

    def _take(self, snapshot: GroupSnapshot) -> None:
        if snapshot != self.snapshot:
            self.snapshot = snapshot
            self._changed()
