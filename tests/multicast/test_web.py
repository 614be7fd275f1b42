"""The collectors' web pages: their address, and clients that try to block them."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from http import HTTPStatus
from pathlib import Path

import pytest

from multicast import web
from multicast.errors import UsageError
from multicast.web import (
    CONNECTIONS_MAX,
    WebServer,
    WebThread,
    address_of,
    address_towards,
    json_document,
    listen_at,
)
from tests.helpers.system import PATIENCE_S, amcast, until

HERE = "127.0.0.1"
LARGE_BYTES = 32 << 20  # more than the kernel takes for a client that does not read


def loopbacks():
    """Give the loopback addresses of this machine; not each has IPv6."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return [HERE]
    return [HERE, pytest.param("::1", marks=pytest.mark.campaign)]


def broken():
    raise TypeError("no such thing")


async def echoed(request):
    return json_document(HTTPStatus.OK, {"method": request.method, "bytes": len(request.body)})


class Served:
    """A server on its own thread, with pages, one that fails, and a call."""

    def __init__(self, host=None):
        self.listening = listen_at(HERE, 0)
        self.port = self.listening.getsockname()[1]
        self._server = WebServer(
            {
                "/healthz": lambda: (HTTPStatus.OK, {"healthy": True}),
                "/broken": broken,
                "/page": lambda: (HTTPStatus.OK, "x"),
                "/large": lambda: (HTTPStatus.OK, "x" * LARGE_BYTES),
            },
            calls={"/call": echoed},
            host=host,
        )
        self._thread = WebThread(self._server, self.listening)
        self._thread.__enter__()

    def open(self, sent=b""):
        opened = socket.create_connection((HERE, self.port), PATIENCE_S)
        opened.sendall(sent)
        return opened

    def ask(self, request):
        with self.open(request) as opened:
            return received(opened)

    def close(self):
        self._thread.__exit__()


def received(opened):
    answer = b""
    with contextlib.suppress(ConnectionResetError):
        while chunk := opened.recv(65536):
            answer += chunk
    return answer


@pytest.fixture
def served():
    made = Served()
    yield made
    made.close()


OWN = os.uname().nodename


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:6066", 200),
        ("[fe80::1]:6066", 200),
        ("localhost", 200),
        ("node7:6066", 200),
        (OWN.upper(), 200),
        ("collectors.example.org", 200),  # where it listens
        ("rebound.example.net:6066", 421),
        ("127.0.0.1.example.net", 421),
        (f"{OWN}.example.net", 421),
        ("", 421),
    ],
)
def test_a_name_that_a_stranger_may_own_gets_the_health_and_nothing_else(host, status):
    served = Served("collectors.example.org")
    for path, expected in (("/page", status), ("/call", status), ("/healthz", 200)):
        said = served.ask(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        assert said.startswith(f"HTTP/1.1 {expected} ".encode())
    served.close()


GET = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


def test_a_page_is_answered_and_the_connection_closed(served):
    head, body = served.ask(GET).split(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert json.loads(body) == {"healthy": True}
    head, body = served.ask(GET.replace(b"GET", b"HEAD")).split(b"\r\n\r\n")
    assert (b"Content-Length: 17" in head, body) == (True, b"")


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /other HTTP/1.1\r\n\r\n", b"404"),
        (b"POST /healthz HTTP/1.1\r\n\r\n", b"405"),
        (b"hello\r\n\r\n", b"400"),
        (b"\x00\xff \r\n\r\n", b"400"),
        (b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n", b"400"),
    ],
)
def test_anything_else_is_refused(served, request_bytes, status):
    try:
        answer = served.ask(request_bytes)
    except ConnectionResetError:  # it was refused before all of it was sent
        answer = b""
    assert answer.split(b" ")[1:2] in ([status], [])
    assert b"200 OK" in served.ask(GET)


def test_a_page_that_fails_says_so(served):
    head, body = served.ask(GET.replace(b"healthz", b"broken")).split(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 500 ")
    assert json.loads(body) == {"error": "/broken failed: TypeError: no such thing"}


def test_half_a_request_is_given_up_in_time(served, monkeypatch):
    monkeypatch.setattr(web, "CLIENT_S", 0.05)
    with served.open(b"GET /heal") as half:
        assert received(half) == b""


def test_any_number_of_half_requests_keeps_nobody_out(served, monkeypatch):
    monkeypatch.setattr(web, "CLIENT_S", 3600.0)
    with contextlib.ExitStack() as stack:
        for _ in range(3 * CONNECTIONS_MAX):
            stack.enter_context(served.open(b"GET /healthz HT"))
        assert b"200 OK" in served.ask(GET)
        until(lambda: len(served._server._clients) <= CONNECTIONS_MAX, "an end of the oldest")


def test_a_client_that_does_not_take_its_answer_is_cut_off(served, monkeypatch):
    monkeypatch.setattr(web, "CLIENT_S", 0.2)
    with served.open(GET.replace(b"healthz", b"large")) as idle:
        until(lambda: idle.recv(1, socket.MSG_PEEK) and not served._server._clients, "its end")
        assert len(received(idle)) < LARGE_BYTES


@pytest.mark.parametrize("method", [b"GET", b"PUT", b"DELETE"])
def test_a_call_answers_every_method_with_its_body(served, method):
    head, body = served.ask(method + b" /call HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc").split(
        b"\r\n\r\n"
    )
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert json.loads(body) == {"method": method.decode(), "bytes": 3}


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (b"Content-Length: 65537", b"400"),
        (b"Content-Length: -1", b"400"),
        (b"Content-Length: 1\r\nContent-Length: 2", b"400"),
        (b"Content-Length: " + b"9" * 5000, b"400"),
        (b"Transfer-Encoding: chunked", b"411"),
    ],
)
def test_a_body_of_another_length_is_refused_before_it_is_read(served, lines, status):
    answer = served.ask(b"PUT /call HTTP/1.1\r\n" + lines + b"\r\n\r\n")
    assert answer.split(b" ")[1] == status


