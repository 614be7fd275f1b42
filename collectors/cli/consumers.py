"""What the verbs show of consumers: what waits for each, and since when it stands."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from collectors.cli.cluster import cluster_of
from collectors.consumer_watch import ConsumerWatch
from collectors.doctor.consumer_checks import STANDS_MS
from collectors.doctor.facts import GroupFacts, length
from collectors.doctor.streams import now_ms
from multicast.errors import AccessDenied
from multicast.settings import Settings

CONSUMER_COLUMNS = ("consumer", "epoch", "waits", "for", "last commit", "stands for", "cursor")


def consumer_row(group: GroupFacts, now_ms: int) -> tuple[str, ...]:
    """Describe a consumer's group in the `CONSUMER_COLUMNS`; "-" is none, "?" is unknown."""
    if not group.cursor:
        return group.group, "", "?", "?", "never", "?", ""
    ages = [
        "-" if since is None else length(max(0, now_ms - since))
        for since in (group.oldest_ms, group.committed_ms, group.stands_since_ms)
    ]
    committed = "?" if group.committed_ms is None else f"{ages[1]} ago"
    name = group.group + (" (interest unknown)" if group.guessed else "")
    epoch, waits = str(group.epoch or ""), str(group.lag)
    return name, epoch, waits, ages[0], committed, ages[2], group.cursor


def consumers_of(chosen: Settings) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Look at the consumers of a topic, as `ConsumerWatch` does; and say what cannot be seen."""
    try:
        with (
            cluster_of(chosen) as (driver, admin),
            closing(ConsumerWatch(driver, chosen.topic, admin.groups)) as watch,
        ):
            watch.look()
            return watch.status(), (f"consumers: {watch.error}",) if watch.error else ()
    except AccessDenied as error:
        return [], (f"consumers: {error}",)


def consumer_lines(rows: list[dict[str, Any]]) -> list[str]:
    """Describe consumers as `ConsumerWatch.status` gives them, one a line."""
    lines = []
    for row in rows:
        told = "has never committed: nobody sees where it is"
        if not row["never"]:
            told = row["problem"] or f"{row['lag']} messages wait"
            if row.get("lag_seconds"):
                told += f", the first for {length(int(1000 * row['lag_seconds']))}"
            if row.get("committed_at"):
                ago_ms = max(0, now_ms() - int(1000 * row["committed_at"]))
                told += f"; it committed {length(ago_ms)} ago"
            if 1000 * row.get("stands_seconds", 0) >= STANDS_MS:
                told += "; it stands"
        lines.append(escaped(f"consumer {row['consumer']}: {told}"))
    return lines


def escaped(text: str) -> str:
    """Make what others wrote harmless for a terminal: no control characters."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
