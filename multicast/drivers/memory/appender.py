"""A joint appender in memory: the product's own decisions, with brokers in memory (`brokers.py`).

Numbers, epochs, what is in doubt, what is put back, which records share a request, and what goes
beside them, are decided by `multicast/drivers/appender/`, as with a socket. In place of the threads
of a real one stands `turn`, which each append and each answer calls. One caller at a time runs it;
what others bring meanwhile, such as an append by a `done`, is taken up by that one.

    sent     requests that nobody carries yet: `MemoryBrokers.carry` gets them without a lock
    tried    partitions whose leader was looked up in this turn. One that has none afterwards waits
             for the next turn, as it waits for a pause with a real cluster
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from multicast.drivers.appender.appender import JointAppender
from multicast.drivers.appender.dispatcher import Dispatcher, Limits
from multicast.drivers.appender.entries import QueuedEntry
from multicast.drivers.memory.brokers import MemoryBrokers, MemoryLink, MemoryRequest
from multicast.drivers.memory.logs import name
from multicast.drivers.protocol import (
    IN_FLIGHT_BYTES_MAX,
    IN_FLIGHT_MAX,
    Beside,
    Settled,
    TopicPartition,
)
from multicast.errors import AppendRefused


class MemoryJointAppender(JointAppender[MemoryLink]):
    """A joint appender of a `MemoryLog`; `done` is usually called before `append` returns."""

    def __init__(
        self,
        brokers: MemoryBrokers,
        limits: Limits,
        *,
        beside: Beside | None = None,
        settled: Settled | None = None,
        in_flight_max: int = IN_FLIGHT_MAX,
        in_flight_bytes_max: int = IN_FLIGHT_BYTES_MAX,
    ) -> None:
        self._brokers = brokers
        self._log = brokers.log
        self._sent: list[MemoryRequest] = []
        self._is_woken = False
        self._runner: int | None = None  # the thread that runs `turn`
        dispatcher = Dispatcher[MemoryLink](
            limits,
            beside,
            codec=None,
            wake=self._wake,
            need=self._wake,
            why=lambda _, code: brokers.why(code),
        )
        super().__init__(
            dispatcher,
            "the cluster in memory",
            lock=self._log.changed,
            changed=self._log.changed,
            in_flight_max=in_flight_max,
            in_flight_bytes_max=in_flight_bytes_max,
            settled=settled,
        )
        brokers.appenders.append(self)

    def turn(self) -> None:
        """Take answers, look at the time, send what may be sent, and report outcomes."""
        with self._lock:
            self._is_woken = True
            if self._runner is not None:
                return
            self._runner = threading.get_ident()
        tried: set[TopicPartition] = set()
        is_over = False
        try:
            while not is_over:
                is_over = self._step(tried)
        finally:
            if not is_over:
                self._runner = None

    def _step(self, tried: set[TopicPartition]) -> bool:
        """Do what is due now; return whether nothing was, and the turn is over."""
        with self._lock:
            if self._is_woken and not self._ended:
                self._is_woken = False
                self._take_answers()
                self._supply(tried)
                self._dispatcher.send_all(self._now())
            sent = self._sent.copy()
            self._sent.clear()
            outcomes = self._taken_outcomes()
            if not sent and not outcomes and (self._ended or not self._is_woken):
                self._runner = None
                self._changed.notify_all()
                return True
        for request in sent:
            self._brokers.carry(request)
        self._report(outcomes)
        return False

    def _take_answers(self) -> None:
        for link in list(self._dispatcher.links.values()):
            self._dispatcher.receive(link)
        self._dispatcher.enforce_limits(self._now())
        for link in list(self._dispatcher.links.values()):
            if link.broken:
                self._dispatcher.drop(link)

    def _supply(self, tried: set[TopicPartition]) -> None:
        """Get what is lacking, as the keeper of a real appender does."""
        dispatcher, brokers = self._dispatcher, self._brokers
        lacking = dispatcher.lacking()
        if lacking.identity:
            dispatcher.identified(brokers.new_identity())
        leaders: dict[TopicPartition, int] = {}
        for partition in lacking.partitions:
            if partition in tried:
                continue
            tried.add(partition)
            leader = brokers.leader(partition)
            if not self._log.exists(partition):
                missing = AppendRefused(f"{name(partition)} does not exist.")
                dispatcher.refuse(partition, missing)
            elif leader is not None:
                leaders[partition] = leader
        dispatcher.led(leaders)
        for node in dispatcher.lacking().nodes:
            if node in brokers.away:
                dispatcher.lose_leader(node)
            else:
                dispatcher.connected(MemoryLink(node, brokers, self._sent, self.turn))

    def _start_one(self, partition: TopicPartition, entry: QueuedEntry) -> None:
        super()._start_one(partition, entry)
        self.turn()

    def _now(self) -> float:
        return self._log.monotonic()

    def _wake(self) -> None:
        self._is_woken = True

    def _go_on(self) -> None:
        self._is_woken = True

    def _wait_for(self, ready: Callable[[], bool], timeout_s: float) -> bool:
        self.turn()
        if self._runner == threading.get_ident():
            timeout_s = 0.0  # a `done` waits: nobody else would bring it

        def is_ready() -> bool:
            with self._lock:
                return ready()

        return self._log.wait_for(is_ready, timeout_s)

    def _end(self) -> None:
        with self._lock:
            self._ended = True
            self._dispatcher.end("the appender was closed")
            self._brokers.appenders.remove(self)
        self.turn()
