"""What the verbs show of consumers: what waits for each, and since when it stands."""

from __future__ import annotations

from collectors.doctor.facts import GroupFacts, length

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


def escaped(text: str) -> str:
    """Make what others wrote harmless for a terminal: no control characters."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
