"""Messages by keys from an event loop go where the synchronous producer puts them."""

from contextlib import closing

import pytest

from multicast import Producer, keys
from multicast.control import log_partition
from multicast.errors import UsageError
from tests.helpers.plans import poster
from tests.multicast.aio.worlds import producer_of, running

KEYS = ("a", "b", b"c", "d", "e")


async def test_keys_name_the_same_sets_as_in_the_synchronous_producer():
    with running(collectors=False) as system:
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


async def test_many_messages_have_a_key_and_headers_each():
    sizes = 450  # more than one call of the driver
    given = [f"k{number}" if number % 3 else None for number in range(sizes)]
    tags = [[("n", b"%d" % number)] for number in range(sizes)]

    with running(poster(), collectors=False) as system:
        async with producer_of(system) as producer:
            payloads = [b"%d" % number for number in range(sizes)]
            for to in ({"P1"}, {"P1", "P3"}):
                receipts = await producer.multicast_all(payloads, to=to, keys=given, headers=tags)
                first = (await receipts.accepted())[0]
                partition = log_partition(receipts.log)
                with closing(system.driver.reader({partition: first.offset})) as reader:
                    records = [r for fetched in reader.poll(1.0) for r in fetched.records]
                assert [record.value for record in records] == payloads
                assert [record.key for record in records] == [
                    None if key is None else key.encode() for key in given
                ]
                assert [dict(record.headers)["n"] for record in records] == payloads
            for wrong in ({"keys": ["k"]}, {"headers": tags[1:]}, {"headers": [["n"]] * sizes}):
                with pytest.raises(UsageError):
                    await producer.multicast_all(payloads, to={"P1"}, **wrong)
