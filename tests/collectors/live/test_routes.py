"""The live page's server without a browser: who may ask, what is shown, and its bounds."""

import asyncio
import contextlib
import json
import re
import socket
import threading
from contextlib import closing
from urllib.request import urlopen

import pytest

from collectors.live.observer import observe
from collectors.live.routes import LivePages
from multicast import Producer, web
from multicast.settings import Settings
from multicast.web import WebServer, listen_at
from tests.collectors.live.serving import serving
from tests.helpers.plans import poster
from tests.helpers.system import PATIENCE_S, System, amcast, until

HERE = "127.0.0.1"
HOSTILE = "<img src=x onerror=alert(1)>\r\n\r\nevent: moment"


class Asked:
    """A client of the pages at a port."""

    def __init__(self, port):
        self.port = port

    def open(self, path, host=HERE, method="GET"):
        opened = socket.create_connection((HERE, self.port), PATIENCE_S)
        opened.sendall(f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        return opened

    def ask(self, path, **options):
        with self.open(path, **options) as opened, opened.makefile("rb") as answer:
            head, _, body = answer.read().partition(b"\r\n\r\n")
        return head.decode(), body

    def events(self, path, wanted, enough=lambda _: True):
        """Read a stream until an event of this kind is enough; give all of the kind."""
        found = []
        with self.open(path) as opened, opened.makefile("r", encoding="utf-8") as lines:
            kind = ""
            for line in lines:
                if line.startswith("event: "):
                    kind = line.removeprefix("event: ").strip()
                elif line.startswith("data: ") and kind == wanted:
                    found.append(json.loads(line.removeprefix("data: ")))
                    if enough(found):
                        return found
        raise AssertionError(found)


class Pages(Asked):
    """The pages of a topic on a thread of their own."""

    def __init__(self, settings, host=HERE, open_observer=observe):
        listening = listen_at(HERE, 0)
        super().__init__(listening.getsockname()[1])
        self._live = LivePages(settings, host, open_observer)
        self._server = WebServer({}, self._live.routes(), host=host)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.run(self._server.start(listening))

    def run(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(PATIENCE_S)

    def close(self):
        self.run(self._server.stop())
        self.run(self._live.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()


@pytest.fixture(scope="module")
def system(kafka_cluster, tmp_path_factory):
    """A topic whose producers write tickets."""
    folder = tmp_path_factory.mktemp("live")
    with System(kafka_cluster.bootstrap, poster(), folder, driver="kafka-python") as made:
        made.order()
        with Producer(topic=made.topic, driver=made.driver) as producer:
            for number in range(5):
                producer.multicast(b"n%d" % number, to={"P1", "P3"}, key=b"k").ordered(PATIENCE_S)
            producer.multicast(HOSTILE.encode(), to={"P3"}).ordered(PATIENCE_S)
            producer.multicast(b"\xff\x00", to={"P2"}).ordered(PATIENCE_S)
        yield made


@pytest.fixture(scope="module")
def settings(system):
    return Settings(system.bootstrap, system.topic)


@pytest.fixture(scope="module")
def pages(settings):
    with closing(Pages(settings)) as made:
        yield made


pytestmark = pytest.mark.kafka


def test_the_page_is_a_few_files_under_a_strict_policy(pages):
    for path, kind in (("/", "html"), ("/ui.css", "css"), ("/ui.js", "javascript")):
        head, body = pages.ask(path)
        assert head.startswith("HTTP/1.1 200")
        assert f"Content-Type: text/{kind}" in head
        assert "default-src 'none'; script-src 'self'" in head
        assert b"http://www.w3.org" in body or b"://" not in body  # nothing from elsewhere
    assert pages.ask("/other")[0].startswith("HTTP/1.1 404")
    assert pages.ask("/events", method="POST")[0].startswith("HTTP/1.1 405")


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost:1", 200), ("[::1]:80", 200), ("10.1.2.3", 200), ("evil.example", 421), ("", 421)],
)
def test_a_foreign_name_for_this_machine_is_refused(pages, host, status):
    assert pages.ask("/", host=host)[0].startswith(f"HTTP/1.1 {status}")


def test_the_tree_and_the_totals_are_those_of_the_system(pages, system):
    names = {node.name for node in system.plan.collectors}
    layout = pages.events("/events", "layout")[0]
    assert {spec["name"] for spec in layout["collectors"]} == names
    moments = pages.events("/events", "moment", lambda all_: all_[-1]["totals"]["up"] == len(names))
    assert moments[-1]["totals"]["lag"] == 0
    assert moments[-1]["check"] == {"state": "off"}


def test_the_timeline_has_the_order_who_made_it_and_what_is_searched(pages, system):
    def rows_of(path, number):
        return [
            row
            for event in pages.events(
                path, "rows", lambda all_: sum(len(each["rows"]) for each in all_) >= number
            )
            for row in event["rows"]
        ]

    rows = rows_of("/timeline?interest=C1", 7)
    done = amcast("receive", *system.common(), "-n", "C1", "--until-end")
    order = [json.loads(line)["message_id"] for line in done.stdout.splitlines()]
    assert [row["id"] for row in rows] == order
    tops = {log.name: system.plan.top(log.name).name for log in system.plan.logs
            if system.plan.top(log.name)}  # fmt: skip
    for row in rows:
        assert row["by"] == tops[row["id"].rpartition(":")[0]]
        assert row["ordered"] > 0
    (hostile,) = rows_of("/timeline?interest=C1&q=ONERROR", 1)
    assert hostile["text"] == HOSTILE
    assert "0xff00" in [row["text"] for row in rows]
    assert len(rows_of("/timeline?interest=P1%2BP2%2BP3&q=k", 5)) == 5
    unknown = pages.events("/timeline?interest=P9", "problem", lambda all_: all_[-1]["error"])
    assert "partition P9 does not exist" in unknown[-1]["error"]


def test_a_message_is_explained_and_nonsense_is_a_sentence(pages):
    answer = json.loads(pages.ask("/explain?id=P3:0")[1])
    assert answer["waits"] == 0
    assert "Nobody waits." in answer["lines"]
    assert "is not a message's ID" in json.loads(pages.ask("/explain?id=%3Cb%3E")[1])["error"]


def test_the_collectors_own_port_serves_the_same_page_beside_its_status(system):
    log = (system.folder / f"{system.topic}.log").read_text()
    port = int(re.search(r"http://127\.0\.0\.1:(\d+)/status", log)[1])
    asked = Asked(port)
    assert b"<title>amcast" in asked.ask("/")[1]
    assert json.loads(asked.ask("/status")[1])["topic"] == system.topic
    assert asked.events("/events", "layout")[0]["topic"] == system.topic


def test_off_the_loopback_no_payload_is_shown(settings):
    with closing(Pages(settings, host="0.0.0.0")) as pages:
        rows = pages.events("/timeline?interest=C1", "rows", lambda all_: all_[-1]["rows"])
        assert {(row["text"], row["key"]) for row in rows[-1]["rows"]} == {("", "")}


def test_more_streams_than_allowed_are_refused_and_who_leaves_makes_room(settings, monkeypatch):
    monkeypatch.setattr(web, "STREAMS_MAX", 2)
    with closing(Pages(settings)) as pages:
        for _ in range(2):
            with contextlib.ExitStack() as stack:
                for _ in range(2):
                    opened = stack.enter_context(pages.open("/events"))
                    assert opened.recv(12) == b"HTTP/1.1 200"
                assert pages.ask("/events")[0].startswith("HTTP/1.1 503")
                assert pages.ask("/")[0].startswith("HTTP/1.1 200")
            until(lambda: not pages._server._streams, "an end of the streams")


def test_status_waits_until_all_collectors_are_up(system):
    common = system.common()
    done = amcast("collectors", "status", *common, "--wait", "healthy", "--timeout", "240")
    assert (done.returncode, done.stderr) == (0, "")
    assert "collectors up" in done.stdout
    done = amcast("collectors", "status", *common, "--timeout", "2")
    assert (done.returncode, "goes with --wait" in done.stderr) == (2, True)
    done = amcast("collectors", "status", *common, "--wait", "healthy", "--timeout", "soon")
    assert (done.returncode, "--timeout" in done.stderr) == (2, True)


def test_a_wait_for_collectors_that_do_not_run_ends_with_the_cause(kafka_cluster, tmp_path):
    with System(kafka_cluster.bootstrap, poster(), tmp_path) as idle:
        wait = ("--wait", "healthy", "--timeout", "5")
        done = amcast("collectors", "status", *idle.common(), *wait)
        assert done.returncode == 4
        assert "not all collectors are up after 5 s: K1 is silent: no process" in done.stderr
        status = json.loads(amcast("collectors", "status", *idle.common(), "-o", "json").stdout)
    assert {row["state"] for row in status["collectors"]} == {"silent"}


def test_a_prober_finds_the_page_of_a_topic_alive_while_no_broker_answers(tmp_path):
    with serving("127.0.0.1:1", "A", tmp_path) as url, urlopen(f"{url}healthz") as answer:
        assert (answer.status, json.load(answer)) == (200, {"healthy": True})
