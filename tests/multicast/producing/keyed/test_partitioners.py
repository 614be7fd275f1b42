"""The partitioners give what the clients give: published vectors, and clients on a broker."""

import random
import uuid

import confluent_kafka
import pytest
from kafka.partitioner import murmur2 as of_kafka_python

from multicast.drivers.kafka import Admin, TopicSpec
from multicast.errors import UsageError
from multicast.producing.keyed.partitioners import PARTITIONERS, keys, murmur2, partitioner_named
from tests.helpers.driver_worlds import PATIENCE_S

_LONG = b"PreAmbleWillBeRemoved,ThePrePartThatIs"
PUBLISHED = [
    # Of `UtilsTest.testMurmur2` in Apache Kafka, where they are signed.
    (b"21", -973932308),
    (b"foobar", -790332482),
    (b"a-little-bit-long-string", -985981536),
    (b"a-little-bit-longer-string", -1486304829),
    (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
    (b"abc", 479470107),
    # Of `unittest_murmur2` in librdkafka, which took them from Java's client.
    (b"kafka", 0xD067CF64),
    (b"giberish123456789", 0x8F552B0C),
    (b"1234", 0x9FC97B14),
    (b"234", 0xE7C009CA),
    (b"34", 0x873930DA),
    (b"4", 0x5A4B5CA1),
    (_LONG, 0x78424F1C),
    (_LONG[1:], 0x4A62B377),
    (_LONG[2:], 0xE0E4E09E),
    (_LONG[3:], 0x62B8B43F),
    (b"", 0x106E08D9),
]


def some_keys(count):
    """Keys of all lengths up to 40, with every byte, from one seed."""
    source = random.Random(7)
    return [b"", "zürich".encode(), *(source.randbytes(number % 41) for number in range(count))]


@pytest.mark.parametrize(("key", "expected"), PUBLISHED)
def test_murmur2_gives_what_the_clients_own_tests_expect(key, expected):
    assert murmur2(key) == expected % 2**32


def test_murmur2_gives_what_kafka_python_computes():
    for key in some_keys(2000):
        assert murmur2(key) == of_kafka_python(key) % 2**32


@pytest.mark.parametrize(
    ("name", "of_client"), [("murmur2", "murmur2_random"), ("crc32", "consistent_random")]
)
def test_a_key_goes_where_the_client_puts_it_on_a_broker(kafka_cluster, name, of_client):
    topic, count = f"keys-{uuid.uuid4().hex[:8]}", 7
    with Admin(kafka_cluster.bootstrap) as admin:
        admin.create_topics({topic: TopicSpec(count)})
    client = confluent_kafka.Producer(
        {"bootstrap.servers": kafka_cluster.bootstrap, "partitioner": of_client}
    )
    placed = {}

    def place(_, kept):  # librdkafka gives an empty key back as none
        placed[kept.key() or b""] = kept.partition()

    # librdkafka's default treats an empty key as none, and puts it anywhere.
    sent = {key for key in some_keys(300) if key or name == "murmur2"}
    for key in sorted(sent):
        client.produce(topic, b"", key, on_delivery=place)
    assert client.flush(PATIENCE_S) == 0
    assert placed == {key: PARTITIONERS[name](key, count) for key in sent}


def test_keys_are_bytes_or_text_in_utf8():
    assert keys("zürich", b"\xff").values == ("zürich".encode(), b"\xff")
    for wrong in (7, None, "\ud800", ["a"]):
        with pytest.raises(UsageError, match="is not a key; a key is bytes, or text"):
            keys("a", wrong)
    with pytest.raises(UsageError, match="names no key"):
        keys()


def test_an_unknown_partitioner_is_refused_and_a_function_is_taken():
    with pytest.raises(
        UsageError, match="partitioner 'fnv' is unknown; choose one of murmur2, crc"
    ):
        partitioner_named("fnv")
    assert partitioner_named(lambda key, count: len(key) % count)(b"abc", 2) == 1
