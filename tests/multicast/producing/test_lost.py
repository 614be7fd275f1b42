"""Receipts of messages that their log has lost say so, wherever that is stated."""

import asyncio
import threading

import pytest

from multicast.aio import AsyncProducer
from multicast.control import loss_record, lost_stream_record, stream_partition
from multicast.errors import Truncated
from multicast.messages import MessageID
from multicast.order.records import Loss, SightRecord, encode
from tests.helpers.plans import chain, tag_in
from tests.helpers.small import until

LOST = "log P1 has lost its messages from offset 1 on"
PLAN = chain()


def lose(world, where):
    if where == "control topic":
        world.write(loss_record("P1", 0, 1))
    else:
        raw = encode(tag_in(PLAN, "K1"), SightRecord(lost=(Loss(0, 1),)))
        world.log.write(stream_partition(PLAN, "K1"), raw)


@pytest.mark.parametrize("where", ["control topic", "stream"])
def test_who_asks_for_the_order_of_a_lost_message_hears_of_the_loss(world, where):
    with world.producer() as producer:
        kept, gone = (producer.multicast(b"", to={"P1"}) for _ in range(2))
        assert gone.ordered().offset == 1
        lose(world, where)

        def heard():
            try:
                gone.ordered()
            except Truncated as error:
                return str(error)
            return None

        assert until(heard).startswith(LOST)
        assert kept.ordered().offset == 0


def test_who_waits_for_a_decision_on_a_lost_message_hears_of_the_loss(world):
    with world.producer() as producer:
        kept, gone = (producer.multicast(b"", to={"P1"}) for _ in range(2))
        gone.accepted()
        lose(world, "control topic")
        until(lambda: "P1" in producer._lost._stated)
        with pytest.raises(Truncated, match=LOST):
            gone.decided()
        assert kept.decided().takes_effect


def test_a_wait_that_is_under_way_ends_where_a_loss_is_stated(world):
    errors = []

    def waits(wait):
        try:
            wait("P1", 1, 60.0)
        except Truncated as error:
            errors.append(str(error))

    with world.producer() as producer:
        followers = producer.orders(), producer.decisions()
        waiting = [threading.Thread(target=waits, args=(each.wait,)) for each in followers]
        for thread in waiting:
            thread.start()
        lose(world, "control topic")
        for thread in waiting:
            thread.join(60)
    assert [error.startswith(LOST) for error in errors] == [True, True]


async def test_asyncio_ends_the_waits_of_a_lost_log_alone(world):
    async with AsyncProducer(topic="A", driver=world.driver) as producer:
        await (await producer.multicast(b"", to={"P1"})).ordered()
        gone, kept = MessageID("P1", 1), MessageID("P2", 0)
        waits = [
            asyncio.create_task(wait(message, 60.0))
            for message in (gone, kept)
            for wait in (producer.wait_ordered, producer.wait_decided)
        ]
        await asyncio.sleep(0)
        lose(world, "control topic")
        for wait in waits[:2]:
            with pytest.raises(Truncated, match=LOST):
                await wait
        await producer.multicast(b"", to={"P2"})
        await asyncio.gather(*waits[2:])


def test_only_logs_of_a_stream_that_is_lost_have_no_order_any_more(world):
    with world.producer() as producer:
        assert producer.multicast(b"", to={"P1"}).ordered().offset == 0
        world.write(lost_stream_record("K1", 1))

        def heard():
            try:
                producer.multicast(b"", to={"P1"}).ordered()
            except Truncated as error:
                return str(error)
            return None

        assert until(heard).startswith("the order stream of collector K1, A.Msg-TO/0, has lost its")
        assert producer.multicast(b"", to={"P3"}).ordered().offset == 0
