"""A loss is stated of the topics of the plan only: what was created again has lost nothing."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from collectors.engine.chores import Chores
from multicast.drivers.memory.driver import MemoryDriver
from multicast.errors import ClusterUnreachable, TopicChanged
from tests.helpers.plans import chain
from tests.helpers.small import Small


def away(*_, **__):
    raise ClusterUnreachable("nobody answers")


@pytest.mark.parametrize("is_away", [False, True])
@pytest.mark.parametrize("is_recreated", [False, True])
def test_a_loss_is_stated_once_the_topics_are_known_to_be_the_plans(is_away, is_recreated):
    with Small(chain()) as system:
        topics = {log.topic for log in system.plan.logs}
        plan = replace(system.plan, topic_ids=system.driver.topic_ids(sorted(topics)))
        if is_recreated:
            system.log.recreate(min(topics))
        stated, failed = {}, []
        assignment = SimpleNamespace(plan=plan, topics=topics)
        instance = SimpleNamespace(assignment=assignment, fail=failed.append)
        driver = MemoryDriver(system.log)
        if is_away:
            driver.topic_ids = away
        chores = Chores(driver, None, lambda: None, stated.__setitem__, failed=failed.append)
        chores.state(instance, [(b"key", b"value")])
        chores._turn()
    assert stated == ({} if is_away or is_recreated else {b"key": b"value"})
    assert list(map(type, failed)) == ([TopicChanged] if is_recreated and not is_away else [])
