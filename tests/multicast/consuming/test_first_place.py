"""Where a consumer begins that asks for "earliest", or for a time, and what it says of the rest.

Every row is a whole system in memory. It states what a consumer of that name, or interest, must
get: all that its epochs cover and its logs retain, behind the last message that is gone.
"""

from datetime import timedelta

import pytest

from multicast.consuming.subscription import SubscriptionRequest
from multicast.control import ControlReader, log_partition, stream_partition
from multicast.errors import Trimmed, UncoveredInterest, UsageError
from multicast.properties import check_all
from multicast.tables.order_walk import OrderWalk
from multicast.testing import system
from multicast.verification.from_cluster import replayed

ALL = {"all": {"P1", "P2", "P3"}, "two": {"P1", "P2"}}
NEW = {**ALL, "new": {"P1", "P3"}}
APART = {"two": {"P1", "P2"}, "three": {"P3", "P4"}}


def sent(double, *targets, start=0):
    """Multicast one message to each set, one after the other; their payloads."""
    producer = double.producer()
    payloads = [b"%d" % number for number in range(start, start + len(targets))]
    for payload, to in zip(payloads, targets, strict=True):
        producer.multicast(payload, to=set(to.split("+"))).ordered(timeout=10)
    double.settle()
    return payloads


def delivered(double, name=None, **options):
    consumer = double.consumer(name, committed=False, **options)
    return [message.payload for message in double.drain(consumer)], consumer


def trim(double, log, offset):
    partition = log_partition(double.plan.log(log))
    double.log.trim(partition, min(offset, double.log.last_stable_offsets([partition])[partition]))


def walked(double, request, start="earliest"):
    """The offsets that tables and exports read, in order."""
    with OrderWalk(double.driver, double.topic, request, start) as walk:
        return [(p.log.name, o) for p in walk.advance() for o in range(p.first, p.next)]


@pytest.mark.parametrize(
    ("before", "after", "gets", "says"),
    [
        pytest.param(ALL, {**ALL, "new": {"P1", "P3"}}, "013 4567", "", id="covered"),
        pytest.param(APART, {**APART, "new": {"P1", "P3"}}, "4567", "epoch 1", id="not covered"),
        pytest.param(ALL, {**ALL, "new": {"P1", "P9"}}, "03 46", "", id="a new partition"),
        pytest.param(ALL, {**ALL, "new": {"P8", "P9"}}, "", "", id="only new partitions"),
        pytest.param({"new": {"P1"}}, {"new": {"P1", "P3"}}, "03 4567", "", id="named before"),
    ],
)
def test_a_consumer_that_a_later_plan_names_gets_what_old_epochs_cover(
    before, after, gets, says, caplog
):
    with system({"consumers": before, "partitions": ["P1", "P2", "P3", "P4"]}) as double:
        sent(double, "P1", "P3", "P2", "P1")
        double.replan({"consumers": after})
        sent(double, "P1", "P3", "P1", "P3", start=4)

        got, consumer = delivered(double, "new")

        assert sorted(got) == [digit.encode() for digit in gets.replace(" ", "")]
        assert bool(consumer.omitted) == bool(says)
        assert says in consumer.omitted
        warned = [record.getMessage() for record in caplog.records]
        assert warned == ([consumer.omitted] if says else [])
        if "new" not in before:
            by_interest, anonymous = delivered(double, interest=after["new"])
            assert by_interest == got
            assert bool(anonymous.omitted) == bool(says)
            # Its cursors, from any epoch on, are those of the consumer by name.
            for message in double.drain(double.consumer("new", committed=False)):
                rest, _ = delivered(double, "new", start=message.cursor)
                same, _ = delivered(double, interest=after["new"], start=message.cursor)
                assert rest == same == got[got.index(message.payload) + 1 :]


def test_a_name_that_no_plan_has_from_an_epoch_on_is_refused_there_and_served_before():
    with system({"consumers": {**ALL, "old": {"P1", "P3"}}}) as double:
        sent(double, "P1", "P3")
        _, consumer = delivered(double, "old")
        with pytest.raises(UsageError, match=r"end consumer old, which reads P1\+P3: add to the"):
            double.replan({"consumers": ALL})
        double.replan({"consumers": ALL}, uncovered=True)
        with pytest.raises(UncoveredInterest, match="old is missing from the plan of epoch 2"):
            double.drain(consumer)
        with pytest.raises(UncoveredInterest):
            delivered(double, "old")
        double.replan({"consumers": {**ALL, "old": {"P2", "P3"}}})
        sent(double, "P2", start=2)
        got, _ = delivered(double, "old", start=consumer.position)
        assert got == [b"2"]  # in epoch 2 it had the interest with which it came back
        with pytest.raises(UsageError, match="P9 does not exist"):
            delivered(double, interest={"P1", "P9"}, start=consumer.position)


