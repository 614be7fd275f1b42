"""Records what all consumers of this process hand out, and judges it when a test ends.

`pytest --amcast-check` uses it. Consumers whose driver is watched by a test double or by a topic of
the fixtures are left to these. A consumer of `multicast.aio` hands out what its reader thread has
read ahead.

Two topics of one name are told apart by the cluster's ID and by Kafka's IDs of the topics.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence

from multicast.consuming.cursor import Cursor
from multicast.consuming.delivery import Batch
from multicast.consuming.subscription import SubscriptionRequest
from multicast.control import ControlState
from multicast.drivers.protocol import Record
from multicast.properties import OrderViolation
from multicast.verification.observer import AtEnd, HandedOut
from multicast.verification.window import DeliveryWindow

# Deliveries of one test and topic that are compared; the oldest are dropped first. Some 30 MB.
MESSAGES_MAX = 200_000
_Identity = tuple[str, str, tuple[tuple[str, str], ...]]


class _Topic:
    """The deliveries of one topic in the running test, and the control topic as consumers read it.

    The state with most epochs is that of the consumer that has come furthest.
    """

    def __init__(self) -> None:
        self.window = DeliveryWindow(MESSAGES_MAX)
        self.states: dict[str, ControlState] = {}  # by reading

    def state(self) -> ControlState:
        return max(self.states.values(), key=lambda state: (state.epoch, len(state.ends)))


class ProcessRecorder:
    """Watches all consumers of a process; its methods may be called from any thread."""

    def __init__(self) -> None:
        self._topics: dict[_Identity, _Topic] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def observe(
        self,
        request: SubscriptionRequest,
        _: Cursor,
        control: ControlState,
        /,
        *,
        earliest: bool,
        at_end: AtEnd,
    ) -> HandedOut:
        """Record a consumer from here on (`multicast.verification.observer.Observe`)."""
        del earliest, at_end
        plan = control.plan()
        identity = (plan.topic, plan.cluster_id, tuple(sorted(plan.topic_ids.items())))
        consumer = request.name or "+".join(request.interest or ())
        instance = str(next(self._numbers))

        def handed_out(batch: Batch, records: Sequence[Record]) -> None:
            with self._lock:
                topic = self._topics.setdefault(identity, _Topic())
                if instance not in topic.states:
                    topic.states[instance] = control
                    topic.window.begins(consumer, instance, request, batch.epoch)
                topic.window.delivered(consumer, instance, batch, records)

        return handed_out

    def judge(self) -> OrderViolation | None:
        """Judge what was handed out since `clear`; give the first topic's violation, if any."""
        with self._lock:
            for topic in self._topics.values():
                report = topic.window.judge(topic.state())
                if report.violations:
                    return OrderViolation(report)
        return None

    def clear(self) -> None:
        """Forget what was handed out; consumers that are still open go on."""
        with self._lock:
            self._topics.clear()
