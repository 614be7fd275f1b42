"""Messages by keys from an event loop go where the synchronous producer puts them."""

import asyncio
from contextlib import closing

from multicast import Producer, keys
from multicast.control import log_partition
from tests.multicast.aio.worlds import producer_of, running

KEYS = ("a", "b", b"c", "d", "e")


def test_keys_name_the_same_sets_as_in_the_synchronous_producer():
    async def run(system):
        with Producer(topic="A", driver=system.driver) as synchronous:
            alone = [synchronous.multicast(b"x", key=key).to for key in KEYS]
            named = synchronous.multicast(b"x", to=keys("a")).to
        async with producer_of(system) as producer:
            receipts = [await producer.multicast(b"x", key=key) for key in KEYS]
            assert [receipt.to for receipt in receipts] == alone
            receipt = await producer.multicast(b"x", to=keys("a"))
            assert receipt.to == named
            await receipt.accepted()
            all_of_a = await producer.multicast_all([b"x", b"y"], to=keys("a"))
            assert all_of_a.to == named
            last = (await all_of_a.accepted())[-1]
        partition = log_partition(all_of_a.log)
        with closing(system.driver.reader({partition: last.offset})) as reader:
            assert reader.poll(1.0)[0].records[0].key == b"a"

    with running(collectors=False) as system:
        asyncio.run(run(system))
