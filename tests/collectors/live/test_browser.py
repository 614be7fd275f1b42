"""The live page in a real headless Chromium, on a real broker with collectors as processes.

`pytest -m campaign -s tests/collectors/live/test_browser.py` prints the times that it measured.
"""

import re
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest

from collectors.reconfiguration.apply import apply
from multicast import Producer
from multicast.drivers.kafka import Admin
from tests.collectors.live.browser import browser, complaints
from tests.collectors.live.serving import serving
from tests.collectors.test_replanning import planned
from tests.helpers.plans import poster
from tests.helpers.system import PATIENCE_S, System, open_transaction, until

pytestmark = [
    pytest.mark.needs("chromium", "chromedriver"),
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]
HOSTILE = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"
ENTER, DOWN = "\ue007", "\ue015"  # as WebDriver names these keys


class Page:
    """What a person sees."""

    def __init__(self, opened):
        self._opened = opened

    @contextmanager
    def other_tabs(self, count):
        """Open the same page in other tabs, one after the other; each time the newest is seen."""
        first, url = self._opened.current_window_handle, self._opened.current_url

        def opened():
            for _ in range(count):
                self._opened.switch_to.new_window("tab")
                self._opened.get(url)
                yield

        try:
            yield opened()
        finally:
            for handle in set(self._opened.window_handles) - {first}:
                self._opened.switch_to.window(handle)
                self._opened.close()
            self._opened.switch_to.window(first)

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
            Producer(topic=system.topic, driver=system.driver) as producer,
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


@pytest.mark.campaign
def test_the_tree_is_walked_by_keys_and_shows_the_logs_of_one_collector(live):
    second = live.system.plan.collectors[1]
    live.page.run("document.getElementById('tree').focus()")
    live.page.press(DOWN, ENTER)
    until(lambda: second.name in live.page.text("h-logs"), "the logs of the second collector")
    own = set(live.system.plan.own_logs(second.name))
    until(lambda: {row.split()[0] for row in live.page.rows("logs")} == own, "its own logs only")
    active = """const box = document.getElementById('tree');
        return document.getElementById(box.getAttribute('aria-activedescendant')).ariaSelected"""
    assert live.page.run(active) == "true"
    live.page.press(ENTER)
    until(lambda: live.page.text("h-logs") == "Logs", "all logs again")


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


@pytest.mark.campaign
def test_any_number_of_tabs_in_one_browser_is_served(live):
    """A browser opens six connections to a server; a page in the background has none."""
    with live.page.other_tabs(6) as tabs:
        for _ in tabs:
            until(lambda: live.page.text("link-text") == "live", "a live page")
            until(lambda: live.page.rows("timeline"), "its messages")
    until(lambda: live.page.text("link-text") == "live", "the first page again")
    until(lambda: live.page.rows("timeline"), "its messages again")


@pytest.mark.campaign
def test_an_open_transaction_is_shown_as_held(live):
    producer = open_transaction(live.system, live.system.plan.log("P2"))
    top = live.system.plan.top("P2").name
    until(lambda: live.page.state(top) == "held", "the held log")
    producer.commit_transaction(PATIENCE_S)
    until(lambda: all_up(live.page, live.system), "its end")


@pytest.mark.campaign
def test_a_new_epoch_is_shown_while_messages_flow(live):
    ended = threading.Event()

    def send():
        while not ended.wait(0.01):
            live.producer.multicast(b"flow", to={"P1", "P3"})

    sender = threading.Thread(target=send)
    sender.start()
    try:
        plan = planned(live.system.plan)
        known = {node.name for node in live.system.plan.collectors}
        with Admin(live.system.bootstrap) as admin:
            done = apply(live.system.driver, admin, plan, timeout_s=PATIENCE_S, add_partitions=True)
        began = time.monotonic()
        for name in {node.name for node in done.plan.collectors} - known:
            live.host.start(name)
        until(lambda: live.page.text("t-epoch") == "2", "the new epoch")
        took("epoch 2 in force, and shown", began)
    finally:
        ended.set()
        sender.join()
    live.system.plan = replace(done.plan)
    until(lambda: all_up(live.page, live.system), "all collectors of the new epoch")
    assert re.search("epoch 2 is in force", live.page.text("events"))
    assert "C4: P1, P5, P6" in live.page.text("interest")
