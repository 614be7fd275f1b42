"""A node's operations over HTTP: health, metrics, log levels, version; over TLS, too."""

import http.client
import json
import logging
import socket
import ssl
import threading
from datetime import datetime

import pytest

from multicast import web
from multicast.errors import UsageError
from ordering_osn.api.log_levels import LogLevels, MalformedSpec
from ordering_osn.api.metrics import Metrics
from ordering_osn.api.operations import Operations
from ordering_osn.api.seek import seek_envelope
from ordering_osn.api.tls_files import TlsFiles
from tests.helpers.small import until
from tests.ordering_osn.helpers.chains import (
    MUTUAL_TLS,
    ORDERER_CA,
    SERVER_TLS,
    USER,
    USER_FOLDER,
    gathered,
    served,
)


@pytest.fixture
def metrics():
    return Metrics()


@pytest.fixture
def started(channels, metrics):
    """Return a function that starts an operations server."""
    running = []

    def start(**options):
        running.append(Operations(channels, metrics, **options))
        running[-1].start()
        return running[-1]

    yield start
    for one in running:
        one.stop()


@pytest.fixture
def log_levels():
    """Restore the loggers' levels after a test."""
    root = logging.getLogger("amcast")
    level = root.level
    yield
    LogLevels().set("info")
    root.setLevel(level)


def ask(server, method, path, body=None, *, context=None, headers=()):
    """Send a request; returns status, headers and body of the answer."""
    if context is None:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    else:
        connection = http.client.HTTPSConnection(
            "127.0.0.1", server.port, timeout=60, context=context
        )
    try:
        connection.request(method, path, body, dict(headers))
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def client_context(*, certificate):
    context = ssl.create_default_context(cafile=ORDERER_CA)
    if certificate:
        tls = USER_FOLDER / "tls"
        context.load_cert_chain(tls / "client.crt", tls / "client.key")
    return context


# Health.


def test_a_healthy_node_says_ok_and_the_time(started):
    status, headers, body = ask(started(), "GET", "/healthz")
    answer = json.loads(body)
    assert (status, headers["Content-Type"]) == (200, "application/json")
    assert answer.keys() == {"status", "time"}
    assert answer["status"] == "OK"
    assert datetime.fromisoformat(answer["time"]).tzinfo is not None


def test_a_node_that_is_not_well_says_what_is_wrong(started, channels):
    channels.failed = [("chain-a/0", "the loop ended"), ("kafka", "[replica ids: [1 2]]")]
    status, _, body = ask(started(), "GET", "/healthz")
    answer = json.loads(body)
    assert status == 503
    assert answer["status"] == "Service Unavailable"
    assert answer["failed_checks"] == [
        {"component": "chain-a/0", "reason": "the loop ended"},
        {"component": "kafka", "reason": "[replica ids: [1 2]]"},
    ]


def test_health_is_asked_anew_each_time_and_writes_nothing(started, channels):
    server = started()
    height = channels.get("chain-a").store.height
    statuses = []
    for failed in ([], [("chain-a/0", "away")], []):
        channels.failed = failed
        statuses.append(ask(server, "GET", "/healthz")[0])
    assert statuses == [200, 503, 200]
    assert channels.submitted == []
    assert channels.get("chain-a").store.height == height


def test_a_check_that_fails_itself_is_not_healthy(started, channels):
    def broken():
        raise ZeroDivisionError("nobody foresaw it")

    channels.health = broken
    logging.getLogger("amcast.osn.operations").setLevel(logging.CRITICAL)
    status, _, body = ask(started(), "GET", "/healthz")
    assert status == 503
    assert b"nobody foresaw it" in body


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "PATCH", "OPTIONS"])
def test_health_is_only_to_be_got(started, method):
    assert ask(started(), method, "/healthz")[0] == 405


def test_checks_that_take_too_long_are_a_time_out_and_do_not_pile_up(started, channels):
    checks, released = [], threading.Event()

    def stuck():
        checks.append(1)
        released.wait(120)
        return []

    channels.health = stuck
    server = started(check_s=0.1)
    try:
        assert [ask(server, "GET", "/healthz")[0] for _ in range(3)] == [408] * 3
        assert len(checks) == 1
    finally:
        released.set()


# Metrics.


