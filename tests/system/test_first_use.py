"""What somebody does who uses the library for the first time, and what it answers."""

import logging

import pytest

from multicast import Consumer, Producer
from multicast.errors import UsageError
from tests.helpers.plans import chain, poster
from tests.helpers.small import Small
from tests.helpers.system import PATIENCE_S, System


def test_headers_may_be_a_mapping_and_what_is_no_header_is_refused_before_it_is_sent():
    with Small(chain()) as system, system.producer() as producer:
        for headers in ({"a": b"1", "b": b"2"}, [("a", b"1"), ("b", b"2")]):
            producer.multicast(b"x", to={"P4"}, headers=headers).accepted(60)
        for wrong in ({"a": "text"}, [(b"a", b"1")], ["ab"], {1: b""}, {"amcast.to": b"x"}):
            with pytest.raises(UsageError, match="header"):
                producer.multicast(b"x", to={"P4"}, headers=wrong)
        with system.consumer("C4") as consumer:
            (batch,) = consumer.until_end()
            assert [list(record.headers) for record in batch.records] == [
                [("a", b"1"), ("b", b"2")],
                [("a", b"1"), ("b", b"2")],
            ]


@pytest.mark.parametrize("driver", ["librdkafka", "kafka-python"])
def test_an_application_that_logs_at_info_hears_nothing_of_our_connections(
    driver, kafka_cluster, tmp_path, caplog
):
    with (
        System(kafka_cluster.bootstrap, poster(), tmp_path, driver=driver) as system,
        caplog.at_level(logging.INFO),
    ):
        known = {"topic": system.topic, "driver": driver}
        with Producer(system.bootstrap, **known) as producer:
            producer.multicast(b"x", to={"P5"}).accepted(PATIENCE_S)
        with Consumer(system.bootstrap, **known, interest={"P5"}) as consumer:
            assert [len(batch.records) for batch in consumer.until_end()] == [1]
            consumer.commit()
        heard = [record for record in caplog.records if record.name.startswith("kafka.")]
        assert [record.getMessage() for record in heard] == []
        logging.getLogger("amcast.kafka_python").setLevel(logging.DEBUG)
        try:
            Producer(system.bootstrap, **known).close()
        finally:
            logging.getLogger("amcast.kafka_python").setLevel(logging.NOTSET)
        assert any(record.name.startswith("kafka.") for record in caplog.records)
