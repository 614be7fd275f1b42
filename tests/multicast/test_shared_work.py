"""docs/groups.md: instances share a consumer's messages by key, and their number changes."""

import random
import zlib

import pytest

from multicast.consuming.batches import Message
from multicast.testing import system

INTERESTS = {
    "consumers": {"C1": {"P1", "P2", "P3"}, "C2": {"P2", "P3"}},
    "destinations": [{"P1", "P3"}, {"P1", "P2", "P3"}],
}
SETS = ({"P1"}, {"P2"}, {"P3"}, {"P1", "P3"}, {"P1", "P2", "P3"})
KEYS = [b"k%d" % number for number in range(9)]


def place(cursor):
    """What grows from message to message of one interest."""
    return cursor.epoch, cursor.record, cursor.run, cursor.next


class Instance:
    """Instance i of n: it reads all, and handles its part of the keys."""

    def __init__(self, topic, i, n, handled, **options):
        self.consumer = topic.consumer("C1", group=f"part-{i}-of-{n}", **options)
        self._i, self._n, self._handled = i, n, handled

    def read(self, count):
        """Handle at most so many messages, of those that come within a second."""
        self._handle(self.consumer.poll(1.0, messages_max=count))

    def _handle(self, batches):
        for batch in batches:
            for record in batch.records:
                message = Message(batch, record)
                if zlib.crc32(message.key) % self._n == self._i:
                    self._handled.append((message.key, message.payload))
        self.consumer.commit()

    def read_to(self, cursor):
        """Handle one message after the other up to the cursor."""
        while self.consumer.position != cursor:
            self.read(1)

    def read_all(self):
        """Handle all that there is."""
        self._handle(self.consumer.until_end())


@pytest.mark.parametrize("seed", range(10))
def test_each_message_is_handled_once_in_its_keys_order_though_the_number_of_instances_changes(
    seed,
):
    # Init: two instances read at their own pace, while messages come.
    chance = random.Random(seed)
    handled = []
    with system(INTERESTS, seed=seed) as topic:
        producer = topic.producer()

        def send(count):
            for _ in range(count):
                number = str(next(numbers)).encode()
                producer.multicast(number, to=chance.choice(SETS), key=chance.choice(KEYS))
                topic.run(0.003)

        numbers = iter(range(1000))
        two = [Instance(topic, i, 2, handled) for i in range(2)]
        for _ in range(20):
            send(3)
            chance.choice(two).read(chance.randrange(1, 6))

        # Test: they stop; the others go on to the farthest one's cursor; three begin there.
        end = max((each.consumer.position for each in two), key=place)
        for each in two:
            each.read_to(end)
        three = [Instance(topic, i, 3, handled, start=end) for i in range(3)]
        send(30)
        topic.settle()
        for each in three:
            each.read_all()

        # Check, against one reader of all.
        alone = topic.drain(topic.consumer("C1", group="alone", committed=False))
    assert len(alone) == 90
    assert sorted(payload for _, payload in handled) == sorted(m.payload for m in alone)
    for key in KEYS:
        assert [p for k, p in handled if k == key] == [m.payload for m in alone if m.key == key]