async def test_metrics_are_under_fabrics_names(started, metrics, channels):
    async with served(channels, metrics=metrics) as client:
        await gathered(client.deliver(seek_envelope(USER, "chain-a", "oldest", "newest")))
        await gathered(client.deliver(seek_envelope(USER, "chain-a", 5, 5)))
    metrics.broadcast_processed_count.add("chain-a", "ENDORSER_TRANSACTION", "SUCCESS")
    labels = {"channel": "chain-a", "type": "ENDORSER_TRANSACTION", "status": "SUCCESS"}
    metrics.broadcast_validate_duration.labels(**labels).observe(0.001)
    metrics.broadcast_enqueue_duration.labels(**labels).observe(0.002)
    metrics.blockcutter_block_fill_duration.labels("chain-a").observe(0.5)
    metrics.ledger_blockchain_height.labels("chain-a").set(7)
    metrics.ledger_blockstorage_commit_time.labels("chain-a").observe(0.01)
    metrics.consensus_kafka_last_offset_persisted.labels("chain-a").set(41)
    status, headers, body = ask(started(), "GET", "/metrics")
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    lines = body.decode().splitlines()
    chain, reader = 'channel="chain-a"', 'channel="chain-a",data_type="block",filtered="false"'
    for line in (
        "# TYPE broadcast_processed_count counter",
        f'broadcast_processed_count{{{chain},status="SUCCESS",type="ENDORSER_TRANSACTION"}} 1.0',
        f"deliver_blocks_sent{{{reader}}} 1.0",
        f"deliver_requests_received{{{reader}}} 2.0",
        f'deliver_requests_completed{{{reader},success="true"}} 1.0',
        f'deliver_requests_completed{{{reader},success="false"}} 1.0',
        "deliver_streams_opened 2.0",
        "deliver_streams_closed 2.0",
        f"consensus_kafka_last_offset_persisted{{{chain}}} 41.0",
        f"ledger_blockchain_height{{{chain}}} 7.0",
        f"blockcutter_block_fill_duration_count{{{chain}}} 1.0",
        f"ledger_blockstorage_commit_time_count{{{chain}}} 1.0",
        'fabric_version{version="amcast-0.1.0"} 1.0',
    ):
        assert line in lines
    for name in ("broadcast_validate_duration", "broadcast_enqueue_duration"):
        assert any(line.startswith(f"{name}_sum{{") for line in lines)
    assert "_total" not in body.decode()


def test_log_entries_are_counted_by_level_while_the_server_runs(started, metrics):
    server = started()
    log = logging.getLogger("amcast.osn.deliver")
    before = metrics.logging_entries_written.value("error")
    log.error("one")
    log.error("two")
    assert metrics.logging_entries_written.value("error") == before + 2
    assert b'logging_entries_written{level="error"} 2.0' in ask(server, "GET", "/metrics")[2]


# Log levels.


@pytest.mark.usefixtures("log_levels")
def test_the_log_spec_is_put_in_force_and_given_back(started):
    server = started()
    spec = {"spec": "amcast.osn.deliver,amcast.osn.wire=debug:warn"}
    assert ask(server, "PUT", "/logspec", json.dumps(spec))[0] == 204
    found = ask(server, "GET", "/logspec")
    assert found[0] == 200
    assert json.loads(found[2]) == {"spec": "amcast.osn.deliver=debug:amcast.osn.wire=debug:warn"}
    levels = {name: logging.getLogger(name).getEffectiveLevel() for name in (
        "amcast.osn.deliver", "amcast.osn.broadcast", "amcast",
    )}  # fmt: skip
    assert levels == {
        "amcast.osn.deliver": logging.DEBUG,
        "amcast.osn.broadcast": logging.WARNING,
        "amcast": logging.WARNING,
    }
    assert ask(server, "PUT", "/logspec", '{"spec": "error"}')[0] == 204
    assert logging.getLogger("amcast.osn.deliver").getEffectiveLevel() == logging.ERROR


@pytest.mark.usefixtures("log_levels")
@pytest.mark.parametrize(
    "body",
    ["", "{", "[]", "{}", '{"spec": 5}', '{"spec": "loud"}', '{"spec": "=info"}',
     '{"spec": "a=b=info"}', '{"spec": "a b=info"}', '{"spec": "info:a="}'],
)  # fmt: skip
def test_a_log_spec_that_cannot_be_read_is_refused_and_changes_nothing(started, body):
    server = started()
    assert ask(server, "PUT", "/logspec", '{"spec": "error"}')[0] == 204
    status, _, answer = ask(server, "PUT", "/logspec", body)
    assert status == 400
    assert json.loads(answer)["error"]
    assert json.loads(ask(server, "GET", "/logspec")[2]) == {"spec": "error"}


def test_the_log_spec_knows_two_methods(started):
    for method in ("POST", "DELETE"):
        status, _, answer = ask(started(), method, "/logspec", "{}")
        assert status == 400
        assert method in json.loads(answer)["error"]


