"""How the live page draws a large plan, in a real headless Chromium; the plan is made up."""

import re
from contextlib import ExitStack
from dataclasses import replace
from http.client import HTTPConnection
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest

from multicast.web import STREAMS_MAX
from tests.collectors.live import large_page
from tests.collectors.live.browser import browser
from tests.collectors.live.large_page import MadeUpObserver, large_plan
from tests.collectors.live.test_browser import Page
from tests.helpers.system import until
from topology.tree import Subscription

pytestmark = [
    pytest.mark.needs("chromium", "chromedriver"),
    pytest.mark.campaign,
    pytest.mark.slow,
    pytest.mark.timeout(300),
]
COLLECTORS, LOGS = 200, 1000
HOME, END = "\ue011", "\ue010"  # as WebDriver names these keys
ELEMENTS_MAX = 3000  # a row of each collector and of each log would be above ten thousand
CONTRAST_MIN = 4.5  # of text, by the Web Content Accessibility Guidelines 2.2, level AA
STATES = {"up", "behind", "held", "down", "no answer", "starting"}


@pytest.fixture(scope="module")
def large():
    observers = []

    class KeptObserver(MadeUpObserver):
        def __init__(self, plan):
            observers.append(self)
            super().__init__(plan)

    with pytest.MonkeyPatch.context() as patch, browser() as opened:
        patch.setattr(large_page, "MadeUpObserver", KeptObserver)
        with large_page.served(large_plan(COLLECTORS, LOGS)) as url:
            opened.get(url)
            page = Page(opened)
            until(lambda: page.text("t-logs") == "1,000", "a page with all logs")
            yield SimpleNamespace(opened=opened, page=page, observer=lambda: observers[-1])
            assert page.complaints() == []


ACTIVE = """const box = document.getElementById(arguments[0]);
  const active = document.getElementById(box.getAttribute('aria-activedescendant'));
  const [outer, inner] = [box, active].map((each) => each.getBoundingClientRect());
  return [active.ariaRowIndex, box.ariaRowCount,
    outer.top - 1 <= inner.top && inner.bottom <= outer.bottom + 1]"""


@pytest.mark.parametrize(("box", "count"), [("tree", str(COLLECTORS)), ("logs", str(LOGS))])
def test_only_rows_in_sight_are_elements_and_keys_reach_the_last_one(large, box, count):
    large.page.run("document.getElementById(arguments[0]).focus()", box)
    large.page.press(END)
    until(lambda: large.page.run(ACTIVE, box) == [count, count, True], "the last row")
    assert large.page.run("return document.querySelectorAll('*').length") < ELEMENTS_MAX
    large.page.press(HOME)
    until(lambda: large.page.run(ACTIVE, box) == ["1", count, True], "the first row")


def test_what_stands_still_says_so(large):
    link = """return [document.getElementById('link-text').innerText,
      getComputedStyle(document.querySelector('main')).opacity]"""
    large.page.run("source.close(); lastTick = Date.now() - 10_000")
    until(lambda: large.page.run(link)[0].startswith("no news for 1"), "that no news come")
    assert float(large.page.run(link)[1]) < 1
    large.page.run("openEvents()")
    until(lambda: large.page.run(link) == ["live", "1"], "news again")


def test_a_page_that_was_refused_is_served_when_others_have_gone(large):
    url = urlsplit(large.opened.current_url)
    with ExitStack() as others:
        large.page.run("closeEvents(); closeTimeline()")
        for _ in range(STREAMS_MAX):
            connection = HTTPConnection(url.hostname, url.port)
            others.callback(connection.close)
            connection.request("GET", "/events")
            others.callback(connection.getresponse().close)
        large.page.run("lastTick = 0; openEvents()")
        until(lambda: "no answer" in large.page.text("link-text"), "that it is refused")
    until(lambda: large.page.text("link-text") == "live", "the page")
    assert any("503" in line for line in large.page.complaints())


