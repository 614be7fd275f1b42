"""Makes plans for tests from interests in whatever form a test has them.

A mapping has the form of an interest file, in which two things are shorter for tests:

    topic, partitions    may be missing: topic "A", and the partitions that are named elsewhere
    consumers            consumers by name, each with its interest, in place of [[consumer]] tables
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from multicast.errors import UsageError
from topology.changes import with_kept_names, with_running_logs
from topology.files import why_unreadable
from topology.interests import InterestFile, InvalidInterests, from_document, parse
from topology.planner.solver import Infeasible
from topology.planner.solver import plan as solve
from topology.tree import Plan

Interests = str | PathLike[str] | Mapping[str, Any] | InterestFile | Plan


def plan_for(
    interests: Interests, *, topic: str | None = None, running: Plan | None = None
) -> Plan:
    """Plan a tree; give a plan as it is.

    `topic` replaces the topic's name. With `running` it is the plan of the epoch after that one,
    which keeps its logs, and the names of collectors that go on. Raises `UsageError` for interests
    that cannot be read or planned.
    """
    if isinstance(interests, Plan):
        return interests if topic is None else renamed(interests, topic)
    try:
        asked = _read(interests)
        if topic is not None:
            asked = replace(asked, topic=topic)
        if running is None:
            return solve(asked)
        planned = solve(with_running_logs(asked, running), base_epoch=running.epoch)
    except (InvalidInterests, Infeasible) as error:
        raise UsageError(str(error)) from error
    return with_kept_names(running, planned)


def renamed(plan: Plan, topic: str) -> Plan:
    """Give a plan for a topic of another name."""
    logs = tuple(
        replace(log, topic=topic + log.topic.removeprefix(plan.topic)) for log in plan.logs
    )
    return replace(plan, topic=topic, logs=logs)


def _read(interests: str | PathLike[str] | Mapping[str, Any] | InterestFile) -> InterestFile:
    if isinstance(interests, InterestFile):
        return interests
    if isinstance(interests, Mapping):
        return from_document(_document(interests))
    path = Path(interests)
    try:
        return parse(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        why = why_unreadable(error)
        raise UsageError(f"the interest file {path} cannot be read: {why}") from error


def _document(given: Mapping[str, Any]) -> dict[str, Any]:
    """Fill in what a test may leave out; sets become sorted lists."""
    document = {"topic": "A", **given}
    document["destinations"] = [_names(to) for to in document.get("destinations", [])]
    if "consumers" in document:
        by_name = document.pop("consumers")
        if not isinstance(by_name, Mapping):
            raise InvalidInterests(f"consumers is {by_name!r}, not a mapping of names to interests")
        tables = [{"name": name, "interest": _names(to)} for name, to in by_name.items()]
        document["consumer"] = [*document.get("consumer", []), *tables]
    if "partitions" not in document:
        tables = document.get("consumer", [])
        if not isinstance(tables, list) or not all(isinstance(each, Mapping) for each in tables):
            raise InvalidInterests("consumer is not a list of tables; 'consumers' takes a mapping")
        interests = [table.get("interest", []) for table in tables]
        named = [name for names in (*interests, *document["destinations"]) for name in names]
        document["partitions"] = sorted(set(named))
    document["partitions"] = _names(document["partitions"])
    return document


def _names(value: Any) -> Any:
    """Give the names of a set in their order; leave anything else to the reader of the file."""
    if isinstance(value, set | frozenset):
        return sorted(value)
    return list(value) if isinstance(value, Iterable) and not isinstance(value, str) else value