def test_a_spec_of_very_many_fields_is_refused():
    with pytest.raises(MalformedSpec, match="more than"):
        LogLevels().set("amcast=info:" * 1000)


def test_a_spec_makes_no_loggers():
    """Python never frees one."""
    before = len(logging.root.manager.loggerDict)
    names = [f"a{number}" for number in range(9000)]
    with pytest.raises(MalformedSpec, match="no logger 'a0'"):
        LogLevels().set(f"{','.join(names)}=info")
    assert len(logging.root.manager.loggerDict) == before


@pytest.mark.usefixtures("log_levels")
@pytest.mark.parametrize(
    ("options", "certificate", "statuses"),
    [
        ({}, None, (204, 200)),
        ({"host": "0.0.0.0"}, None, (403, 200)),
        ({"tls": SERVER_TLS}, False, (401, 401)),
        ({"tls": MUTUAL_TLS}, True, (403, 200)),  # any channel client has one
        ({"tls": MUTUAL_TLS, "operators": True}, True, (204, 200)),
        ({"tls": MUTUAL_TLS, "operators": True}, False, (401, 401)),
    ],
    ids=["loopback", "everywhere", "TLS", "a client's CA", "operators' CA", "no certificate"],
)
def test_only_an_operator_sets_log_levels(started, options, certificate, statuses):
    server = started(**options)
    context = None if certificate is None else client_context(certificate=certificate)
    put = ask(server, "PUT", "/logspec", '{"spec": "error"}', context=context)[0]
    assert (put, ask(server, "GET", "/logspec", context=context)[0]) == statuses


@pytest.mark.parametrize("path", ["/healthz", "/metrics", "/logspec", "/version"])
def test_at_the_loopback_a_page_from_elsewhere_gets_nothing(started, path):
    """Its own name may lead a browser here (DNS rebinding)."""
    server = started()
    hosts = {"evil.example": 421, "10.0.0.1": 421, "localhost:8443": 200, "[::1]:8443": 200}
    assert {host: ask(server, "GET", path, headers={"Host": host})[0] for host in hosts} == hosts
    everywhere = started(host="0.0.0.0")
    assert ask(everywhere, "GET", path, headers={"Host": "osn.example"})[0] == 200


def test_the_version_is_told(started):
    status, _, body = ask(started(), "GET", "/version")
    assert status == 200
    assert json.loads(body) == {"Version": "0.1.0"}


# TLS: what is alike without it, `tests/multicast/test_web.py` shows.


@pytest.mark.slow
def test_clients_that_say_nothing_do_not_lock_out_the_others(started, monkeypatch):
    monkeypatch.setattr(web, "CLIENT_S", 3600.0)
    server = started(tls=SERVER_TLS)
    context = client_context(certificate=False)
    idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(100)]
    try:
        assert ask(server, "GET", "/healthz", context=context)[0] == 200
    finally:
        for connection in idle:
            connection.close()


def test_a_request_that_comes_byte_by_byte_must_be_whole_in_time(started, monkeypatch):
    monkeypatch.setattr(web, "CLIENT_S", 0.5)
    server = started(tls=SERVER_TLS)
    context = client_context(certificate=False)
    plain = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    with context.wrap_socket(plain, server_hostname="127.0.0.1") as slow:
        slow.sendall(b"GET /healthz HTTP/1.0\r\nX-Long: ")
        slow.settimeout(0.1)  # between bytes: shorter than the time for a request

        def is_ended():
            try:
                slow.sendall(b"x")
                return not slow.recv(1)
            except TimeoutError:
                return False
            except OSError:
                return True

        until(is_ended)
    assert ask(server, "GET", "/healthz", context=context)[0] == 200


def test_a_handshake_that_does_not_come_is_given_up_in_time(started, monkeypatch):
    monkeypatch.setattr(web, "CLIENT_S", 0.2)
    with socket.create_connection(("127.0.0.1", started(tls=SERVER_TLS).port), timeout=60) as idle:
        assert idle.recv(1) == b""


@pytest.mark.parametrize("query", ["", "?x=1"])
@pytest.mark.parametrize(("certificate", "status"), [(False, 401), (True, 200)])
def test_over_tls_metrics_and_log_levels_want_a_certificate(started, query, certificate, status):
    server, context = started(tls=MUTUAL_TLS), client_context(certificate=certificate)
    expected = {"/metrics": status, "/logspec": status, "/healthz": 200, "/version": 200}
    for path, each in expected.items():
        assert ask(server, "GET", path + query, context=context)[0] == each


def test_tls_that_cannot_be_is_said_so(channels, metrics):
    with pytest.raises(UsageError, match="TLS"):
        Operations(channels, metrics, tls=TlsFiles(b"no", b"key"))