def test_a_deep_tree_and_long_interests_leave_room_for_names_in_any_window(monkeypatch):
    monkeypatch.setattr(large_page, "MadeUpObserver", MadeUpObserver)  # not one of those of `large`
    depth, partitions = 30, 300
    plan = large_plan(depth, partitions)
    names = plan.partitions
    chain = [
        replace(
            node,
            parent=f"K{number}" if number else None,
            bag=tuple(sorted({*names[number::depth], *names[max(0, number - 1) : number]})),
        )
        for number, node in enumerate(plan.collectors)
    ]
    whole = Subscription("C1", names, None)
    plan = replace(plan, collectors=tuple(chain), consumers=(whole,))
    seen = """tree.box.scrollTop = 1e6; tree.render();
      const name = tree.pool.find((row) => row.index === tree.items.length - 1)?.name;
      return name && [name.innerText, name.parentElement.getBoundingClientRect().right
        - name.getBoundingClientRect().left, document.documentElement.scrollWidth - innerWidth]"""
    with large_page.served(plan) as url, browser() as opened:
        for width in (390, 700, 1440):
            opened.set_window_size(width, 1000)
            opened.get(url)
            page = Page(opened)
            until(lambda: page.run(seen) and page.run(seen)[0] == f"K{depth}", "the last name")  # noqa: B023
            _, room, beyond = page.run(seen)
            assert room > 60  # px: ten letters
            assert beyond <= 0
        assert page.complaints() == []


def test_each_state_has_a_word_and_a_shape_of_its_own(large):
    shapes = """return [...document.querySelectorAll(arguments[0])].map((row) =>
      [(row.querySelector('.state') || row).innerText,
       row.querySelector('svg path').getAttribute('d')
       + row.querySelector('svg').getAttribute('fill-opacity')])"""
    legend = dict(large.page.run(shapes, "#legend li[data-state]"))
    assert set(legend) == STATES
    assert len(set(legend.values())) == len(STATES)

    def in_tree():
        return dict(large.page.run(f"tree.render(); {shapes}", "#tree .row:not([hidden])"))

    until(lambda: "down" in in_tree(), "a collector that is down")
    assert in_tree().items() <= legend.items()


def luminance(colour):
    """The relative luminance of "rgb(r, g, b)", by the same guidelines."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(weight * p for weight, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_dark_and_light_follow_the_systems_setting_and_texts_have_contrast(large):
    script = """const probe = document.body.appendChild(document.createElement('i'));
      const of = (name) => { probe.style.color = `var(--${name})`;
        return getComputedStyle(probe).color };
      const found = Object.fromEntries(arguments[0].map((name) => [name, of(name)]));
      probe.remove(); return found"""
    texts = ("ink", "soft", "up", "behind", "held", "down", "silent", "starting")
    papers = []
    for scheme in ("dark", "light"):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        large.opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        colours = large.page.run(script, [*texts, "paper", "card"])
        papers.append(luminance(colours["paper"]))
        for text in texts:
            dark, light = sorted(luminance(colours[name]) for name in (text, "card"))
            assert (light + 0.05) / (dark + 0.05) >= CONTRAST_MIN, (scheme, text)
    assert papers[0] < 0.1
    assert papers[1] > 0.8


def test_the_verdict_of_the_running_check_is_a_total_with_its_witness(large):
    until(lambda: large.page.text("t-check") == "off", "no check")
    picture = large.observer().picture
    picture.check = {"state": "ok", "messages": 4711}
    until(lambda: large.page.text("t-check") == "in order", "the verdict")
    assert large.page.text("t-check-sub") == "4,711 messages"
    picture.check = {"state": "violated", "violations": 1, "witness": "C1 delivered a before b"}
    until(lambda: large.page.text("t-check") == "violated", "the violation")
    assert large.page.text("t-check-sub") == "C1 delivered a before b"
    tone = "return document.getElementById('tile-check').dataset.tone"
    assert large.page.run(tone) == "down"
