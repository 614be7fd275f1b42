"""The live page in a real headless Chromium, on a real broker with collectors as processes.

`pytest -m campaign -s tests/collectors/live/test_browser.py` prints the times that it measured.
"""

import sys
import time
from types import SimpleNamespace

import pytest

from multicast import Producer
from tests.collectors.live.browser import browser, complaints
from tests.collectors.live.serving import serving
from tests.helpers.plans import poster
from tests.helpers.system import PATIENCE_S, System, until

pytestmark = [pytest.mark.needs("chromium", "chromedriver"), pytest.mark.timeout(900)]
HOSTILE = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"
ENTER, DOWN = "\ue007", "\ue015"  # as WebDriver names these keys


class Page:
    """What a person sees."""

    def __init__(self, opened):
        self._opened = opened

    def run(self, script, *arguments):
        return self._opened.execute_script(script, *arguments)

    def text(self, element):
        return self.run("return document.getElementById(arguments[0]).innerText", element)

    def state(self, name):
        script = """for (const row of document.querySelectorAll('#tree .row:not([hidden])'))
          if (row.querySelector('b').textContent === arguments[0]) return row.dataset.state"""
        return self.run(script, name)

    def rows(self, box):
        script = """return [...document.querySelectorAll(`#${arguments[0]} .row:not([hidden])`)]
          .sort((one, other) => one.index - other.index).map((row) => row.innerText)"""
        return self.run(script, box)

    def press(self, *keys):
        self._opened.switch_to.active_element.send_keys(*keys)

    def search(self, words):
        self.run(
            """const box = document.getElementById('search'); box.value = arguments[0];
            box.dispatchEvent(new Event('input'))""",
            words,
        )

    def complaints(self):
        return complaints(self._opened)


@pytest.fixture(scope="module")
def live(kafka_cluster, tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    with System(kafka_cluster.bootstrap, poster(), folder) as system:
        host = system.apart(system.plan.top("P1+P3").name)
        with (
            Producer(topic=system.topic, driver=system.driver, tickets=False) as producer,
            serving(system.bootstrap, system.topic, folder) as url,
            browser() as opened,
        ):
            opened.get(url)
            page = Page(opened)
            until(lambda: all_up(page, system), "a page with all collectors up")
            yield SimpleNamespace(system=system, host=host, producer=producer, page=page)
            assert page.complaints() == []


def all_up(page, system):
    names = [node.name for node in system.plan.collectors]
    return [page.state(name) for name in names] == ["up"] * len(names)


def took(what, began):
    sys.stderr.write(f"\n{what}: {time.monotonic() - began:.2f} s\n")


@pytest.mark.campaign
def test_a_killed_collector_is_shown_and_its_lag_builds_up_and_drains(live):
    top = live.system.plan.top("P1+P3").name
    live.host.kill(top)
    began = time.monotonic()
    until(lambda: live.page.state(top) == "down", "the news of the death")
    took("killed, and shown as down", began)
    until(lambda: "1 down" in live.page.text("t-up-sub"), "the number of those that are down")
    until(lambda: f"{top} is down" in live.page.text("events"), "the event")

    receipts = [live.producer.multicast(b"late", to={"P1", "P3"}) for _ in range(50)]
    for receipt in receipts:
        receipt.accepted(PATIENCE_S)
    until(lambda: live.page.text("t-lag") == "50", "a lag of 50")
    assert live.page.rows("logs")[0].split()[0] == "P1+P3"  # what waits comes first

    live.host.start(top)
    began = time.monotonic()
    for receipt in receipts:
        receipt.ordered(PATIENCE_S)
    until(lambda: live.page.text("t-lag") == "0", "the end of the lag")
    until(lambda: all_up(live.page, live.system), "the collector's return")
    took("started again, and shown as up", began)


def test_a_message_is_searched_chosen_by_keys_and_explained(live):
    wanted = live.producer.multicast(b"needle 4711", to={"P1", "P3"}, key=b"hay").ordered(
        PATIENCE_S
    )
    for words in ("NEEDLE 47", "hay", str(wanted)):
        live.page.search(words)
        until(
            lambda: [row.split()[1] for row in live.page.rows("timeline")] == [str(wanted)],
            f"the message for {words!r}",
        )
    live.page.run("document.getElementById('timeline').focus()")
    live.page.press(ENTER)
    until(lambda: "Nobody waits." in live.page.text("x-lines"), "the explanation")
    assert live.page.text("x-title") == f"Message {wanted}"
    assert "ordered" in live.page.text("x-facts")
    live.page.press("\ue00c")  # Escape
    until(lambda: not live.page.run("return document.getElementById('explain').open"), "its end")
    live.page.search("no such words")
    until(lambda: live.page.rows("timeline") == [], "nothing found")
    live.page.search("")


def test_brokers_and_consumers_are_on_the_page(live):
    until(lambda: live.page.text("t-brokers") == "1\u2009/\u20091", "the broker")
    names = {entry.name for entry in live.system.plan.consumers}
    until(lambda: {row.split()[0] for row in live.page.rows("consumers")} == names, "consumers")
    assert live.page.text("t-consumers-sub") == f"{len(names)} never committed"


def test_a_hostile_payload_is_text(live):
    sent = live.producer.multicast(HOSTILE.encode(), to={"P3"}, key=HOSTILE.encode())
    sent.ordered(PATIENCE_S)
    live.page.search("onerror")
    until(lambda: any(HOSTILE in row for row in live.page.rows("timeline")), "the payload as text")
    assert live.page.run("return document.title") != "taken"
    assert live.page.run("return document.querySelectorAll('img, .list script').length") == 0
    inline = """const probe = document.createElement('script'); probe.textContent =
      "document.title = 'taken'"; document.body.append(probe); return document.title"""
    assert live.page.run(inline) != "taken"  # the policy blocks what is not of the page's files
    assert [line for line in live.page.complaints() if "Content Security Policy" in line]
    live.page.search("")
