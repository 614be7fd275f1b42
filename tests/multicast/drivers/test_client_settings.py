"""Client settings: what reaches a client, what is refused and why, what a broker stores."""

import re
import sys
import uuid
from pathlib import Path
from types import SimpleNamespace

import pytest

from multicast import Producer
from multicast.drivers import open_driver
from multicast.drivers.client_settings import (
    CODECS,
    KNOWN,
    OF_GROUPS,
    OF_PRODUCERS,
    REFUSED,
    ProducerSettings,
    check_client,
    producer_settings,
)
from multicast.drivers.kafka import Admin, TopicSpec, reader
from multicast.drivers.kafka.connection import kafka_python_settings
from multicast.drivers.librdkafka_reader.client import librdkafka_settings
from multicast.drivers.memory.driver import MemoryDriver
from multicast.drivers.protocol import Appended, Record, TopicPartition
from multicast.errors import ClusterUnreachable, UsageError
from tests.helpers.driver_worlds import PATIENCE_S, read, values
from tests.helpers.plans import poster
from tests.helpers.small import Small

OPERATING = Path(__file__).parents[3] / "docs" / "operating.md"
TUNED = {"compression.type": "gzip", "linger.ms": "20", "batch.size": "200000"}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_setting_that_touches_a_guarantee_is_refused_with_its_reason(name):
    with pytest.raises(UsageError, match=f"^Client setting {re.escape(name)} is refused: .*") as no:
        check_client({name: "1", "client.id": "me"})
    assert str(no.value) == f"Client setting {name} is refused: {REFUSED[name]}."
    with pytest.raises(UsageError, match="is refused"):
        Producer("127.0.0.1:9", topic="A", client={name: "1"})


@pytest.mark.parametrize(
    ("client", "text"),
    [
        (
            {"compresion.type": "gzip"},
            "Unknown client setting compresion.type; known are client.id,",
        ),
        ({"compression.type": "zip"}, "Unknown compression.type 'zip'; known are none, gzip,"),
        ({"linger.ms": "-1"}, "linger.ms is '-1'; give a whole number from 0 to 900000."),
        ({"linger.ms": "0.5"}, "linger.ms is '0.5'"),
        ({"linger.ms": "900001"}, "linger.ms is '900001'"),
        ({"batch.size": "0"}, "batch.size is '0'; give a whole number from 1 to"),
        ({"batch.size": "9" * 5000}, "give a whole number from 1 to"),
        ({"batch.size": "٣"}, "give a whole number from 1 to"),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"},
            "Unknown sasl.mechanism 'GSSAPI'; known are",
        ),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"},
            "security.protocol SASL_SSL also needs sasl.username, sasl.password.",
        ),
        (
            {
                "security.protocol": "sasl_plaintext",
                "sasl.mechanism": "SCRAM-SHA512",
                "sasl.username": "user",
                "sasl.password": "secret",
            },
            "Unknown sasl.mechanism 'SCRAM-SHA512'; known are PLAIN, SCRAM-SHA-256, SCRAM-SHA-512.",
        ),
    ],
)
def test_an_unknown_setting_and_an_impossible_value_are_refused(client, text):
    with pytest.raises(UsageError) as refused:
        check_client(client)
    assert text in str(refused.value)


def test_a_password_of_another_type_is_refused_and_not_shown():
    with pytest.raises(UsageError, match=r"sasl\.password is not a str but of type bytes") as no:
        check_client({"sasl.password": b"open sesame"})
    assert "open" not in str(no.value)


def test_settings_of_producers_reach_producers_only():
    assert producer_settings(TUNED) == ProducerSettings(20, "gzip", 200_000)
    assert producer_settings({}) == ProducerSettings(None, "none", None)
    assert kafka_python_settings(TUNED) == kafka_python_settings({})
    plain = librdkafka_settings("127.0.0.1:9", {}, timeout_s=1.0)
    assert librdkafka_settings("127.0.0.1:9", TUNED, timeout_s=1.0) == plain

    with Small(poster()) as small:
        driver, asked = MemoryDriver(small.log), []
        appender = driver.appender
        driver.appender = lambda **settings: asked.append(settings) or appender(**settings)
        small.producer(driver=driver, client=TUNED).close()
        small.producer(driver=driver, client=TUNED, linger_ms=0).close()
        small.producer(driver=driver).close()
    tuned = {"linger_ms": 20, "compression": "gzip", "batch_bytes": 200_000}
    for settings in asked:
        assert callable(settings.pop("beside"))
        assert callable(settings.pop("settled"))
    assert asked == [
        tuned,
        tuned | {"linger_ms": 0},
        {"linger_ms": 0, "compression": "none", "batch_bytes": None},
    ]


