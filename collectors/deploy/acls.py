"""The least rights of each role on the topics of a plan, as commands of Kafka's `kafka-acls.sh`.

`acls.toml` has the roles; a role has the rights of the one that it names with `as`, too.
"""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Iterable, Iterator
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
    plan: Plan, chosen: Iterable[str], *, bootstrap: str, principal: str | None, groups: list[str]
) -> Iterator[str]:
    """Give the commands for these roles, or all, each after a line that names its role.

    `principal` is the user; None: "User:", and what the role is called. `groups` are the groups of
    the consumer. Raises `UsageError` for an unknown role.
    """
    unknown = sorted(set(chosen) - _roles().keys())
    if unknown:
        raise UsageError(f"role {unknown[0]!r} is unknown; known are {', '.join(_roles())}")
    absent = {groups_topic(plan.topic)} - {log.topic for log in plan.logs}
    for role in chosen or _roles():
        yield f"# {role}"
        user = principal or "User:" + role.replace(" --", "-").replace(" ", "-")
        for right in dict.fromkeys(_rights(role)):
            operation, kind, *patterns = right.split()
            words = ["kafka-acls.sh", "--bootstrap-server", bootstrap, "--add"]
            words += ["--allow-principal", user, "--operation", operation]
            resources = [
                name for pattern in patterns for name in _named(pattern, plan.topic, groups)
                if name not in absent
            ]  # fmt: skip
            if any(name.endswith("*") for name in resources):
                words += ["--resource-pattern-type", "prefixed"]
            words += [f"--{kind}"] if kind == "cluster" else []
            for name in resources:
                words += [f"--{kind}", name.removesuffix("*")]
            if resources or kind == "cluster":
                yield shlex.join(words)


def _named(pattern: str, topic: str, groups: list[str]) -> list[str]:
    """Put the topic for `A`, and each group for `G`, in dotted names."""
    parts = [topic if part == "A" else part for part in pattern.split(".")]
    if "G" not in parts:
        return [".".join(parts)]
    return [".".join(group if part == "G" else part for part in parts) for group in groups]
