"""A joint appender under test, and the outcomes of each partition in the order they came."""

import threading
import time
import uuid
from collections import Counter, defaultdict

from multicast.drivers.appender.entries import prepared
from multicast.drivers.kafka import Admin, KafkaPythonDriver, TopicSpec
from multicast.drivers.protocol import Appended, JointRecord, TopicPartition
from tests.helpers.driver_worlds import values, whole
from tests.helpers.system import PATIENCE_S, until

WAITING_MAX = 20_000  # so that a long outage does not fill the appender's buffer


class Joint:
    """An appender that reaches the cluster by `bootstrap`."""

    def __init__(
        self, cluster, *, bootstrap=None, client=None, settings=None, beside=None, tuning=None
    ):
        self.cluster = cluster
        self.name = f"joint-{uuid.uuid4().hex[:8]}"
        self.driver = KafkaPythonDriver(
            bootstrap or cluster.bootstrap,
            {"client.id": self.name, **(client or {})},
            **(settings or {}),
        )
        self.appender = self.driver.appender(beside=beside, **(tuning or {}))
        self.sent = defaultdict(list)
        self.outcomes = defaultdict(list)

    def topic(self, partitions=1, *, settings=None, replication=None):
        topic = f"joint-{uuid.uuid4().hex[:8]}"  # all workers share a broker
        more = {} if replication is None else {"replication": replication}
        with Admin(self.cluster.bootstrap) as admin:
            admin.create_topics({topic: TopicSpec(partitions, settings=settings or {}, **more)})
        return [TopicPartition(topic, number) for number in range(partitions)]

    def record(self, partition, value, **fields):
        """Make a record whose outcome is noted; give it to the appender, or return it for that."""
        self.sent[partition].append(value)

        def done(outcome):
            self.outcomes[partition].append((value, outcome))

        return JointRecord(partition, value, done, **fields)

    def append(self, partition, value):
        self.appender.append(partition, value, done=self.record(partition, value).done)

    def append_each(self, partitions, value):
        """Append to several partitions, in one request if they have the same leader."""
        entries = prepared([self.record(to, value) for to in partitions])
        dispatcher, now = self.appender._dispatcher, time.monotonic()
        with self.appender._lock:
            for to, entry in entries:
                dispatcher.unsettled += 1
                dispatcher.unsettled_bytes += entry.size
                dispatcher._enqueue(to, entry, now)
            dispatcher.send_all(now)

    def count(self):
        return sum(map(len, self.outcomes.values()))

    def settle(self):
        assert self.appender.flush(PATIENCE_S)
        until(self.appender._dispatcher.has_no_beside, "the outcomes of what goes beside")

    def append_surely(self, partition, value):
        """Append until one is accepted: a broker may have restarted a moment ago."""

        def accepted():
            self.append(partition, value + b" %d" % len(self.sent[partition]))
            self.settle()
            return isinstance(self.outcomes[partition][-1][1], Appended)

        until(accepted, "an acknowledgement")

    def log(self, partition):
        return values(whole(self.driver, partition))

    def judge(self, partition):
        """Check all promises about a partition; return the errors by value."""
        told = self.outcomes[partition]
        assert [value for value, _ in told] == self.sent[partition], "outcomes are out of order"
        log = self.log(partition)
        assert max(Counter(log).values(), default=1) == 1, "a record is stored twice"
        places = {value: place for place, value in enumerate(self.sent[partition])}
        assert [places[value] for value in log] == sorted(places[value] for value in log)
        for value, outcome in told:
            if isinstance(outcome, Appended):
                assert log[outcome.offset] == value
            elif outcome.error.definite:
                assert value not in log
        return {value: done.error for value, done in told if not isinstance(done, Appended)}

    def close(self):
        self.appender.close()
        self.driver.close()


def append_pairs_until(joint, partitions, condition):
    """Append groups of records, some hundred a second, until a condition holds."""
    deadline = time.monotonic() + PATIENCE_S
    pace = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "it never came to be"
        waiting = sum(map(len, joint.sent.values())) - joint.count()
        if waiting < WAITING_MAX:
            joint.append_each(partitions, b"pair %d" % len(joint.sent[partitions[0]]))
        pace.wait(0.001)
