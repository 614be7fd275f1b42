"""A cursor that a consumer cannot continue at, and a wrong argument, is refused in one sentence."""

from datetime import UTC, datetime, timedelta

import pytest

from multicast import Consumer
from multicast.consuming.cursor import Cursor
from multicast.control import control_partition, log_partition
from multicast.errors import Trimmed, UsageError
from tests.helpers.plans import chain
from tests.helpers.small import Small, values

BEFORE_TIME = datetime.min  # noqa: DTZ901 - a caller may give it
INTERESTS = {
    "consumers": {"C1": {"P1", "P2"}, "C2": {"P2", "P3"}, "C3": {"P3"}, "S": {"P5"}},
    "destinations": [{"P1", "P2"}, {"P2", "P3"}],
}


def write(double, count, *sets):
    producer = double.producer()
    for number in range(count):
        for to in sets:
            producer.multicast(b"%d" % number, to=to)
    double.settle()


def opened(double, name=None, **options):
    return Consumer(topic=double.topic, name=name, driver=double.driver, **options)


# -- beyond the end -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["C1", "S"])
def test_a_cursor_beyond_the_end_is_refused_and_one_at_the_end_is_not(double, name):
    write(double, 5, {"P1"}, {"P5"})
    consumer = double.consumer(name)
    consumer.seek("latest")
    end = consumer.position
    if consumer.by_collector:
        beyond_all = end.record + 9  # its collector may still state what it saw
        beyond = [
            Cursor(end.epoch, end.source, beyond_all, 0, 0),
            Cursor(end.epoch, end.source, beyond_all, 0, 3),
            Cursor(end.epoch, end.source, beyond_all, 1, 0),
        ]
    else:
        beyond = [Cursor(end.epoch, end.source, 0, 0, end.next + 1)]
    list(consumer.until_end())
    for cursor in beyond:
        with pytest.raises(Trimmed, match=f"cursor {cursor} is beyond the end of .*begin at"):
            consumer.seek(str(cursor))
        with pytest.raises(Trimmed, match="beyond the end"):
            opened(double, name, committed=False, start=cursor)
    assert consumer.position == end
    consumer.seek(end)
    write(double, 1, {"P1"}, {"P5"})
    assert values(consumer.until_end()) == [b"0"]


def test_a_leader_that_reports_too_low_an_end_for_a_moment_is_asked_again(double, monkeypatch):
    write(double, 5, {"P1"})
    consumer = double.consumer("C1")
    list(consumer.until_end())
    ask, low = consumer._driver.last_stable_offsets, [0, 0]

    def lagging(partitions):
        ordered = control_partition(double.topic) not in partitions
        return dict.fromkeys(partitions, low.pop()) if ordered and low else ask(partitions)

    with monkeypatch.context() as patch:
        patch.setattr(consumer._driver, "last_stable_offsets", lagging)
        consumer.seek(consumer.position)
    assert not low


# -- of another interest --------------------------------------------------------------------------


def test_a_group_refuses_the_cursor_of_another_interest_and_names_the_way_out(double):
    write(double, 5, {"P1"}, {"P2"}, {"P1", "P2"})
    narrow = {"interest": {"P2"}, "group": "g"}
    with opened(double, **narrow) as consumer:
        assert len(values(consumer.until_end())) == 10
        consumer.commit()
    with pytest.raises(
        UsageError, match=r"its group amcast\.\w+\.g holds.*another interest.*group="
    ):
        opened(double, interest={"P1", "P2"}, group="g")
    with opened(double, **narrow) as consumer:
        assert values(consumer.until_end()) == []
    with opened(double, interest={"P1", "P2"}, group="g", committed=False) as consumer:
        assert len(values(consumer.until_end())) == 15
        consumer.commit()
    with opened(double, interest={"P1", "P2"}, group="g") as consumer:
        assert values(consumer.until_end()) == []


def stored_by(consumer):
    """The text of the cursor that its group holds."""
    partition = control_partition(consumer._topic)
    (stored,) = consumer._driver.committed(consumer._group_cursor.group, [partition]).values()
    return stored[1]


def test_what_a_group_stores_is_its_cursor_and_names_the_interest(double):
    write(double, 1, {"P1"})
    with opened(double, "C1") as consumer:
        list(consumer.until_end())
        consumer.commit()
        assert stored_by(consumer) == str(consumer.position)
        consumer.commit(consumer.position.place)
        assert Cursor.parse(stored_by(consumer)).interest == consumer.position.interest != ""


