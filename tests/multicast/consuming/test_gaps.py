"""A group goes on behind what is deleted if it lacks nothing of that, and is told else."""

from contextlib import closing

import pytest

from multicast.control import ControlReader, log_partition, stream_partition
from multicast.errors import Trimmed
from multicast.testing import system

WHO = {"all": {"P1", "P2", "P3"}, "two": {"P1", "P2"}}
SETS = [["P1", "P2", "P3"]]
CHECKPOINT_S = 7 * 3600  # of time without messages; then a collector writes one


def send(double, *targets):
    producer = double.producer()
    for to in targets:
        producer.multicast(to.encode(), to=set(to.split("+"))).ordered(timeout=10)
    double.settle()


def delivered(double, consumer):
    return [message.payload.decode() for message in double.drain(consumer)]


def purge(double, *, logs, order):
    """Delete all messages, and of the order all that readers of the last checkpoints need not."""
    state = ControlReader(double.driver, "A").refresh()
    log = double.log
    if logs:
        for partition, end in log.last_stable_offsets(
            [log_partition(each) for each in double.plan.logs]
        ).items():
            log.trim(partition, end)
    if order:
        plans = [state.plan(epoch) for epoch in range(1, state.epoch + 1)]
        streams = {stream_partition(plan, n.name): None for plan in plans for n in plan.collectors}
        keep = log.last_stable_offsets(list(streams))
        for node in plans[-1].collectors:
            (*_, point) = state.checkpoints(state.epoch, node.name)
            keep[stream_partition(plans[-1], node.name)] = point.read_from
        for partition, begin in keep.items():
            log.trim(partition, begin)


@pytest.mark.parametrize("replans", [0, 1, 2])
@pytest.mark.parametrize("logs", [True, False])
@pytest.mark.parametrize("order", [True, False])
@pytest.mark.parametrize("who", ["all", "two", "P2"])
def test_a_group_that_had_all_goes_on_whatever_is_deleted(who, order, logs, replans):
    name = {"interest": {"P2"}} if who == "P2" else {"name": who}
    interest = WHO.get(who, {"P2"})
    with closing(system({"consumers": WHO, "destinations": SETS})) as double:
        send(double, "P1", "P2", "P3", "P1+P2+P3", "P1+P3")
        consumer = double.consumer(**name)
        before = delivered(double, consumer)
        consumer.commit()
        consumer.close()
        for number in range(replans):
            more = {f"n{n}": {"P1", "P2", "P3"} for n in range(number + 1)}
            double.replan({"consumers": {**WHO, **more}, "destinations": SETS})
        for _ in range(3):
            double.run(CHECKPOINT_S)
        purge(double, logs=logs, order=order)
        send(double, "P1+P3", "P2", "P3", "P1+P2", "P1")

        got = delivered(double, double.consumer(**name))

        sent = ("P1", "P1+P2", "P1+P3", "P2", "P3")
        assert sorted(got) == [to for to in sent if interest & set(to.split("+"))]
        assert before


@pytest.mark.parametrize("replans", [0, 1])
def test_a_group_that_lacks_a_message_is_told_that_its_order_is_deleted(replans):
    with closing(system({"consumers": WHO, "destinations": SETS})) as double:
        send(double, "P1", "P2", "P3", "P1")
        consumer = double.consumer("all")
        *_, third, _ = double.drain(consumer)
        consumer.commit(third.cursor)
        consumer.close()
        for _ in range(replans):
            double.replan({"consumers": {**WHO, "more": {"P1", "P2", "P3"}}, "destinations": SETS})
        for _ in range(3):
            double.run(CHECKPOINT_S)
        purge(double, logs=False, order=True)

        with pytest.raises(Trimmed):
            double.drain(double.consumer("all"))


@pytest.mark.parametrize("commits", [True, False])
def test_messages_for_others_at_the_end_of_a_log_may_be_deleted(commits):
    with closing(system({"consumers": WHO | {"third": {"P3"}}, "destinations": SETS})) as double:
        send(double, "P3")
        consumer = double.consumer("third", start="latest")
        assert delivered(double, consumer) == []
        send(double, "P1+P2", "P1+P2")
        assert delivered(double, consumer) == []
        if commits:
            consumer.commit()
        consumer.close()
        purge(double, logs=True, order=False)
        send(double, "P3")
        again = double.consumer("third", start="latest")
        send(double, "P2+P3")
        assert delivered(double, again) == (["P3", "P2+P3"] if commits else ["P2+P3"])
