"""What Kafka's own tools show of a consumer group: a place in each log, so its lag there."""

from multicast.consuming.batches import Batch
from multicast.consuming.cursor import Cursor
from multicast.consuming.group_positions import GroupPositions
from multicast.control import log_partition
from multicast.drivers.protocol import Record
from multicast.testing import system
from tests.helpers.plans import chain
from tests.helpers.small import Small


def test_commits_of_earlier_messages_and_after_a_seek_tell_each_logs_place():
    with Small(chain()) as system, system.producer() as producer:
        system.run_all()
        for number in range(20):
            producer.multicast(b"%d" % number, to={f"P{1 + number % 2}"}).ordered(60)
        places = {name: log_partition(system.plan.log(name)) for name in ("P1", "P2")}

        def committed():
            found = system.driver.committed("amcast.A.C1", list(places.values()))
            return {name: found[at][0] for name, at in places.items()}

        with system.consumer("C1") as consumer:
            messages = [message for _, message in zip(range(20), consumer, strict=False)]
            seen = dict.fromkeys(places, 0)
            for message in messages:
                seen[message.message_id.log] = message.message_id.offset + 1
                consumer.commit(message.cursor)
                assert committed() == seen
            consumer.commit(messages[4].cursor)  # back without a seek: the figures stay
            assert committed() == seen
            consumer.seek(messages[4].cursor)
            message = next(iter(consumer))
            consumer.commit()
            assert committed() == {
                name: 1 + max(m.message_id.offset for m in messages[:6] if m.message_id.log == name)
                for name in places
            }
            assert message.message_id == messages[5].message_id


def test_a_consumer_that_never_commits_keeps_a_bounded_trail():
    log = chain().log("P1")
    positions = GroupPositions()
    for number in range(30_000):
        positions.handed_out(Batch(log, ("P1",), (Record(number, b""),), 1, "K1", number, 0))
    assert len(positions._trail) == 10_000
    assert positions.resume_from(Cursor(1, "K1", 100, 0, 101)) == {}
    assert positions.resume_from(Cursor(1, "K1", 29_998, 0, 29_999)) == {log_partition(log): 29_999}


def test_two_consumers_of_one_group_are_warned_once_and_a_lone_one_never(caplog):
    interests = {"consumers": {"C1": {"P1", "P2"}}, "destinations": [{"P1", "P2"}]}
    with caplog.at_level("WARNING", "amcast.consumer"), system(interests) as s:
        producer = s.producer()

        def commit(consumer):
            producer.multicast(b"", to={"P1"})
            s.settle()
            s.drain(consumer)
            consumer.commit()
            consumer.poll(2.0)  # time passes

        first = s.consumer("C1")
        for _ in range(5):
            commit(first)
        again = s.consumer("C1")  # a restart
        for _ in range(5):
            commit(again)
        assert not caplog.records
        for _ in range(5):
            commit(first)
            commit(again)
    assert [record.getMessage().partition(", at")[0] for record in caplog.records] == [
        "another consumer commits to group amcast.A.C1"
    ] * 2
