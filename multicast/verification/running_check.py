"""The always-on check: reads a running system as its consumers do, and judges what they deliver.

A thread subscribes as each consumer of the plan, from the end of the order on, and follows changes
of the plan. `DeliveryWindow` keeps the newest deliveries, and `properties.py` judges them after
each turn. It commits nothing and joins no group.

    turn      each consumer is read for a moment, then the window is judged
    witness   what contradicts what, in words; the first one since the start is kept
    skipping  a consumer that is far behind although it reads all the time continues at the end of
              the order: then the check samples, instead of taking more than its share of a core

Invariant: `violations` > 0 iff `state` is "violated" iff `witness` is not None.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

from multicast.consuming.consumer import Consumer
from multicast.consuming.subscription import SubscriptionRequest
from multicast.control import ControlReader, ControlState
from multicast.drivers.protocol import Driver
from multicast.errors import AmcastError, ProtocolViolation, Trimmed, UncoveredInterest
from multicast.properties import OrderViolation
from multicast.verification.window import DeliveryWindow

_log = logging.getLogger("amcast.check")
# Deliveries of all consumers together: some 2 MB, and a judgement takes about a tenth of a second.
MESSAGES_MAX = 20_000
_TURN_MESSAGES_MAX = 2_000  # of one consumer, so that no consumer pushes the others out of a turn
_POLL_S = 0.01  # one look at one consumer; with 200 of them a turn takes some two seconds
_TURN_S = 0.5  # from one turn to the next where nothing comes: a violation is told within seconds
# The thread rests nine times as long as it worked: it takes a tenth of a core at most.
_REST = 9.0
_BEHIND_S = 60.0  # longer than a collector's failover takes, whose backlog must not be skipped
_RETRY_S = 1.0  # until the cluster is asked again after an error


class RunningCheck:
    """Checks the running system of one topic, in a thread of its own, until `stop`.

    `open_driver` opens a driver for this check alone; it is called in the thread, and again after
    an error of the cluster.
    """

    def __init__(
        self, open_driver: Callable[[], Driver], topic: str, *, messages_max: int = MESSAGES_MAX
    ) -> None:
        self._open_driver = open_driver
        self._topic = topic
        self._window = DeliveryWindow(messages_max)
        self._consumers: dict[str, Consumer] = {}
        self._messages = self._judged = 0
        self._violations = 0
        self._witness: str | None = None
        self._newest_witness = ""
        self._checked_at = 0.0
        self._error: str | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="amcast-check", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Tell the thread to end; does not block."""
        self._stopped.set()

    def join(self, timeout_s: float) -> None:
        """Wait until the thread has closed what it opened, at most `timeout_s` seconds."""
        self._thread.join(timeout_s)

    def status(self) -> dict[str, Any]:
        """Describe the check; may be called from any thread.

        "messages" counts the deliveries read so far, "violations" the turns that found another one.
        "checked_at" is the time of the last judgement in seconds since 1970; 0.0 before the first.
        "error" says why there is no newer one.
        """
        began = self._checked_at > 0.0
        return {
            "state": "violated" if self._violations else "ok" if began else "starting",
            "messages": self._messages,
            "violations": self._violations,
            "witness": self._witness,
            "checked_at": self._checked_at,
            "error": self._error,
        }

    # -- the thread -------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._check()
            except AmcastError as error:
                self._error = str(error)
            except Exception as error:  # noqa: BLE001
                # A defect of the check must not end what runs beside it, but must be seen.
                self._error = f"the check failed with an unexpected error: {error!r}"
                _log.error("the check of topic %s failed", self._topic, exc_info=error)
            self._stopped.wait(_RETRY_S)

    def _check(self) -> None:
        """Take turns until `stop`; raises what the cluster says."""
        with ExitStack() as opened:
            driver = self._open_driver()
            opened.callback(driver.close)
            control = ControlReader(driver, self._topic)
            opened.callback(control.close)
            opened.callback(self._leave)
            while not self._stopped.is_set():
                began = time.thread_time()
                self._join(driver, control.refresh())
                for name, consumer in list(self._consumers.items()):
                    self._read(name, consumer)
                self._judge(control.refresh())
                worked = time.thread_time() - began
                self._stopped.wait(max(_TURN_S, _REST * worked))

    def _leave(self) -> None:
        for consumer in self._consumers.values():
            consumer.close()
        self._consumers.clear()

    def _join(self, driver: Driver, control: ControlState) -> None:
        """Subscribe as each consumer of the newest plan that is not read yet."""
        for entry in control.plan().consumers:
            if entry.name in self._consumers:
                continue
            with suppress(UncoveredInterest):  # new in an epoch that has not begun: the next turn
                consumer = Consumer(
                    topic=self._topic,
                    name=entry.name,
                    start="latest",
                    committed=False,
                    driver=driver,
                )
                self._consumers[entry.name] = consumer
                self._begin(entry.name, consumer)

    def _begin(self, name: str, consumer: Consumer) -> None:
        request = SubscriptionRequest.of(name, None)
        self._window.begins(name, "", request, consumer.position.epoch)

    def _read(self, name: str, consumer: Consumer) -> None:
        """Take a consumer's part of a turn."""
        room, newest_ms = _TURN_MESSAGES_MAX, None
        try:
            while room > 0 and (batches := consumer.poll(_POLL_S, messages_max=room)):
                for batch in batches:
                    self._window.delivered(name, "", batch, batch.records)
                    room -= len(batch.records)
                    newest_ms = batch.records[-1].timestamp_ms
        except (UncoveredInterest, Trimmed, ProtocolViolation) as error:
            # The newest plan lacks it, it was away too long, or its order is broken. `_join` opens
            # it again if there is something to read.
            self._consumers.pop(name).close()
            if isinstance(error, ProtocolViolation):
                self._violated(f"consumer {name} cannot read its order: {error}")
            return
        finally:
            self._messages += _TURN_MESSAGES_MAX - room
        behind = newest_ms is not None and newest_ms < (time.time() - _BEHIND_S) * 1000
        if room <= 0 and behind:
            consumer.seek("latest")
            self._begin(name, consumer)

    def _judge(self, control: ControlState) -> None:
        if self._messages != self._judged:
            report = self._window.judge(control)
            self._judged = self._messages
            if report.violations:
                self._violated(str(OrderViolation(report)))
                self._window.clear()  # what follows is judged by itself
        self._checked_at = time.time()
        self._error = None

    def _violated(self, witness: str) -> None:
        """Count and log a violation, unless it is the one that was found last."""
        if witness != self._newest_witness:
            self._newest_witness = witness
            self._witness = self._witness or witness
            self._violations += 1
            _log.error("topic %s: %s", self._topic, witness)
