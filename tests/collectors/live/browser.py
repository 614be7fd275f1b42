"""A headless Chromium, driven by Selenium; both come from Debian (chromium, chromium-driver)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service

from multicast.errors import UsageError

WIDTH, HEIGHT = 1440, 1280  # of the window: a laptop's width


@contextmanager
def browser() -> Iterator[Chrome]:
    """Open a browser, and end it; raises `UsageError` where Chromium is not installed."""
    programs = [shutil.which(name) for name in ("chromium", "chromedriver")]
    if None in programs:
        raise UsageError("no Chromium is installed: apt-get install chromium chromium-driver")
    chromium, chromedriver = programs
    options = ChromeOptions()
    options.binary_location = str(chromium)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for flag in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage",
                 "hide-scrollbars", f"window-size={WIDTH},{HEIGHT}"):  # fmt: skip
        options.add_argument(f"--{flag}")
    opened = Chrome(options, Service(chromedriver))
    try:
        opened.set_script_timeout(120)
        yield opened
    finally:
        opened.quit()


def complaints(opened: Any) -> list[str]:
    """Give what the page has complained of: errors of its script, and what its policy blocked."""
    return [entry["message"] for entry in opened.get_log("browser")]
