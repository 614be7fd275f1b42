"""Which instances of `amcast collectors run` there are: a thread that asks a consumer group.

Out comes the newest list of members that is known, and which of them we are. The group is called
`amcast.TOPIC.collectors`. While the group cannot be asked the last list stays: what it leads to may
be out of date, and is harmless (`placement.py`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from multicast.control import order_topic
from multicast.drivers.kafka_python.group_member import Membership
from multicast.errors import AmcastError

_log = logging.getLogger("amcast.collectors")
_BEATS = 5  # in a session's time-out
_RETRY_S = 0.1
_DENIED_S = 5.0
_STOP_S = 1.5


def group_of(topic: str) -> str:
    """Name the group in which a topic's instances meet."""
    return f"amcast.{topic}.collectors"


@dataclass(frozen=True, slots=True)
class Meeting:
    """Who met last, and as whom we did."""

    me: str
    members: tuple[str, ...]


class Members:
    """A member that stays in the group until `stop`; `meeting` is None until it first met others.

    `error` says why the group cannot be used now.
    """

    def __init__(self, bootstrap: str, client: Mapping[str, str], topic: str) -> None:
        self.meeting: Meeting | None = None
        self.error: str | None = None
        self._bootstrap = bootstrap
        self._client = client
        self._topic = topic
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="amcast-members", daemon=True)

    def start(self) -> None:
        """Begin to take part, on a thread of our own."""
        self._thread.start()

    def stop(self) -> None:
        """Begin to leave the group; safe from any thread."""
        self._stopped.set()

    def join(self) -> None:
        """Wait for a while until we have left; who does not leave in time is missed soon."""
        self._thread.join(_STOP_S)

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._take_part()
            except AmcastError as error:
                if self.error != str(error):
                    _log.warning("the collectors' group cannot be used now: %s", error)
                self.error = str(error)
                self._stopped.wait(_DENIED_S)

    def _take_part(self) -> None:
        member = Membership(
            self._bootstrap,
            self._client,
            group=group_of(self._topic),
            topic=order_topic(self._topic),
        )
        try:
            while not self._stopped.is_set():
                agreed = member.step()
                if agreed and member.member in member.members:
                    self.meeting = Meeting(member.member, member.members)
                    self.error = None
                self._stopped.wait(member.session_s / _BEATS if agreed else _RETRY_S)
            with suppress(AmcastError):
                member.leave()
        finally:
            member.close()
