"""Plans that leave out whoever reads: refused, and seen by the doctor once they are applied."""

import pytest

from collectors.doctor.consumer_groups import group_prefix, request_of, why_ended
from collectors.reconfiguration.apply import refuse_unfit
from collectors.reconfiguration.committed import cursors_of
from multicast.control import ControlState
from multicast.errors import Conflict, UsageError
from multicast.testing import system
from multicast.testing.interests import plan_for
from tests.helpers.small import state_of

BASE = {"wide": {"P1", "P2", "P3"}, "two": {"P2", "P3"}}
# By group: what its consumer was opened with.
READERS = {
    "two": {"name": "two"},
    "mine": {"name": "two", "group": "mine"},
    "P1+P2": {"interest": {"P1", "P2"}},
    "own": {"interest": {"P1", "P2", "P3"}, "group": "own"},
    "odd": {"interest": {"P1", "P3"}, "group": "odd"},  # nobody can tell this interest
    "P3": {"interest": {"P3"}},
}
PARTITIONS = ["P1", "P2", "P3"]


@pytest.fixture
def topic():
    with system({"consumers": BASE, "partitions": PARTITIONS}) as double:
        double.producer().multicast(b"1", to={"P1"}).ordered()
        for options in READERS.values():
            consumer = double.consumer(**options)
            double.drain(consumer)
            consumer.commit()
        yield double


def names(topic):
    return [group_prefix(topic.topic) + group for group in READERS]


def groups_of(topic):
    state = state_of(topic)
    known = cursors_of(topic.driver, state, lambda: names(topic))
    requests = {name: request_of(state, name, cursor) for name, cursor in known}
    return {name: request for name, request in requests.items() if request is not None}


@pytest.mark.parametrize(
    ("consumers", "ends"),
    [
        (BASE, []),
        ({**BASE, "three": {"P1", "P2"}}, []),
        ({"wide": {"P1", "P2", "P3"}}, ["consumer two, which reads P2+P3"]),
        ({"all": {"P1", "P2", "P3"}, "two": {"P2", "P3"}}, ["consumer wide, which reads P1+P2+P3"]),
        ({"wide": {"P1", "P2"}, "two": {"P2", "P3"}}, ["group own, which reads P1+P2+P3"]),
        (
            {"wide": {"P1"}, "two": {"P2"}},
            [
                "group mine, which reads P2+P3",
                "group P1+P2, which reads P1+P2",
                "group own, which reads P1+P2+P3",
            ],
        ),
    ],
)
def test_a_plan_that_would_end_a_consumer_names_it(topic, consumers, ends):
    plan = plan_for({"consumers": consumers, "partitions": PARTITIONS}, running=topic.plan)
    state, groups = state_of(topic), groups_of(topic)
    assert groups.keys() == READERS.keys() - {"odd"}
    if ends:
        with pytest.raises(UsageError) as refused:
            refuse_unfit(state, plan, uncovered=False, groups=lambda: groups)
        said, _, _ = str(refused.value).removeprefix("the new plan would end ").partition(": ")
        assert said.split("; ") == ends
        assert "--uncovered" in str(refused.value)
    else:
        refuse_unfit(state, plan, uncovered=False, groups=lambda: groups)
    refuse_unfit(state, plan, uncovered=True, groups=lambda: groups)


def test_the_doctor_names_a_group_that_no_plan_serves(topic):
    def ended_now():
        state = state_of(topic)
        known = cursors_of(topic.driver, state, lambda: names(topic))
        ended = {name: why_ended(state, name, cursor) for name, cursor in known}
        return {name: says for name, says in ended.items() if says is not None}

    assert not ended_now()
    # Those that ended, after a plan that somebody applied with --uncovered.
    topic.replan({"consumers": {"wide": {"P1"}}, "partitions": PARTITIONS}, uncovered=True)
    said = ended_now()
    assert said.keys() == {"two", "mine", "P1+P2", "own"}
    assert "consumer two is missing from the plan of epoch 2" in said["two"]
    assert "no collector of epoch 2 decides the order of all of P1, P2" in said["P1+P2"]


def test_a_plan_of_another_epoch_is_refused_with_how_to_plan(topic):
    stale = plan_for({"consumers": BASE, "partitions": PARTITIONS})
    with pytest.raises(Conflict, match="epoch 1 runs; plan again with --from-cluster"):
        refuse_unfit(state_of(topic), stale, uncovered=False)
    following = plan_for({"consumers": BASE, "partitions": PARTITIONS}, running=topic.plan)
    with pytest.raises(Conflict, match="epoch none runs; plan again without --from-cluster"):
        refuse_unfit(ControlState(topic.topic), following, uncovered=False)