def test_half_a_body_is_given_up_in_time(served, monkeypatch):
    monkeypatch.setattr(web, "CLIENT_S", 0.05)
    with served.open(b"PUT /call HTTP/1.1\r\nContent-Length: 9\r\n\r\nhalf") as half:
        assert received(half) == b""


def test_it_listens_at_the_given_address_and_no_other(served):
    assert listeners(served.port) == [HERE]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", served.port), PATIENCE_S)
    assert address_of(served.listening) == f"{HERE}:{served.port}"


def test_a_port_that_is_taken_is_a_sentence(served):
    with pytest.raises(UsageError, match=rf"cannot be served at {HERE}:{served.port} \(Address"):
        listen_at(HERE, served.port)


@pytest.mark.parametrize("host", ["nowhere.invalid", "192.0.2.1"])  # no machine has it (RFC 5737)
def test_a_host_that_is_not_this_machine_is_a_sentence(host):
    with pytest.raises(UsageError, match=rf"at {host}:0 \(.*\); set AMCAST_WEB_HOST to"):
        listen_at(host, 0)


def test_others_reach_this_machine_where_it_reaches_the_first_broker():
    assert address_towards("127.0.0.1:9092,127.0.0.2:9092") == HERE
    with pytest.raises(UsageError, match="no route leads to"):
        address_towards("nowhere.invalid:9092")


# -- the command ------------------------------------------------------------------------------


def listeners(port):
    """Give the addresses with a listener at that port, from the kernel's table."""
    addresses = []
    for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        address, state = line.split()[1], line.split()[3]
        host, _, number = address.partition(":")
        if state == "0A" and int(number, 16) == port:
            addresses.append(socket.inet_ntoa(bytes.fromhex(host)[::-1]))
    return addresses


def command(*arguments):
    return [sys.executable, "-m", "multicast", "collectors", "run", *arguments]


@pytest.mark.slow
def test_the_command_ends_with_a_sentence_where_its_port_is_taken(served):
    taken = str(served.port)
    done = amcast("collectors", "run", "-b", "127.0.0.1:1", "--web-port", taken)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"amcast: the web pages cannot be served at {HERE}:{taken}")
    assert len(done.stderr.splitlines()) == 1
    env = {**os.environ, "AMCAST_BOOTSTRAP": "127.0.0.1:1", "AMCAST_WEB_PORT": taken}
    words = [sys.executable, "-m", "faust", "-A", "collectors.app", "worker"]
    done = subprocess.run(
        words, env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("host", loopbacks())
def test_a_start_without_brokers_ends_with_a_sentence(host):
    env = {"AMCAST_WEB_HOST": host}
    done = amcast("collectors", "run", "-b", "127.0.0.1:1", "--web-port", "0", env=env)
    assert done.returncode == 4
    (sentence,) = done.stderr.splitlines()[1:]
    assert sentence.startswith("amcast: No broker at 127.0.0.1:1 answered within 10 s")


@pytest.mark.slow
def test_a_start_that_is_stopped_ends_in_order(tmp_path):
    # Init: a broker that never answers delays the start; the pages are bound before.
    with socket.create_server((HERE, 0)) as silent, (tmp_path / "log").open("w+") as log:
        address = f"{HERE}:{silent.getsockname()[1]}"
        words = command("-b", address, "--web-port", "0")
        process = subprocess.Popen(words, stdout=log, stderr=log)
        try:
            written = tmp_path / "log"
            until(lambda: "/status" in written.read_text(), "the address of the pages")
            (port,) = [
                int(word.split(":")[2].split("/")[0])
                for word in written.read_text().split()
                if word.startswith("http://")
            ]
            assert listeners(port) == [HERE]
            silent.settimeout(PATIENCE_S)
            first, _ = silent.accept()  # it asks the broker: the start is under way

            # Test and check.
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0
            first.close()
            output = written.read_text()
            assert "Traceback" not in output
            assert "Error" not in output
        finally:
            process.kill()
            process.wait(PATIENCE_S)
