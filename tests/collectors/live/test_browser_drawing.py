"""How the live page draws a large plan, in a real headless Chromium; the plan is made up."""

from types import SimpleNamespace

import pytest

from tests.collectors.live import large_page
from tests.collectors.live.browser import browser
from tests.collectors.live.large_page import large_plan
from tests.collectors.live.test_browser import Page
from tests.helpers.system import until

pytestmark = [pytest.mark.needs("chromium", "chromedriver"), pytest.mark.timeout(300)]
COLLECTORS, LOGS = 200, 1000
HOME, END = "\ue011", "\ue010"  # as WebDriver names these keys
ELEMENTS_MAX = 3000  # a row of each collector and of each log would be above ten thousand


@pytest.fixture(scope="module")
def large():
    with browser() as opened, large_page.served(large_plan(COLLECTORS, LOGS)) as url:
        opened.get(url)
        page = Page(opened)
        until(lambda: page.text("t-logs") == "1,000", "a page with all logs")
        yield SimpleNamespace(page=page)
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