GONE = [{}, {"P2": 1}, {"P1": 1, "P2": 1}, {"P2": 2}, {"P1": 3, "P3": 1}, {"P2": 3}, {"P2": 4}]
SENT = ["P1", "P2", "P3", "P1+P3", "P2", "P3", "P1", "P2", "P1", "P3"]


def spot(message):
    return message.message_id.log, message.message_id.offset


@pytest.mark.parametrize("gone", GONE, ids=str)
@pytest.mark.parametrize("replans", [0, 1, 2])
@pytest.mark.parametrize("who", ["all", "two", "P2"])
def test_earliest_is_the_place_behind_everything_that_is_gone(gone, replans, who, caplog):
    name, interest = (None, {"P2"}) if who == "P2" else (who, None)
    sets = [["P1", "P3"]]
    with system({"consumers": ALL, "destinations": sets}) as double:
        sent(double, *SENT[:6])
        began = double.now
        for more in range(replans):  # each retains nothing, as it has another consumer in the tree
            double.run(1)
            extra = {f"n{number}": {"P1", "P2", "P3"} for number in range(more + 1)}
            double.replan({"consumers": {**ALL, **extra}, "destinations": sets})
        double.run(1)
        sent(double, *SENT[6:], start=6)
        first = double.consumer(name, interest=interest, committed=False)
        whole = [(spot(message), message) for message in double.drain(first)]
        for log, offset in gone.items():
            trim(double, log, offset)
        lost = [log in gone and offset < gone[log] for (log, offset), _ in whole]
        after = len(lost) - lost[::-1].index(True) if any(lost) else 0
        expected = [message.payload for _, message in whole[after:]]
        caplog.clear()

        got, consumer = delivered(double, name, interest=interest)

        assert got == expected
        assert bool(consumer.omitted) == any(lost)
        assert [each.getMessage() for each in caplog.records] == [consumer.omitted] * any(lost)
        if any(lost):
            assert (
                f"log {next(log for log in gone if who != 'P2' or log == 'P2')}" in consumer.omitted
            )
        # Tables, exports and Spark begin at the same place; a time before it means it, too.
        request = SubscriptionRequest.of(name, interest)
        places = [spot(message) for _, message in whole[after:]]
        assert [each for each in walked(double, request) if each in places] == places
        early = began - timedelta(days=1)
        assert delivered(double, name, interest=interest, start=early)[0] == expected
        # A committed position, or a cursor, is never moved.
        if any(lost) and after > 1:
            with pytest.raises(Trimmed):
                delivered(double, name, interest=interest, start=whole[0][1].cursor)
        # Verification takes what begins late for late.
        report = check_all(replayed(double.driver, "A", [request], timeout_s=1))
        assert not report.violations


@pytest.mark.parametrize("gone", [{}, {"P1": 1}, {"P2": 3}], ids=str)
@pytest.mark.parametrize("points", [0, 2, 3])
def test_where_a_part_of_the_order_is_gone_a_reader_begins_behind_a_checkpoint(
    gone, points, caplog
):
    def reads():
        with system({"consumers": ALL}) as double:
            double.replan({"consumers": {**ALL, "more": {"P1", "P2", "P3"}}})
            sent(double, "P1", "P2", "P3", "P1", "P2", "P3")
            for number in range(points):
                double.run(7 * 3600)
                sent(double, "P1", "P2", "P3", start=6 + 3 * number)
            sent(double, "P3", "P2", "P1", start=90)
            whole, _ = delivered(double, "all")
            collector = double.plan.subscription("all").collector
            known = ControlReader(double.driver, "A").refresh().checkpoints(2, collector)
            stream = stream_partition(double.plan, collector)
            assert len(known) == points
            ends = double.log.last_stable_offsets([stream])
            double.log.trim(stream, known[-1].read_from if known else ends[stream])
            for log, offset in gone.items():
                trim(double, log, offset)
            return (whole, *delivered(double, "all"))

    if not points:
        with pytest.raises(Trimmed):
            reads()
        assert not caplog.records
        return
    whole, got, consumer = reads()
    assert got == whole[-3:]  # what came after the last checkpoint
    assert "the order of collector K2 is retained in part" in consumer.omitted
