"""Tables and streams of a broker that asks for TLS and a password; Spark's workers sign in, too."""

from contextlib import closing

import pytest
from pyspark.errors import PySparkException

from multicast.local.broker import free_ports
from multicast.local.pytest_plugin import ExistingCluster, OpenTopics
from tests.helpers.certificates import certificate
from tests.helpers.driver_worlds import cluster_with_listener
from tests.helpers.system import PATIENCE_S
from tests.spark.query import small_spark
from tests.spark.rows import INTERESTS, ON_SPARK, in_order, rows_of, send, table
from tests.spark.streamed import StreamedQuery

pytestmark = ON_SPARK
PASSWORD = "open sesame"
LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"


@pytest.fixture(scope="module")
def secured(tmp_path_factory):
    """A topic behind a broker with two listeners: the test's own, and one with TLS and passwords.

    Gives the topic, and the options of who signs in at the second one.
    """
    folder = tmp_path_factory.mktemp("secured")
    authority, _, authority_pem = certificate("authority")
    _, key, made = certificate("broker", authority)
    (folder / "broker.pem").write_bytes(key + made + authority_pem)
    (folder / "authority.pem").write_bytes(authority_pem)
    prefix = "listener.name.secure"
    settings = {
        f"{prefix}.ssl.keystore.type": "PEM",
        f"{prefix}.ssl.keystore.location": str(folder / "broker.pem"),
        f"{prefix}.plain.sasl.jaas.config": f'{LOGIN} user_reader="{PASSWORD}";',
        "sasl.enabled.mechanisms": "PLAIN",
    }
    (plain,) = free_ports(1)
    with (
        cluster_with_listener("SECURE", "SASL_SSL", settings, plain=plain) as address,
        closing(OpenTopics(ExistingCluster(f"127.0.0.1:{plain}"))) as topics,
    ):
        topic = topics(INTERESTS)
        send(topic, 200)
        yield (
            topic,
            {
                "consumer": "C1",
                "kafka.bootstrap.servers": address,
                "kafka.security.protocol": "SASL_SSL",
                "kafka.ssl.ca.location": str(folder / "authority.pem"),
                "kafka.sasl.mechanism": "PLAIN",
                "kafka.sasl.username": "reader",
                "kafka.sasl.password": PASSWORD,
            },
        )


def test_a_table_and_a_stream_come_through_tls_and_a_password(secured, tmp_path):
    topic, options = secured
    whole = rows_of(topic.drain(topic.consumer("C1", committed=False)))
    assert len(whole) > 50
    with small_spark() as session:
        frame = table(session, topic, **options, maxRecordsPerPartition="50").load()
        assert in_order(frame) == whole

        # Test: a wrong password is told apart, and no password is told.
        wrong = {**options, "kafka.sasl.password": "wrong"}
        with pytest.raises(PySparkException) as raised:
            table(session, topic, **wrong).load().collect()
        assert "AuthenticationFailed" in str(raised.value)
        assert PASSWORD not in str(raised.value)

    query = StreamedQuery(topic.bootstrap, topic.topic, tmp_path, "sqlite", **options)
    assert query.finish(PATIENCE_S) == 0, query.log()
    assert query.messages() == [message for _, message, *_ in whole]
    assert PASSWORD not in query.log()
