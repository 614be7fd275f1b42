"""A topic of its own on a real broker, for one test: a plan in force, its collectors, its clients.

The collectors run in this process, in the engine that `amcast collectors run` has, without its
supervision: an instance that fails is not started again, and its error ends the test.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from typing import Any, cast

from collectors.engine.engine import Engine
from collectors.engine.instance import CollectorInstance
from collectors.reconfiguration.apply import apply
from multicast.control import own_topics
from multicast.drivers import open_driver
from multicast.drivers.clock import SYSTEM_CLOCK
from multicast.drivers.kafka import Admin
from multicast.drivers.protocol import Driver
from multicast.errors import TimedOut, TopicMissing
from multicast.properties import Report
from multicast.testing.interests import Interests, plan_for
from multicast.testing.parties import TopicOnBroker
from multicast.testing.recorder import Recorder, judge
from multicast.verification.observer import Observe
from topology.tree import Plan

# One broker on a busy machine needs a few seconds for topics and connections; ten times more would
# only delay the report of a start that hangs.
_PATIENCE_S = 60.0
_POLL_S = 0.02  # while a test waits for its collectors; a human notices 0.2 s
_QUIET_S = 30.0  # as `Consumer.until_end`: it outlives the failover of a broker


class ObservedDriver:
    """A driver, and who watches its consumers."""

    def __init__(self, driver: Driver, observe: Observe) -> None:
        self._driver = driver
        self.observe = observe

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)


class RunningTopic(TopicOnBroker):
    """A topic with a plan and its collectors on a real cluster; a context manager.

    `topic` is a new name. At the end of the block the guarantees are checked, unless the block
    raised; then the clients and collectors end, and the topics are deleted. Opening blocks until
    the collectors work, a minute at most.

    Raises `UsageError` for interests that cannot be read or planned, `ClusterUnreachable`, and
    what `apply` raises.
    """

    def __init__(
        self,
        bootstrap: str,
        interests: Interests,
        *,
        driver: str = "librdkafka",
        client: Mapping[str, str] | None = None,
    ) -> None:
        self.bootstrap = bootstrap
        self._client = client
        self._recorder = Recorder()
        self._instances: list[CollectorInstance] = []
        planned = plan_for(interests)
        planned = plan_for(planned, topic=f"{planned.topic}-{uuid.uuid4().hex[:12]}")
        with ExitStack() as opened:
            self._driver = open_driver(driver, bootstrap, client)
            opened.callback(self._driver.close)
            watched = cast("Driver", ObservedDriver(self._driver, self._recorder.observe))
            super().__init__(planned.topic, watched)
            opened.callback(self._delete)
            with Admin(bootstrap, client) as admin:
                self.plan = apply(self._driver, admin, planned).plan
            self._engine = Engine(self._driver, self.topic)
            opened.callback(self._engine.close)
            self._host(self.plan.epoch)
            opened.callback(self.close_clients)
            self._opened = opened.pop_all()

    def close(self) -> None:
        """End clients and collectors, and delete the topics, without a check."""
        self.closed = True
        self._opened.close()

    def replan(self, interests: Interests, *, uncovered: bool = False) -> Plan:
        """Make a new plan the next epoch, while producers and consumers go on; return the plan."""
        plan = plan_for(interests, topic=self.topic, running=self.plan)

        def step(_: str) -> None:
            # `apply` waits for the next epoch's collectors once its plan is in the control topic.
            if self._engine.control.epoch < plan.epoch:
                self._wait(lambda: self._engine.control.epoch >= plan.epoch, "the new plan")
            self._add(plan.epoch)

        with Admin(self.bootstrap, self._client) as admin:
            self.plan = apply(
                self._driver,
                admin,
                plan,
                uncovered=uncovered,
                add_partitions=True,
                say=_once_proposed(plan.epoch, step),
            ).plan
        self._host(plan.epoch)
        return self.plan

    def check(self) -> Report:
        """Check all guarantees over what this topic's consumers have handed out.

        Each consumer of the plan is read again from its start, so this blocks until the collectors
        have ordered every message. Raises `OrderViolation`, whose text says what happened, and the
        error of a collector that failed.
        """
        self._raise_failure()
        return judge(self._driver, self.topic, self._recorder, timeout_s=_QUIET_S)

    # -- inside -----------------------------------------------------------------------------

    def _host(self, epoch: int) -> None:
        """Run the epoch's collectors; return once all of them work."""
        self._add(epoch)
        running = list(self._instances)
        self._wait(lambda: all(each.begun or each.over for each in running), "the collectors")
        self._raise_failure()

    def _add(self, epoch: int) -> None:
        """Run each collector that begins in this epoch, once."""
        known = {(each.name, each.plan.epoch) for each in self._instances}
        state = self._engine.control
        for spec in state.plan(epoch).collectors:
            if (spec.name, state.first_epoch(epoch, spec.name)) not in known:
                instance = CollectorInstance(self._engine, spec.name, epoch=epoch)
                self._instances.append(instance)
                self._engine.add(instance)

    def _wait(self, ready: Callable[[], bool], what: str) -> None:
        deadline = SYSTEM_CLOCK.monotonic() + _PATIENCE_S
        pause = threading.Event()
        while not ready():
            if SYSTEM_CLOCK.monotonic() > deadline:
                raise TimedOut(f"{what} of topic {self.topic} did not come in {_PATIENCE_S:g} s")
            pause.wait(_POLL_S)

    def _raise_failure(self) -> None:
        for instance in self._instances:
            if instance.error is not None:
                raise instance.error

    def _delete(self) -> None:
        topics = self.topic, *own_topics(self.topic)
        with Admin(self.bootstrap, self._client) as admin, suppress(TopicMissing):
            admin.delete_topics(sorted(admin.partitions(topics)))


def _once_proposed(epoch: int, step: Callable[[str], None]) -> Callable[[str], None]:
    """Call `step` with the sentences of `apply` from the one on that says the plan is proposed."""
    proposed = f"the plan of epoch {epoch} is in the control topic"
    seen: list[str] = []

    def say(sentence: str) -> None:
        if seen or sentence == proposed:
            seen.append(sentence)
            step(sentence)

    return say