def test_a_cursor_that_was_kept_elsewhere_is_refused_by_a_reader_of_another_interest(double):
    write(double, 5, {"P1"}, {"P2"}, {"P1", "P2"})
    with opened(double, interest={"P1"}) as consumer:
        list(consumer.until_end())
        kept = str(consumer.position)
    with pytest.raises(UsageError, match="made by a consumer of another interest than P1, P2"):
        opened(double, interest={"P1", "P2"}, start=Cursor.parse(kept), committed=False)
    wide = opened(double, interest={"P1", "P2"}, committed=False)
    with pytest.raises(UsageError, match="another interest"):
        wide.seek(kept)
    assert len(values(wide.until_end())) == 15


def test_a_change_of_the_plan_changes_an_interest_and_its_group_goes_on(double):
    write(double, 5, {"P1"}, {"P2"})
    with opened(double, "C1") as consumer:
        list(consumer.until_end())
        consumer.commit()
    changed = {**INTERESTS, "consumers": {**INTERESTS["consumers"], "C1": {"P1", "P2", "P3"}}}
    double.replan(changed)
    write(double, 1, {"P3"})
    with opened(double, "C1") as consumer:
        assert values(consumer.until_end()) == [b"0"]
        consumer.commit()
    with opened(double, "C1") as consumer:
        assert values(consumer.until_end()) == []


def test_a_commit_of_another_consumers_cursor_stores_nothing(double):
    write(double, 5, {"P1"}, {"P2"}, {"P5"})
    with opened(double, "S") as other, opened(double, "C1") as consumer:
        list(other.until_end())
        list(consumer.until_end())
        consumer.commit()
        with pytest.raises(UsageError, match="another interest"):
            consumer.commit(other.position)
        with pytest.raises(UsageError, match="another interest"):
            other.commit(consumer.position)
    with opened(double, "C1") as consumer:
        assert values(consumer.until_end()) == []


# -- wrong arguments ------------------------------------------------------------------------------


@pytest.mark.parametrize("where", [None, 5, b"latest", "soon", BEFORE_TIME])
def test_a_place_that_is_none_is_refused(double, where):
    with pytest.raises(UsageError):
        opened(double, "C1", start=where)
    consumer = double.consumer("C1")
    with pytest.raises(UsageError):
        consumer.seek(where)


def test_a_time_before_1970_is_the_beginning(double):
    write(double, 2, {"P5"})
    consumer = double.consumer("S")
    consumer.seek(datetime(1970, 1, 1, tzinfo=UTC) - timedelta(milliseconds=1))
    assert consumer.position.next == 0
    list(consumer.until_end())


@pytest.mark.parametrize(
    "options", [{"group": "\ud800"}, {"interest": {"\ud800"}}, {"interest": {1}}]
)
def test_a_name_that_is_no_text_is_refused(double, options):
    with pytest.raises(UsageError, match="no name of"):
        opened(double, **{"interest": {"P1"}, **options})


@pytest.mark.parametrize(
    "text",
    [
        None, b"1/K1/0/0/0", 5, "", "1/K1/0/0", "1/K1/0/0/0/", "1/K1/0/0/0/a76d04cd454b56b4",
        "1/K1/0/0/0/a76d04cd454b56b/00000000/00000000",
        "1/K1/0/0/0/a76d04cd454b56b4/0000000/00000000",
        "1/K1/0/0/0/A76d04cd454b56b4/00000000/00000000",
    ],
)  # fmt: skip
def test_what_is_no_text_of_a_cursor_is_refused(text):
    with pytest.raises(UsageError, match="is not a cursor"):
        Cursor.parse(text)


def test_a_commit_takes_the_text_of_a_cursor(double):
    write(double, 3, {"P1"})
    with opened(double, "C1") as consumer:
        list(consumer.poll(messages_max=2))
        consumer.commit(str(consumer.position))
        with pytest.raises(UsageError):
            consumer.commit("")
    with opened(double, "C1") as consumer:
        assert values(consumer.until_end()) == [b"2"]


def test_a_poll_for_no_messages_is_refused(double):
    consumer = double.consumer("C1")
    with pytest.raises(UsageError, match="messages_max is 0; give 1 or more"):
        consumer.poll(messages_max=0)
    with pytest.raises(UsageError, match="messages_max is -1"):
        next(consumer.batches(messages_max=-1))


def test_trimmed_says_what_to_do():
    with Small(chain()) as small:
        partition = log_partition(small.plan.log("P4"))
        for _ in range(5):
            small.log.write(partition, b"x")
        way = r'holds 3 to 5; what comes next is gone: .*seek\("earliest"\)'
        with small.consumer("C4") as consumer:
            small.log.trim(partition, 3)
            with pytest.raises(Trimmed, match=way) as caught:
                consumer.poll()
            assert caught.value.partition == partition
            consumer.seek("earliest")
            assert [batch.records[0].offset for batch in consumer.poll()] == [3]
            assert "log P4 is retained from offset 3 on" in consumer.omitted
            consumer.seek("latest")
            assert consumer.poll(0.01) == []
