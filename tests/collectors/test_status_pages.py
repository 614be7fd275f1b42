"""Whose counts are taken, and what is said where a page cannot be read."""

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from collectors.reconfiguration import status_pages
from collectors.reconfiguration.status_pages import reported_counts
from multicast.control import StatusPage, running_record
from multicast.drivers.protocol import Record
from tests.helpers.in_memory_cluster import InMemoryCluster

PROCESS = bytes(range(8))
COLLECTORS = {"K1": (("P1", "P2"), None), "K2": (("P2", "P3"), "K1")}
CONSUMERS = {"C1": (("P1",), "K1"), "C2": (("P2", "P3"), "K2")}


@pytest.fixture
def state():
    cluster = InMemoryCluster()
    cluster.plan(("P1", "P2", "P3"), COLLECTORS, CONSUMERS)
    return cluster.control()


@pytest.fixture
def serve():
    """Give a function that serves one answer to every request, and gives its page."""
    servers = []

    def started(answer, process=PROCESS):
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200)
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_):
                pass

        server = HTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        servers.append((server, thread))
        return StatusPage("127.0.0.1", server.server_port, process)

    yield started
    for server, thread in servers:
        server.shutdown()
        thread.join(60)
        server.server_close()


def node(name, *, acting=True, appended=1, epoch=1):
    entries = {"appended": {"P2": appended}, "passed_on": {}, "read": {}, "dropped": {}}
    return {"node": name, "epoch": epoch, "acting": acting, "entries": entries}


def document(*nodes, process=PROCESS):
    return json.dumps({"process": process.hex(), "nodes": nodes}).encode()


def runs_at(state, name, page):
    key, value = running_record(1, name, page)
    state.read_collectors(Record(state.epoch, value, key))


def test_the_control_topic_carries_the_page_and_its_loss_is_the_newest_word(state):
    page = StatusPage("127.0.0.1", 6066, PROCESS)
    for record in (running_record(1, "K1", page), running_record(1, "K1")):
        before = state.copy()
        state.read_collectors(Record(0, record[1], record[0]))
        assert state.advertised.running == {"K1": 1}
        assert state.advertised.pages == {"K1": page if record[1].count(b"6066") else None}
        assert before.advertised.pages != state.advertised.pages  # a copy reads on by itself


@pytest.mark.parametrize(
    "web",
    [1, None, {}, {"host": "h"}, {"host": "h", "port": 70000, "process": PROCESS.hex()},
     {"host": "", "port": 1, "process": PROCESS.hex()},
     {"host": "h", "port": 1, "process": "xy"}],
)  # fmt: skip
def test_a_malformed_page_voids_its_statement(state, web):
    value = json.dumps({"schema_version": 1, "epoch": 1, "web": web}).encode()
    state.read_collectors(Record(0, value, b"running/K1"))
    assert (state.void, state.advertised.running, state.advertised.pages) == (1, {}, {})


def test_the_instance_that_acts_is_taken_wherever_it_is(state, serve):
    # Init: K1's newest address is of a process that has become a standby; the other one acts.
    other = bytes(8)
    standby = serve(document(node("K1", acting=False, appended=5), node("K2", epoch=9)))
    acting = serve(document(node("K1", appended=7), node("K2"), process=other), other)
    runs_at(state, "K1", standby)
    runs_at(state, "K2", acting)

    counted = reported_counts(state)
    assert counted.missing == ()
    assert counted.counts["K1"].appended == {"P2": 7}
    assert counted.counts["K1"].process == other.hex()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (document(node("K1"), process=bytes(8)), "is of another process"),
        (document(node("K3")), "does not run it"),
        (document(node("K1", epoch=2)), "does not run it"),
        (document({"node": "K1", "epoch": 1, "entries": 3}, 7), "does not run it"),
        (b"[]", "is not the status of collectors"),
        (b"{", "is not the status of collectors"),
        (json.dumps({"process": PROCESS.hex(), "nodes": 3}).encode(), "is not the status of"),
        (b"[" * 100_000, "is not the status of collectors"),
    ],
)
def test_a_page_that_says_something_else_is_a_sentence(state, serve, answer, why):
    page = serve(answer)
    runs_at(state, "K1", page)
    first, second = reported_counts(state).missing
    assert first.startswith(f"not counted: K1: http://127.0.0.1:{page.port}/status {why}")
    assert second == "not counted: K2: no process has said where its status page is"


def test_a_page_that_does_not_answer_is_a_sentence(state, monkeypatch):
    monkeypatch.setattr(status_pages, "_PAGE_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        for name, opened in (("K1", silent), ("K2", closed)):
            runs_at(state, name, StatusPage("127.0.0.1", opened.getsockname()[1], PROCESS))
        first, second = reported_counts(state).missing
    assert first.endswith("/status cannot be read (timed out)")
    assert second.endswith("/status cannot be read (Connection refused)")


def test_nothing_of_the_answer_of_another_server_is_shown(state):
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def greet():
            connection, _ = listening.accept()
            connection.sendall(b"220 the secret of another server\r\n")
            connection.recv(1000)
            connection.close()

        other = threading.Thread(target=greet)
        other.start()
        runs_at(state, "K1", StatusPage("127.0.0.1", listening.getsockname()[1], PROCESS))
        (first, _) = reported_counts(state).missing
        other.join(60)
    assert first.endswith("/status cannot be read (no answer of HTTP)")
