"""The least rights of each role on the topics of a plan, as commands of Kafka's `kafka-acls.sh`.

`acls.toml` has the roles; a role has the rights of the one that it names with `as`, too.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from multicast.control import groups_topic
from multicast.errors import UsageError
from topology.tree import Plan


@cache
def _roles() -> dict[str, Any]:
    return tomllib.loads((files(__package__) / "acls.toml").read_text(encoding="utf-8"))


def _rights(role: str) -> list[str]:
    described = _roles()[role]
    below = _rights(described["as"]) if "as" in described else []
    return [*below, *described["rights"]]


def commands(
    plan: Plan,
    chosen: Iterable[str],
    *,
    bootstrap: str,
    principal: str | None,
    groups: list[str],
    target: str | None = None,
) -> Iterator[str]:
    """Give the commands for these roles, or all, each after a line that names its role.

    `principal` is the user; None: "User:", and what the role is called. `groups` are the groups of
    the consumer, and `target` is the topic that copies or dead letters go to: without it, the roles
    that write there are left out. Raises `UsageError` for an unknown role, and for such a one that
    is chosen.
    """
    unknown = sorted(set(chosen) - _roles().keys())
    if unknown:
        raise UsageError(f"role {unknown[0]!r} is unknown; known are {', '.join(_roles())}")
    names = [{"A": plan.topic, "G": group, "T": target or ""} for group in groups or [""]]
    absent = {groups_topic(plan.topic)} - {log.topic for log in plan.logs}
    writers = [role for role in _roles() if target is None and " T" in "".join(_rights(role))]
    if refused := sorted(set(chosen) & set(writers)):
        raise UsageError(f"role {refused[0]!r} writes to a topic; name it with --target")
    for role in chosen or [role for role in _roles() if role not in writers]:
        yield f"# {role}"
        user = principal or "User:" + role.replace(" --", "-").replace(" ", "-")
        for right in dict.fromkeys(_rights(role)):
            operation, kind, *patterns = right.split()
            words = ["kafka-acls.sh", "--bootstrap-server", bootstrap, "--add"]
            words += ["--allow-principal", user, "--operation", operation]
            resources = [
                name for pattern in patterns for name in _named(pattern, names)
                if name not in absent
            ]  # fmt: skip
            if any(name.endswith("*") for name in resources):
                words += ["--resource-pattern-type", "prefixed"]
            words += [f"--{kind}"] if kind == "cluster" else []
            for name in resources:
                words += [f"--{kind}", name.removesuffix("*")]
            if resources or kind == "cluster":
                yield shlex.join(words)


def _named(pattern: str, names: Iterable[Mapping[str, str]]) -> list[str]:
    """Put these names, of each group, for the letters of a pattern."""
    parts = re.split(r"\b([AGT])\b", pattern)
    return list(dict.fromkeys("".join(known.get(part, part) for part in parts) for known in names))
