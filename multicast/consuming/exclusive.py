"""`Exclusive`: a consumer's membership of a group in which one is active and the others stand by.

A thread sends heartbeats and joins, so that a slow handler does not end the session. The consumer's
own thread activates it, between two polls.

    confirmed   a step of the member that began then was answered: nobody else is chosen before a
                session time-out has passed since. A process that was paused looks at it first
    failure     what ends the membership: another one has taken over, it is closed, it is denied

What `activity.py` decides this module carries out.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from multicast.consuming.activity import Activity, choose, next_fence
from multicast.consuming.group_positions import GroupCursor
from multicast.drivers.clock import ClientClock
from multicast.drivers.protocol import Driver, MemberIdentity, TopicPartition
from multicast.errors import ClusterUnreachable, Fenced, GroupInUse, TimedOut, UsageError

# How late a standby learns that the active one has ended: four small requests a second.
_HEARTBEAT_S = 0.25
_RETRY_S = 0.05
# A commit waits so long for a coordinator, as `until_end`: it outlives the failover of a broker.
_COMMIT_S = 30.0
_CLOSE_S = 5.0  # an answer to a join may take longer: then the group drops us after the session
_LOGGER = logging.getLogger("amcast.consumer")


class Exclusive:
    """Joins the group of a `GroupCursor`, whose commits are this member's from then on."""

    def __init__(
        self,
        driver: Driver,
        clock: ClientClock,
        cursor: GroupCursor,
        partitions: Sequence[TopicPartition],
    ) -> None:
        self._driver, self._clock, self._cursor = driver, clock, cursor
        self._activity = Activity()
        self._activating: MemberIdentity | None = None
        self._changed = threading.Condition()
        self._committing = threading.Lock()  # a commit that is tried again stays before later ones
        self._confirmed_at = -math.inf
        self._failure: Exception | None = None
        self._member = driver.member(cursor.group, partitions, choose)
        cursor.commit = self._commit
        self._thread = threading.Thread(target=self._run, name="amcast-member", daemon=True)
        if clock.threads:
            self._thread.start()
        else:
            clock.parties.append(self._turn)

    @property
    def fence(self) -> int:
        """The number of this activation; 0: it stands by."""
        return self._activity.fence

    # -- the consumer's thread --------------------------------------------------------------------

    def may_deliver(self, timeout: float, begin: Callable[[], None]) -> bool:
        """Wait until the consumer may deliver; False: not within `timeout`, or it begins now.

        `begin` goes to the group's position and commits it. Raises `Fenced` once another one has
        taken over, and what `begin` raises.
        """
        if self.fence:
            return self._wait(self._is_confirmed, timeout)
        if self._wait(lambda: self._activity.may_begin, timeout):
            self._activate(begin)
        return False

    def hold(self) -> None:
        """Wait, before a message is handed out, until it is certain that nobody else is chosen.

        Raises `Fenced` once another one has taken over, `TimedOut` if the group does not answer.
        """
        self._await(self._is_confirmed, _COMMIT_S + self._member.session_s)

    def _activate(self, begin: Callable[[], None]) -> None:
        with self._changed:
            identity = self._activity.identity if self._activity.may_begin else None
            stored = self._activity.stored  # after the join: nobody else's commit counts now
        if identity is None:
            return
        self._activating = identity
        try:
            self._cursor.fence = next_fence(stored, time.time_ns() // 1_000_000)
            begin()
        except GroupInUse:  # the group has gone on
            return
        finally:
            self._activating = None
        with self._changed:
            self._activity.activated(self._cursor.fence, identity)
        if self.fence:
            _LOGGER.info("active in group %s, fence %d", self._cursor.group, self.fence)

    def _commit(self, group: str, offsets: Mapping[TopicPartition, tuple[int, str]]) -> None:
        with self._committing:
            deadline = self._clock.monotonic() + _COMMIT_S + self._member.session_s
            while True:
                identity = self._activating or self._identity(deadline)
                try:
                    return self._driver.commit(group, offsets, identity)
                except BaseException as error:  # also of Ctrl-C: it may be stored later
                    if isinstance(error, Fenced):
                        self._fail(error)
                    with self._changed:
                        self._activity.commit_failed(identity)
                        self._changed.notify_all()
                    again = isinstance(error, GroupInUse | ClusterUnreachable)
                    if not again or self._activating or self._clock.monotonic() >= deadline:
                        raise

    def _identity(self, deadline: float) -> MemberIdentity:
        """Wait until a commit follows all that were made before it; give whose it is."""
        if not self.fence and self._failure is None:
            raise UsageError(
                f"this consumer stands by in group {self._cursor.group}: only an active one commits"
            )
        self._await(lambda: self._activity.may_commit, deadline - self._clock.monotonic())
        assert self._activity.identity is not None
        return self._activity.identity

    def _await(self, ready: Callable[[], bool], timeout: float) -> None:
        if not self._wait(ready, timeout):
            raise TimedOut(f"the coordinator of group {self._cursor.group} does not answer")

    def _wait(self, ready: Callable[[], bool], timeout: float) -> bool:
        if self._failure is None and ready():  # the way of most messages
            return True
        self._clock.wait_for(
            self._changed, lambda: self._failure is not None or ready(), max(0.0, timeout)
        )
        if self._failure is not None:  # a copy: each raise adds to its traceback
            raise type(self._failure)(f"{self._failure}") from self._failure
        return ready()

    def _is_confirmed(self) -> bool:
        return self._clock.monotonic() - self._confirmed_at < self._member.session_s

    def end(self) -> None:
        """Begin to leave the group: waits of other threads end, as what is in hand is the next's.

        From any thread; does not block.
        """
        self._fail(UsageError("this consumer is closed; open another one"))

    def close(self) -> None:
        """Leave the group, so that another one is active at once."""
        self.end()
        if self._clock.threads:
            self._thread.join(_CLOSE_S)
        else:
            self._clock.parties.remove(self._turn)
            self._member.close()

    # -- the member's thread ----------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._failure is None:
                wait_s = _HEARTBEAT_S if self._step() else _RETRY_S
                with self._changed:
                    if self._failure is None:  # a commit that fails ends the wait, too
                        self._changed.wait(wait_s)
        finally:
            self._member.close()

    def _turn(self) -> bool:
        """Step, where no threads are; return whether anything has changed."""
        before = self._activity.identity, self._failure
        if self._failure is None:
            self._step()
        if self._failure is not None:
            self._member.close()
        return before != (self._activity.identity, self._failure)

    def _step(self) -> bool:
        """Send a heartbeat or join; return whether that was answered."""
        began, known = self._clock.monotonic(), self._activity
        with self._changed:
            claim, rejoin = known.claim, known.must_join
        try:
            identity = self._member.take_part(claim, rejoin=rejoin)
            if identity is None:
                return False
            is_new = identity != known.identity
            stored = self._cursor.stored_fence() if is_new and identity.chosen else 0
        except ClusterUnreachable:
            return False
        except Exception as error:  # noqa: BLE001 - raised to whoever uses the consumer
            self._fail(error)
            return False
        with self._changed:
            if is_new and not known.joined(identity, stored):
                failure = (
                    f"another consumer has taken over group {self._cursor.group}: this one did not "
                    f"answer for its session time-out of {self._member.session_s:g} s, and what it "
                    f"delivered since its last commit is delivered there again; start it again, "
                    f"and it stands by"
                )
                self._fail(Fenced(failure))
            self._confirmed_at = began
            self._changed.notify_all()
        return True

    def _fail(self, failure: Exception) -> None:
        with self._changed:
            self._failure = self._failure or failure
            self._changed.notify_all()
