"""Client settings reach both clients: a broker that requires certificates, and one that refuses."""

import contextlib
import socket
import ssl
import threading
import uuid
from functools import partial

import pytest

from multicast.drivers import open_driver
from multicast.drivers.kafka import Admin, TopicSpec
from multicast.drivers.kafka.connection import kafka_python_settings
from multicast.drivers.librdkafka_reader.client import librdkafka_settings
from multicast.drivers.protocol import Appended, TopicPartition
from multicast.errors import ClusterUnreachable, TlsFailed, UsageError
from multicast.local.cluster import LocalCluster
from tests.helpers.certificates import certificate
from tests.helpers.driver_worlds import (
    PATIENCE_S,
    REAL,
    append_all,
    cluster_with_listener,
    read,
    values,
    watch,
)

PASSWORD = "open sesame"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Write two authorities, and certificates of the broker and a client."""
    folder = tmp_path_factory.mktemp("tls")
    write_files(folder)
    (folder / "stranger.pem").write_bytes(certificate("stranger")[2])
    return folder


def write_files(folder):
    authority, _, authority_pem = certificate("authority")
    _, key, made = certificate("broker", authority)
    (folder / "broker.pem").write_bytes(key + made + authority_pem)
    (folder / "authority.pem").write_bytes(authority_pem)
    _, key, made = certificate("client", authority, password=PASSWORD)
    (folder / "client.key").write_bytes(key)
    (folder / "client.pem").write_bytes(made)


@pytest.fixture(scope="module")
def tls_bootstrap(files):
    """Start a broker with another listener, which requires certificates on both sides."""
    settings = {
        "listener.name.tls.ssl.client.auth": "required",
        "listener.name.tls.ssl.keystore.type": "PEM",
        "listener.name.tls.ssl.keystore.location": str(files / "broker.pem"),
        "listener.name.tls.ssl.truststore.type": "PEM",
        "listener.name.tls.ssl.truststore.location": str(files / "authority.pem"),
    }
    with cluster_with_listener("TLS", "SSL", settings, folder=files / "cluster") as address:
        yield address


def client_settings(files):
    return {
        "security.protocol": "SSL",
        "ssl.ca.location": str(files / "authority.pem"),
        "ssl.certificate.location": str(files / "client.pem"),
        "ssl.key.location": str(files / "client.key"),
        "ssl.key.password": PASSWORD,
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_everything_works_with_certificates_on_both_sides(tls_bootstrap, files, name):
    client = client_settings(files)
    partition = TopicPartition(f"t-{uuid.uuid4().hex[:8]}", 0)
    with Admin(tls_bootstrap, client) as admin:
        admin.create_topics({partition.topic: TopicSpec(1)})
    driver = open_driver(name, tls_bootstrap, client)
    appender, reader = driver.appender(), driver.reader({partition: 0})
    watcher = driver.watcher({partition: 0})
    large = b"x" * 900_000
    assert append_all(appender, partition, [b"0", large]) == [Appended(0), Appended(1)]
    assert values(read(reader, {partition: 2})[0][partition]) == [b"0", large]
    assert watch(watcher, {partition: 2}) == {partition: 2}
    driver.commit("g", {partition: (1, "tls")})
    assert driver.committed("g", [partition]) == {partition: (1, "tls")}
    for opened in (watcher, reader, appender, driver):
        opened.close()


WRONG = [
    ({"ssl.ca.location": "stranger.pem"}, TlsFailed, "not trusted .*ssl.ca.location"),
    (
        {"ssl.certificate.location": None, "ssl.key.location": None, "ssl.key.password": None},
        TlsFailed,
        "refuse our certificate, or the lack of one .*ssl.certificate.location",
    ),
    pytest.param(
        (
            {"security.protocol": "PLAINTEXT"},
            ClusterUnreachable,
            "security.protocol PLAINTEXT matches",
        ),
        marks=pytest.mark.campaign,  # both clients try until the time is up
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_with_certificates_is_said(tls_bootstrap, files, name, case):
    wrong, error, says = case
    client = client_settings(files)
    for key, value in wrong.items():
        del client[key]
        if value is not None:
            client[key] = value if key == "security.protocol" else str(files / value)
    with pytest.raises(error, match=rf"{tls_bootstrap}.*{says}") as raised:
        # A starved broker may need seconds to close a connection that it does not understand.
        open_driver(name, tls_bootstrap, client, request_timeout_s=15.0)
    assert raised.value.exit_code == (4 if error is ClusterUnreachable else 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_a_certificate_of_another_host_is_told_from_one_that_is_not_trusted(
    tls_bootstrap, files, name
):
    other = tls_bootstrap.replace(
        "127.0.0.1", "localhost"
    )  # the certificate names only the address
    with pytest.raises(TlsFailed, match="names another host"):
        open_driver(name, other, client_settings(files), request_timeout_s=15.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_new_files_are_used_by_open_clients_from_their_next_connections_on(
    tls_bootstrap, files, name
):
    partition = TopicPartition(f"t-{uuid.uuid4().hex[:8]}", 0)
    with Admin(tls_bootstrap, client_settings(files)) as admin:
        admin.create_topics({partition.topic: TopicSpec(1)})
    driver = open_driver(name, tls_bootstrap, client_settings(files))
    appender, reader = driver.appender(), driver.reader({partition: 0})
    assert append_all(appender, partition, [b"0"]) == [Appended(0)]
    assert values(read(reader, {partition: 1})[0][partition]) == [b"0"]
    write_files(files)  # another authority: nothing of before is accepted any more
    LocalCluster(files / "cluster").restart(1)
    assert append_all(appender, partition, [b"1"]) == [Appended(1)]
    assert values(read(reader, {partition: 2})[0][partition]) == [b"1"]
    assert driver.high_watermarks([partition]) == {partition: 2}
    for opened in (reader, appender, driver):
        opened.close()


@contextlib.contextmanager
def tls_server(context):
    """Shake hands with each client, or only listen to it, and hang up; give the address."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve():
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:  # closed
                    return
                with contextlib.suppress(OSError), connection:
                    if context is None:
                        connection.recv(65_536)  # all of a first message
                    else:
                        context.wrap_socket(connection, server_side=True).close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(PATIENCE_S)


