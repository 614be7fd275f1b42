"""The target of copies: which topics may be one, and up to where it holds copies.

The target itself says where a copier is: its last copy and the group's cursor were stored together.
No copy is made twice, whatever the group says; where copies are missing, nobody guesses.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from multicast.consuming.cursor import Cursor
from multicast.control.topics import own_topics, refuse_topic
from multicast.drivers.protocol import Driver, Record, TopicPartition
from multicast.drivers.reading import read_upto
from multicast.errors import Conflict, UsageError

if TYPE_CHECKING:
    from multicast.drivers.kafka import Admin

# A first look at a target's end; where it holds aborted copies only, the next looks further back.
_LOOK_OFFSETS = 64


class CopyTarget(NamedTuple):
    """A topic to copy to, and for how many ms it keeps copies (-1: for ever)."""

    topic: str
    partitions: int
    retention_ms: int


def open_target(admin: Admin, source: str, topic: str, *, by_key: bool) -> CopyTarget:
    """Check a target, or create it, with one partition; raises `UsageError` for an unfit one."""
    refuse_own(source, topic)
    if not admin.partitions([topic]):
        if by_key:
            raise UsageError(f"topic {topic} does not exist: create it with its partitions")
        from multicast.drivers.kafka import TopicSpec  # noqa: PLC0415 - it loads slowly

        admin.create_topics({topic: TopicSpec(1)})
    partitions = admin.partitions([topic])[topic]
    settings = admin.topic_settings([topic])[topic]
    return fit(
        topic, partitions, settings["cleanup.policy"], settings["retention.ms"], by_key=by_key
    )


def refuse_own(source: str, topic: str) -> None:
    """Raise `UsageError` for a topic of the system itself, or what is no topic's name."""
    refuse_topic(topic)
    if topic in (source, *own_topics(source)):
        raise UsageError(f"{topic} belongs to topic {source} itself; copy to another topic")


def fit(topic: str, partitions: int, policy: str, retention_ms: str, *, by_key: bool) -> CopyTarget:
    """Give the target that a topic is; raises `UsageError` if it cannot keep copies in order."""
    if "compact" in policy:
        raise UsageError(
            f"topic {topic} is compacted (cleanup.policy {policy}), which deletes copies whose key "
            f"comes again; copy to a topic with cleanup.policy delete"
        )
    if partitions > 1 and not by_key:
        raise UsageError(
            f"topic {topic} has {partitions} partitions, and between them there is no order: copy "
            f"to a topic of one, or keep the order inside each key only (--partitions-by key)"
        )
    return CopyTarget(topic, partitions, int(retention_ms))


def last_records(
    driver: Driver, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, Record]:
    """Give the last committed record of each of these partitions that holds one."""
    starts, ends = driver.log_start_offsets(partitions), driver.last_stable_offsets(partitions)
    last: dict[TopicPartition, Record] = {}
    for partition in partitions:
        first, end, look = ends[partition], ends[partition], _LOOK_OFFSETS
        while partition not in last and first > starts[partition]:
            before, first = first, max(starts[partition], end - look)
            look *= 16
            record = _last(driver, partition, first, before)
            if record is not None:
                last[partition] = record
    return last


def _last(driver: Driver, partition: TopicPartition, first: int, end: int) -> Record | None:
    last = None
    for fetched in read_upto(driver, partition, first, end):
        last = next((each for each in reversed(fetched.records) if each.offset < end), last)
    return last


def copied_to(
    topic: str,
    records: Iterable[Record],
    stored: Cursor | None,
    header: str,
    *,
    ends: Iterable[int],
) -> Cursor | None:
    """Give the cursor up to which a target holds copies; None: it has never held one.

    `records` are the last ones of its partitions, `stored` is the group's cursor, `ends` are the
    partitions' ends. Raises `Conflict` where another program writes to the target, and where target
    and group do not agree.
    """
    last: Cursor | None = None
    for record in records:
        text = dict(record.headers).get(header)
        if text is None:
            raise Conflict(
                f"the record at offset {record.offset} of {topic} is no copy (no header {header}): "
                f"another program writes there, or copies had another header prefix; copy to a "
                f"topic of its own"
            )
        cursor = Cursor.parse(text.decode(errors="replace"))
        last = cursor if last is None or cursor.rank > last.rank else last
    if stored is None or (last is None and any(ends)):  # retention has deleted all copies
        return stored or last
    # Kafka may commit copies without the cursor behind them (docs/hazards.md): they are there.
    if last is not None and last.rank >= stored.rank:
        return last
    raise Conflict(
        f"the group has copied up to cursor {stored}, and the last copy in {topic} is "
        f"{'none' if last is None else f'that of cursor {last}'}: the topic was recreated or has "
        f"lost its end, or the group was moved on; copy to another topic"
    )
