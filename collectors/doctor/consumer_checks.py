"""The checks of clients: do consumers stand, or lose messages, or do certificates end. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from collectors.doctor.facts import (
    FOR_EVER,
    BrokerFacts,
    GroupFacts,
    GroupPosition,
    Role,
    TopicFacts,
    length,
)
from collectors.doctor.finding import Check, Finding, Weight
from multicast.consuming.group_positions import fence_of
from multicast.drivers.certificates import expiry_warning

# Longer than a consumer works on a message, as a rule, or waits with its next commit.
STANDS_MS = 120_000


def of_standing(groups: Iterable[GroupFacts], *, topic: str, now_ms: int) -> list[Finding]:
    """Check that consumers go on, and that all of the plan can be seen."""
    results: list[Finding] = []
    never = [group.group for group in groups if not group.cursor]
    if never:
        says = f"no group has committed for consumers {' '.join(never)}: nobody sees where they are"
        do = "a consumer that commits is seen here: Consumer.commit, 'amcast receive --group NAME'"
        about = f"consumers {' '.join(never)}"
        results.append(Finding(Weight.NOTE, Check.CONSUMER, about, says, do))
    for group in groups:
        name, since = f"consumer {group.group}", group.stands_since_ms
        if since is not None and now_ms - since >= STANDS_MS:
            says = f"{name} has stood for {length(now_ms - since)}, and {group.lag} messages wait"
            if group.committed_ms is not None:
                says += f"; it committed last {length(max(0, now_ms - group.committed_ms))} ago"
            if fence_of(group.cursor):
                says += "; it is exclusive: if it hangs, no other one takes over until it is ended"
            do = (
                f"start it, or see what its process waits for; if it is gone for good, delete the "
                f"consumer group amcast.{topic}.{group.group}"
            )
            results.append(Finding(Weight.WARN, Check.CONSUMER, name, says, do))
    return results


def of_groups(
    groups: Sequence[GroupFacts], topics: Iterable[TopicFacts], *, topic: str, now_ms: int
) -> list[Finding]:
    """Check that retention has not overtaken a consumer, and will not do so soon."""
    by_name = {facts.name: facts for facts in topics}
    results: list[Finding] = []
    for group in groups:
        name = f"consumer {group.group}"
        gone = f"if it is gone for good, delete the consumer group amcast.{topic}.{group.group}"
        if group.problem is not None:
            results.append(Finding(Weight.WARN, Check.CONSUMER, name, group.problem, gone))
        for place in group.places:
            kept = by_name.get(place.topic)
            lost = _overtaken(name, place, kept, now_ms) if kept is not None else None
            if lost is None:
                continue
            if place.position < place.begin:
                do = f"seek it to 'latest', and restore the messages that it skips then; {gone}"
            else:
                do = f"start it, or raise the retention of topic {place.topic}; {gone}"
            results.append(Finding(Weight.WARN, Check.RETENTION, name, lost, do))
    return results


def _overtaken(name: str, place: GroupPosition, topic: TopicFacts, now_ms: int) -> str | None:
    if place.position < place.begin:
        return (
            f"retention deleted messages that {name} has not read: it continues at offset "
            f"{place.position} of {place.log}, which begins at {place.begin}, and will stop with "
            f"an error"
        )
    if place.lag == 0:
        return None
    if topic.kept_ms != FOR_EVER and place.oldest_ms is not None:
        age_ms = now_ms - place.oldest_ms
        if 2 * age_ms >= topic.kept_ms:  # half of the time is left to react
            left = topic.kept_ms - age_ms
            when = f"in {length(left)}" if left > 0 else "at any moment"
            return (
                f"retention may overtake {name} {when}: it has {place.lag} offsets of {place.log} "
                f"to read, the first {length(age_ms)} old; topic {topic.name} keeps them for "
                f"{length(topic.kept_ms)}"
            )
    left_bytes = place.bytes_left or 0
    if topic.kept_bytes != FOR_EVER and 2 * left_bytes >= topic.kept_bytes:
        return (
            f"retention may overtake {name}: it has about {left_bytes} bytes of {place.log} to "
            f"read; topic {topic.name} keeps {topic.kept_bytes}"
        )
    return None


def of_cursors_kept(brokers: Iterable[BrokerFacts], topics: Sequence[TopicFacts]) -> list[Finding]:
    """Check that brokers keep an inactive consumer's cursor as long as its messages."""
    data = [topic.kept_ms for topic in topics if topic.role is Role.DATA]
    longest = FOR_EVER if FOR_EVER in data else max(data, default=0)
    minutes = [int(broker.settings.get("offsets.retention.minutes", -1)) for broker in brokers]
    kept = min((count * 60_000 for count in minutes if count > 0), default=None)
    if kept is None or 0 <= longest <= kept:
        return []
    return [
        Finding(
            Weight.NOTE,
            Check.RETENTION,
            "cursors",
            f"brokers delete the cursor of a consumer that is inactive for {length(kept)}, and "
            f"keep messages longer; without a cursor it begins as its setting 'start' says",
            "raise offsets.retention.minutes of the brokers",
        )
    ]


def of_certificates(ends: Mapping[tuple[str, str], float], now: float) -> list[Finding]:
    """Check, by setting and file, which certificates have ended or do within a month."""
    return [
        Finding(
            Weight.WARN,
            Check.CERTIFICATE,
            file,
            says,
            "the brokers refuse what has ended, or are refused: write the file of a new one",
        )
        for (setting, file), end in ends.items()
        if (says := expiry_warning(f"{setting} ({file})", end, now)) is not None
    ]