def test_the_operators_page_lists_the_settings_that_the_code_knows():
    text = OPERATING.read_text(encoding="utf-8")
    rows = {
        name: reason
        for names, reason in re.findall(r"^\| (`[^|]+) \| refused: ([^|]+) \|$", text, re.MULTILINE)
        for name in re.findall(r"`([^`]+)`", names)
    }
    assert rows == REFUSED
    accepted = re.findall(r"^\| (`[^|]+) \| (?!refused)[^|]+ \|$", text, re.MULTILINE)
    listed = {name for names in accepted for name in re.findall(r"`([^`]+)`", names)}
    assert {*KNOWN, *OF_PRODUCERS, *OF_GROUPS} <= listed


# --- on a broker --------------------------------------------------------------------------------


@pytest.fixture
def partition(kafka_cluster):
    name = f"codec-{uuid.uuid4().hex[:8]}"
    with Admin(kafka_cluster.bootstrap) as admin:
        admin.create_topics({name: TopicSpec(1)})
    return TopicPartition(name, 0)


def stored_codecs(bootstrap, partition, end):
    """Give the codec of each batch up to an offset as the broker stores it, without decoding it."""
    codecs, decoded = [], []

    def spy(_, batch):
        codecs.append((CODECS[batch.compression_type], batch.size_in_bytes, batch.records_count))
        decoded.extend(range(batch.base_offset, batch.next_offset))
        return [Record(batch.next_offset - 1, b"")]

    with pytest.MonkeyPatch.context() as patched, open_driver("kafka-python", bootstrap) as driver:
        patched.setattr(reader, "decoded", spy)
        opened = driver.reader({partition: 0})
        read(opened, {partition: end})
        opened.close()
    assert decoded == list(range(end))
    return codecs


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_broker_stores_the_batches_as_the_producer_compressed_them(
    kafka_cluster, partition, codec
):
    sent = [b"%d" % number + b"x" * 500 for number in range(200)]
    with open_driver("kafka-python", kafka_cluster.bootstrap) as driver:
        appender = driver.appender(linger_ms=20, compression=codec, batch_bytes=50_000)
        outcomes = []
        for value in sent:
            appender.append(partition, value, done=outcomes.append)
        assert appender.flush(PATIENCE_S)
        appender.close()
        assert outcomes == [Appended(offset) for offset in range(200)]
    stored = stored_codecs(kafka_cluster.bootstrap, partition, 200)
    assert {used for used, _, _ in stored} == {codec}
    payload = sum(map(len, sent))
    taken = sum(size for _, size, _ in stored)
    assert taken < payload / 3 if codec != "none" else taken > payload
    # 100 KB of payload cannot be in one batch of 50 KB, which is measured before it is compressed.
    assert len(stored) > 1
    for kind in ("librdkafka", "kafka-python"):
        with open_driver(kind, kafka_cluster.bootstrap) as driver:
            opened = driver.reader({partition: 0})
            records, _ = read(opened, {partition: 200})
            opened.close()
        assert values(records[partition]) == sent


@pytest.mark.parametrize(
    ("module", "question", "name", "way_out"),
    [
        ("gevent.monkey", "is_module_patched", "librdkafka", "choose driver kafka-python, or use"),
        ("eventlet.patcher", "is_monkey_patched", "librdkafka", "use a process whose threads"),
        ("eventlet.patcher", "is_monkey_patched", "kafka-python", "use a process whose threads"),
    ],
)
def test_threads_that_are_none_are_refused_with_the_way_out(
    monkeypatch, module, question, name, way_out
):
    patcher = SimpleNamespace(**{question: lambda of: of in {"thread", "threading"}})
    monkeypatch.setitem(sys.modules, module, patcher)
    with pytest.raises(UsageError, match=f"{module.split('.')[0]} has replaced.*{way_out}"):
        open_driver(name, "127.0.0.1:9", request_timeout_s=0.1)
    monkeypatch.setattr(patcher, question, lambda _: False)
    with pytest.raises(ClusterUnreachable):
        open_driver(name, "127.0.0.1:9", request_timeout_s=0.1)