@pytest.mark.parametrize("from_day", [-3, 1])
def test_a_certificate_that_has_expired_is_told_from_one_that_is_not_trusted(tmp_path, from_day):
    authority, _, trusted = certificate("authority")
    _, key, made = certificate("broker", authority, from_day=from_day)
    (tmp_path / "broker.pem").write_bytes(key + made)
    (tmp_path / "authority.pem").write_bytes(trusted)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "broker.pem")
    client = {"security.protocol": "SSL", "ssl.ca.location": str(tmp_path / "authority.pem")}
    with (
        tls_server(context) as address,
        pytest.raises(TlsFailed, match=rf"{address}, .* is not valid today \(.*; renew it"),
    ):
        open_driver("kafka-python", address, client, request_timeout_s=PATIENCE_S)


def test_a_port_without_tls_is_named_as_the_cause():
    """A broker closes a connection whose first bytes are no request, as this server does."""
    client = {"security.protocol": "SSL"}
    with (
        tls_server(None) as address,
        pytest.raises(ClusterUnreachable, match=r"check that security\.protocol SSL matches"),
    ):
        open_driver("kafka-python", address, client, request_timeout_s=10.0)


UNUSABLE = {
    "an encrypted key without its password": (
        {"ssl.key.password": None},
        r"ssl\.certificate\.location: the key in .*client\.key is encrypted; set ssl.key.password",
    ),
    "a wrong password": ({"ssl.key.password": "no"}, "ssl.key.password does not open the key in"),
    "the key of another": (
        {"ssl.key.location": "broker.pem"},
        r"broker\.pem holds the key of another certificate than .*client\.pem",
    ),
    "no key": ({"ssl.key.location": None}, r"client\.pem holds no .* key in PEM; set ssl.key.lo"),
    "no certificate": (
        {"ssl.certificate.location": None},
        r"ssl.key.location is set without ssl.certificate.location; give both, or none",
    ),
    "a key for a certificate": (
        {"ssl.certificate.location": "client.key"},
        r"client\.key and .*client\.key must hold a certificate and its key in PEM",
    ),
    "a key for an authority": (
        {"ssl.ca.location": "client.key"},
        r"client\.key of ssl.ca.location holds no certificates in PEM",
    ),
    "a folder": ({"ssl.ca.location": "."}, r"of ssl.ca.location cannot be read"),
    "no file": ({"ssl.ca.location": "gone"}, r"gone of ssl\.ca\.location cannot be read"),
}


@pytest.mark.parametrize("case", UNUSABLE)
@pytest.mark.parametrize("kind", ["kafka-python", "librdkafka", "admin"])
def test_files_that_cannot_be_used_are_refused_before_anybody_connects(files, kind, case):
    changed, says = UNUSABLE[case]
    client = client_settings(files)
    for key, value in changed.items():
        del client[key]
        if value is not None:
            client[key] = value if "password" in key else str(files / value)
    opening = Admin if kind == "admin" else partial(open_driver, kind)
    with pytest.raises(UsageError, match=says):
        opening("127.0.0.1:9", client, request_timeout_s=0.2)


def test_settings_are_translated_for_kafka_python_and_passed_on_to_librdkafka():
    client = {
        "security.protocol": "sasl_ssl",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "user",
        "sasl.password": "secret",
        "ssl.ca.location": "ca.pem",
        "ssl.endpoint.identification.algorithm": "none",
        "client.id": "me",
    }
    translated = kafka_python_settings(client)
    assert translated.pop("proxy_url")
    assert translated == {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "user",
        "sasl_plain_password": "secret",
        "ssl_cafile": "ca.pem",
        "ssl_check_hostname": False,
        "client_id": "me",
    }
    passed = librdkafka_settings("127.0.0.1:9", client, timeout_s=1.0)
    assert {name: passed[name] for name in client} == client
    assert kafka_python_settings({"ssl.endpoint.identification.algorithm": "https"})[
        "ssl_check_hostname"
    ]
