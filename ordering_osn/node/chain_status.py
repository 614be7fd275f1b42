"""The status of one chain: whether its loop runs, why not, and whether clients may submit.

The chain's loop writes the status; clients, readers and the health check read it from any thread.

    waiting    the loop waits for something that may pass: a broker, room on the disk, a peer
    silent     the chain's log does not answer
    dead       the loop ended with an error, or because Kafka lost what the blocks are made of; only
               a restart of the node helps
    gone       the ledger's newest file: new blocks would be lost
    unread     a block that cannot be read from the ledger's files. New blocks need none of them
    errored    waiting, silent or dead: the blocks here may be behind those of other nodes
    trouble    errored or gone, or the order of the chain's own log does not move
    unhealthy  in trouble, unread, a loop that does not turn, or an order of its other logs that
               does not move: then bundles get 503, too
    ingress    open unless a reposted config is still on its way. Envelopes wait until it is open;
               in trouble they get 503

Every change of what a reader can see is followed by a call of every watcher.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from multicast.errors import Truncated
from ordering_osn.api.channels import Refused, Status
from ordering_osn.node.changes import ChangeEvent
from ordering_osn.node.order_watch import OrderWatch

_log = logging.getLogger("amcast.osn")
# No wait inside one turn is meant to be longer: a request to Kafka takes 5 s at most
# (`serving.py`), a round of blocks from a peer 60 s (`peers.py`).
_HUNG_S = 60.0


class Stopped(Exception):
    """The loop was told to stop while it waited."""


class ChainStatus:
    """The status of one chain, and the request that its loop stop."""

    def __init__(self, name: str, order: OrderWatch) -> None:
        self._name = name
        self._order = order
        self._dead: str | None = None
        # What strict readers are told, before their policy is looked at: no addresses of brokers.
        self.why_errored = "the chain's loop has ended, or its log cannot be reached"
        self._waiting: str | None = "it has not started yet"
        self._silent: str | None = None
        self._gone: str | None = None
        self._unread: str | None = None
        self._ingress_open = False
        self._turned_at = time.monotonic()
        self._stop = threading.Event()
        self._watchers: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    # -- what others read -----------------------------------------------------------------------

    @property
    def errored(self) -> bool:
        """Whether the chain does not follow its log now: readers that ask for STRICT get 503.

        False where only the order stands still: there every node has the same blocks.
        """
        return (self._dead or self._waiting or self._silent) is not None

    @property
    def ingress_open(self) -> bool:
        """Whether no reposted config is still on its way; until then envelopes wait."""
        return self._ingress_open

    def trouble(self, *, bundles: bool = False) -> str | None:
        """Say why an envelope submitted now may not be ordered soon; None: nothing is wrong.

        `bundles`: or a bundle, which stands in another log of the chain.
        """
        stuck = self._dead or self._waiting or self._silent or self._gone
        return stuck or (self._order.trouble if bundles else self._order.own_trouble)

    def unhealthy(self) -> str | None:
        """Say what is wrong with this chain; None where nothing is."""
        hung_s = time.monotonic() - self._turned_at
        if self._dead is None and hung_s > _HUNG_S:
            return f"its loop has not turned for {hung_s:.0f} s"
        return self.trouble(bundles=True) or self._unread

    async def ready(self, timeout_s: float, *, bundles: bool = False) -> None:
        """Return when the chain takes envelopes, or bundles; raises `Refused` if not in time."""
        if not self._ingress_open and self.trouble() is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, timeout_s)):
                    await self._settled()
        reason = self.trouble(bundles=bundles)
        if reason is None and not self._ingress_open:
            reason = "a config update is judged again, and takes long"
        if reason is not None:
            info = f"channel {self._name}: {reason}"
            raise Refused(Status.SERVICE_UNAVAILABLE, info, self._name)

    async def _settled(self) -> None:
        """Wait until the chain takes envelopes, or is in trouble."""
        changed = ChangeEvent()
        unwatch = self.watch(changed.set_from_any_thread)
        try:
            while not self._ingress_open and self.trouble() is None:
                await changed.wait()
                changed.clear()
        finally:
            unwatch()

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Have `callback` called AFTER each change, from any thread. Returns what ends it.

        The callback must not block.
        """
        with self._lock:
            self._watchers.append(callback)

        def unwatch() -> None:
            with self._lock:
                if callback in self._watchers:
                    self._watchers.remove(callback)

        return unwatch

    # -- what the loop and the registrar write --------------------------------------------------

    def log_answers(self, why_not: str | None) -> None:
        """Note whether the log answers; None: it does. From any thread."""
        if why_not != self._silent:
            self._silent = why_not
            _log.warning("chain %s: %s", self._name, why_not or "its log answers again")
            self.changed()

    def ledger_looked_at(self, *, missing: str | None, unread: str | None) -> None:
        """Note which file the ledger lacks, and which block cannot be read. From any thread."""
        gone = block = None
        if missing is not None:
            gone = f"its ledger cannot be read: {missing}; stop the node and restore its folder"
        if unread is not None:
            block = (
                f"its ledger lacks {unread}; the node serves all other blocks and takes envelopes; "
                f"to get it back, stop the node and move the file and all later ones of the folder "
                f"away"
            )
        if (gone, block) != (self._gone, self._unread):
            self._gone, self._unread = gone, block
            _log.warning("chain %s: %s", self._name, gone or block or "its ledger is whole again")
            self.changed()

    def waits_for(self, reason: str | None) -> None:
        """Note what the loop waits for; None: it runs."""
        if reason != self._waiting:
            self._waiting = reason
            if reason is not None and not self.stopping:
                _log.warning("chain %s: %s", self._name, reason)
            self.changed()

    def died(self, error: Exception) -> None:
        """Note the error that ended the loop, with the current traceback in the log."""
        self._dead = f"its loop ended: {error or type(error).__name__}"
        _log.exception("chain %s is dead", self._name)
        self.changed()

    def lost_tail(self, error: Truncated) -> None:
        """Note that the loop ended because Kafka lost the end of the chain's log, or of its order.

        The blocks stay readable.
        """
        self._dead = self.why_errored = (
            f"it has stopped (Truncated), as Kafka lost what was ordered: {error} ('After a lost "
            f"tail' in docs/ordering.md)"
        )
        _log.error("chain %s: %s", self._name, self._dead)
        self.changed()

    def set_ingress(self, *, is_open: bool) -> None:
        """Note whether no reposted config is still on its way."""
        if is_open != self._ingress_open:
            self._ingress_open = is_open
            self.changed()

    def changed(self) -> None:
        """Call the watchers."""
        with self._lock:
            watchers = list(self._watchers)
        for callback in watchers:
            callback()

    # -- the life of the loop -------------------------------------------------------------------

    def stop(self) -> None:
        """Ask the loop to stop; returns at once."""
        self._stop.set()

    @property
    def stopping(self) -> bool:
        """Whether the loop was asked to stop."""
        return self._stop.is_set()

    def turned(self) -> None:
        """Note that the loop is alive."""
        self._turned_at = time.monotonic()

    def pause(self, seconds: float) -> None:
        """Wait; no longer than until the loop is asked to stop."""
        self._stop.wait(seconds)

    def check_stop(self) -> None:
        """Note that the loop is alive; raise `Stopped` where it was asked to stop."""
        self.turned()
        if self.stopping:
            raise Stopped
