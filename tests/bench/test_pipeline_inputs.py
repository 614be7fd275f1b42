"""Wrong input of `amcast bench pipeline`: one sentence, code 2; trimmed events are not judged."""

import itertools

import pytest

from bench.comparison.events import events_topic
from bench.pipeline.inputs import check_events, claim
from multicast.drivers.memory.driver import MemoryDriver
from multicast.drivers.memory.logs import MemoryLog
from multicast.drivers.protocol import TopicPartition
from multicast.errors import UsageError


class TopicCounts:
    """A cluster's topics, with the number of their Kafka partitions."""

    def __init__(self, **counts):
        self.counts = {events_topic(run): count for run, count in counts.items()}

    def partitions(self, topics):
        return {topic: self.counts[topic] for topic in topics if topic in self.counts}


def test_a_run_without_events_or_with_trimmed_events_is_refused():
    topics = TopicCounts(r1=2, r2=2)
    log = MemoryLog(topics.counts)
    driver = MemoryDriver(log)
    for topic, number in itertools.product(topics.counts, range(2)):
        log.write(TopicPartition(topic, number), b"an event")
    check_events(topics, driver, ["r1", "r2"])
    with pytest.raises(UsageError, match=r"no topic nosuch\.events, so run nosuch has no events"):
        check_events(topics, driver, ["r1", "nosuch"])
    log.trim(TopicPartition("r2.events", 1), 1)
    check_events(topics, driver, ["r1"])
    with pytest.raises(UsageError, match="partition 1 begins at offset 1") as refused:
        check_events(topics, driver, ["r1", "r2"])
    assert str(refused.value).startswith("topic r2.events has lost its oldest events")


def test_a_folder_that_holds_anything_is_refused(tmp_path):
    claim(str(tmp_path / "new" / "out"))
    claim(str(tmp_path / "new" / "out"))  # Spark did not start
    with pytest.raises(UsageError, match="is not empty; name another folder"):
        claim(str(tmp_path))
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="cannot be used for --out"):
        claim(str(tmp_path / "file"))
