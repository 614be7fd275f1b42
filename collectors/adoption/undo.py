"""What `amcast adopt --undo` deletes: every topic that amcast made beside the one with the data."""

from __future__ import annotations

from contextlib import closing

from collectors.membership import group_of
from collectors.reconfiguration.status_pages import read_pages
from multicast.control import ControlReader, control_topics, own_topics
from multicast.drivers.kafka import Admin
from multicast.drivers.protocol import Driver, TopicPartition
from multicast.errors import UsageError


def topics_to_delete(driver: Driver, admin: Admin, topic: str) -> dict[str, int]:
    """Give amcast's own topics of an adopted topic, in the order of deletion, and their records.

    The plans' topic comes first: without it no process begins. Raises `UsageError` if none of them
    is there, or where a process of collectors runs, by its group or its status page.
    """
    names = own_topics(topic)
    counts = admin.partitions(names)
    if not counts:
        raise UsageError(f"topic {topic} is not adopted: none of {', '.join(names)} exists")
    if all(name in counts for name in control_topics(topic)):
        _refuse_running(driver, admin, topic)
    parts = {name: [TopicPartition(name, n) for n in range(counts[name])] for name in counts}
    logs = [partition for each in parts.values() for partition in each]
    first, end = driver.log_start_offsets(logs), driver.high_watermarks(logs)
    return {
        name: sum(end[log] - first[log] for log in parts[name]) for name in names if name in parts
    }


def _refuse_running(driver: Driver, admin: Admin, topic: str) -> None:
    with closing(ControlReader(driver, topic)) as control:
        state = control.refresh()
    group = group_of(topic)
    joined = admin.groups(group).get(group, "Empty") not in ("Empty", "Dead")
    answers = read_pages(set(filter(None, state.advertised.pages.values()))).values()
    if joined or any(not isinstance(answer, str) for answer in answers):
        raise UsageError(f"a process of collectors of topic {topic} runs: stop it first")
