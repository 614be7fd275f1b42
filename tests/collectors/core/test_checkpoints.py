"""Checkpoints over days and months, on the system in memory: when they are written, and kept."""

from contextlib import closing
from random import Random

import pytest

from collectors.reconfiguration.apply import forget_checkpoints
from multicast.control import collectors_partition, stream_partition
from multicast.control.checkpoints import SLOTS, slot_of
from multicast.testing import system
from tests.helpers.small import state_of

INTERESTS = {"consumers": {"C1": {"P1", "P2"}, "C2": {"P2", "P3"}}}
HOUR_S = 3600


def test_instances_that_never_live_for_six_hours_write_checkpoints_all_the_same():
    with system(INTERESTS) as double:
        for log in ("P1", "P2", "P3"):
            double.producer().multicast(b"", to={log})
        names = [node.name for node in double.plan.collectors]
        for _ in range(6):
            for name in names:
                double.crash(name)
                double.restart(name)
            double.run(5 * HOUR_S)
        assert all(state_of(double).checkpoints(1, name) for name in names)


def statements(double):
    """The number of records that collectors state after a compaction, and of all that were."""
    partition = collectors_partition(double.topic)
    double.log.compact(partition)
    end = double.log.last_stable_offsets([partition])[partition]
    return len(double.log.read(partition, 0, end).records), end


def test_the_checkpoints_of_months_are_hardly_more_than_those_of_weeks():
    with system(INTERESTS) as double:
        producer, names = double.producer(), [node.name for node in double.plan.collectors]
        sizes, written = [], []
        for days in (15, 15, 60):
            for _ in range(days * 4):
                producer.multicast(b"", to={"P1"})
                double.run(6.1 * HOUR_S)
            (size, begun), state = statements(double), state_of(double)
            assert sum(len(state.checkpoints(1, name)) for name in names) == size
            sizes.append(size)
            written.append(begun)
        assert written[2] - written[1] > 3 * written[0], "they are written at the same rate"
        assert sizes[2] - sizes[1] <= 2 * len(names) * 5, "five for each doubling of the time"


def test_checkpoints_of_streams_that_ended_go_with_the_records_that_they_begin_at():
    with closing(system(INTERESTS)) as double:  # nobody reads the removed records
        for _ in range(20):
            double.producer().multicast(b"", to={"P1"})
            double.run(6.1 * HOUR_S)
        ended = {
            node.name: stream_partition(double.plan, node.name) for node in double.plan.collectors
        }
        double.replan({"consumers": {"C1": {"P1", "P2"}, "C2": {"P1", "P3"}}})
        forget_checkpoints(double.driver, state_of(double), 10)
        kept = state_of(double)
        assert all(len(kept.checkpoints(1, name)) > 5 for name in ended)
        for partition in ended.values():
            double.log.trim(partition, double.log.last_stable_offsets([partition])[partition])
        forget_checkpoints(double.driver, kept, 10)
        statements(double)
        assert not state_of(double).checkpoint_keys


@pytest.mark.parametrize("purged", ["parent", "child", "parent child"])
def test_who_opens_streams_after_their_records_were_deleted_begins_where_collectors_are(purged):
    # The system's own check reads from the beginning, which is gone: `closing` leaves it out.
    with closing(system({"consumers": {"C1": {"P1", "P2"}, "C2": {"P2", "P3"}}})) as double:
        child = next(node for node in double.plan.collectors if node.parent is not None)
        places = {"parent": child.parent, "child": child.name}
        producer, names = double.producer(), list(places.values())
        for _ in range(3):
            producer.multicast(b"before", to={"P2"})
        double.run(5)
        for place in purged.split():
            partition = stream_partition(double.plan, places[place])
            double.log.trim(partition, double.log.last_stable_offsets([partition])[partition])
        double.run(5)
        written = statements(double)[1]
        double.run(5)
        assert statements(double)[1] == written, "no more are written than are needed"
        for name in names:
            double.crash(name)
            double.restart(name)
        readers = [double.consumer(name, start="latest") for name in ("C1", "C2")]
        for reader in readers:
            reader.poll(0)
        double.run(1)
        last = producer.multicast(b"after", to={"P2"})
        for reader in readers:
            assert [message.message_id for message in double.drain(reader)] == [last.accepted(5)]


@pytest.mark.parametrize("seed", range(4))
def test_a_kept_checkpoint_is_near_whatever_time_somebody_goes_back_to(seed):
    """The invariant of `multicast/control/checkpoints.py`, for steady and bursty streams."""
    random, now, kept = Random(seed), 1_700_000_000_000, {}
    longest, last, begun = 6 * HOUR_S * 1000, 0, now
    for _ in range(20_000):
        now += random.choice((50, 8_000, 300_000, longest)) if seed else 8_000
        kept[slot_of(now, last)] = last = now
        age = round((now - begun) ** random.random())
        if now - age < begun + longest:
            continue
        width = 2**16
        while (2 * SLOTS - 2) * width < age + longest:
            width *= 2
        near = [time for time in kept.values() if time <= now - age]
        assert max(near) >= now - age - width - longest
    assert len(kept) <= SLOTS * (2 + (now - begun).bit_length() - 16)
