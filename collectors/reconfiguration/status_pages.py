"""Asks the processes that run a topic's collectors what they have counted, at their `/status`.

The control topic names the page of the process that last began to act for a collector. Each page
is read once. A page that does not answer costs `_PAGE_S`, and the collectors on it stay uncounted:
that is a sentence, never an error. A page is served by default to its own machine only.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from typing import Any

from collectors.reconfiguration.drain import some
from multicast.control import ControlState, StatusPage

ENTRY_KINDS = ("appended", "passed_on", "read", "dropped")  # what a collector counts, in this order
_PAGE_S = 3.0  # a page takes milliseconds; people wait for it
_PAGES_AT_ONCE = 16  # threads; so many processes answer, or time out, in one `_PAGE_S`
# A collector with a hundred logs takes some 10 kB of a page, and a process runs hundreds of them.
_PAGE_BYTES_MAX = 64 << 20


@dataclass(frozen=True, slots=True)
class CollectorCounts:
    """Entries by log that one process counted for a collector since the process started.

    `process` identifies the process, `page` is where it said so. `passed_on` is a part of
    `appended`, `dropped` one of `read`.
    """

    page: str
    process: str
    appended: Mapping[str, int]
    passed_on: Mapping[str, int]
    read: Mapping[str, int]
    dropped: Mapping[str, int]

    @property
    def handled(self) -> int:
        """Entries appended, and those that were read only to drop them."""
        return sum(self.appended.values()) + sum(self.dropped.values())

    @property
    def genuineness(self) -> float | None:
        """Entries handled for an addressee / entries handled; None if none was handled."""
        wanted = sum(self.appended.values()) - sum(self.passed_on.values())
        return wanted / self.handled if self.handled else None


@dataclass(frozen=True, slots=True)
class ReportedCounts:
    """The counts of the newest plan's collectors by name; in sentences, which are missing."""

    counts: Mapping[str, CollectorCounts]
    missing: tuple[str, ...]


def reported_counts(state: ControlState) -> ReportedCounts:
    """Read the pages of all collectors of the newest plan; blocks for seconds at most.

    If several processes run a collector, the one that acts is taken.
    """
    plan = state.plan()
    pages = {node.name: state.advertised.pages.get(node.name) for node in plan.collectors}
    answers = read_pages({page: None for page in pages.values() if page is not None})
    counts: dict[str, CollectorCounts] = {}
    missing: dict[str, list[str]] = {}
    for name, page in pages.items():
        epoch = state.first_epoch(plan.epoch, name)
        preferred = [page] if page in answers else []
        others = [other for other in answers if other != page]
        for where, node in acting_first(answers, [*preferred, *others], name, epoch):
            if isinstance(entries := node.get("entries"), dict):
                by_kind = {kind: _by_log(entries, kind) for kind in ENTRY_KINDS}
                counts[name] = CollectorCounts(_url(where), where.process.hex(), **by_kind)
                break
        else:
            missing.setdefault(_why(page, answers), []).append(name)
    return ReportedCounts(
        counts, tuple(f"not counted: {some(names)}: {why}" for why, names in missing.items())
    )


def _why(page: StatusPage | None, answers: Mapping[StatusPage, Any]) -> str:
    if page is None:
        return "no process has said where its status page is"
    answer = answers[page]
    return answer if isinstance(answer, str) else f"{_url(page)} does not run it"


def _url(page: StatusPage) -> str:
    host = f"[{page.host}]" if ":" in page.host else page.host
    return f"http://{host}:{page.port}/status"


def read_pages(
    pages: Iterable[StatusPage], timeout_s: float = _PAGE_S
) -> dict[StatusPage, Mapping[str, Any] | str]:
    """Read the document of each page; a sentence where that fails within `timeout_s` seconds."""
    listed = list(pages)
    with ThreadPoolExecutor(_PAGES_AT_ONCE) as threads:
        answers = threads.map(lambda page: _read(page, timeout_s), listed)
        return dict(zip(listed, answers, strict=True))


def _read(page: StatusPage, timeout_s: float) -> Mapping[str, Any] | str:
    connection = HTTPConnection(page.host, page.port, timeout=timeout_s)
    try:
        connection.request("GET", "/status")
        raw = connection.getresponse().read(_PAGE_BYTES_MAX)
        document = json.loads(raw)
        process, nodes = document["process"], document["nodes"]
    except OSError as error:
        return f"{_url(page)} cannot be read ({error.strerror or str(error) or 'no answer'})"
    except HTTPException:  # its text quotes the answer of whatever server is there
        return f"{_url(page)} cannot be read (no answer of HTTP)"
    except (ValueError, KeyError, TypeError, RecursionError):
        return f"{_url(page)} is not the status of collectors"
    finally:
        connection.close()
    if process != page.process.hex():
        return f"{_url(page)} is of another process"
    if not isinstance(nodes, list):
        return f"{_url(page)} is not the status of collectors"
    return {**document, "nodes": nodes}


def unchecked(answers: Mapping[StatusPage, Mapping[str, Any] | str]) -> dict[StatusPage, str]:
    """Give the sentences in which processes say what of the cluster they could not check."""
    told = {page: each.get("unchecked") for page, each in answers.items() if isinstance(each, dict)}
    return {page: says for page, says in told.items() if isinstance(says, str)}


def acting_first(
    answers: Mapping[StatusPage, Mapping[str, Any] | str],
    pages: Iterable[StatusPage],
    name: str,
    epoch: int,
) -> list[tuple[StatusPage, Mapping[str, Any]]]:
    """List what these pages say of a collector's instances: of those that act, then of others."""
    found = []
    for page in pages:
        answer = answers[page]
        nodes = () if isinstance(answer, str) else answer["nodes"]
        found += [(page, node) for node in nodes if isinstance(node, dict)]
    found = [each for each in found if (each[1].get("node"), each[1].get("epoch")) == (name, epoch)]
    return sorted(found, key=lambda each: each[1].get("acting") is not True)


def _by_log(entries: Mapping[str, Any], kind: str) -> dict[str, int]:
    counts = entries.get(kind)
    if not isinstance(counts, dict):
        return {}
    return {str(log): count for log, count in counts.items() if isinstance(count, int)}
