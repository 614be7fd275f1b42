"""A whole system in one process, on a log in memory: for tests of the shells."""

import threading
import time
from contextlib import closing

from collectors.engine.engine import Engine
from collectors.engine.instance import CollectorInstance
from multicast import Consumer, Producer
from multicast.control import (
    ControlReader,
    collectors_partition,
    control_partition,
    control_topics,
    groups_topic,
    order_topic,
    plan_record,
)
from multicast.drivers.memory.driver import MemoryDriver, MemoryLog
from multicast.errors import AmcastError


def until(condition, timeout=60.0, pause=0.005):
    """Wait until something is so; the time-out only stops a hang."""
    deadline = time.monotonic() + timeout
    waiting = threading.Event()
    while not (answer := condition()):
        assert time.monotonic() < deadline, "it never came to be"
        waiting.wait(pause)
    return answer


def values(batches):
    """Give the payloads of batches, in order."""
    return [record.value for batch in batches for record in batch.records]


def state_of(system):
    """Read what the control topic of a system, in memory or on brokers, says now."""
    with closing(ControlReader(system.driver, system.topic)) as control:
        return control.refresh()


class Small:
    """A plan in force on a log in memory, and its collectors as threads."""

    def __init__(self, plan, *, limits=None):
        self.plan = plan
        self.topic = plan.topic
        self.log = MemoryLog(
            {
                plan.topic: len(plan.partitions),
                groups_topic(plan.topic): max(4, len(plan.logs)),
                order_topic(plan.topic): max(4, len(plan.collectors)),
                **dict.fromkeys(control_topics(plan.topic), 1),
            },
            threaded=True,
        )
        self.driver = MemoryDriver(self.log)
        self._limits = limits
        self._running = []
        self.errors = {}
        self.propose(plan)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for node, thread in self._running:
            node.stop()
            thread.join(60)
            assert not thread.is_alive()

    def write(self, record):
        key, value = record
        states = key.startswith((b"checkpoint/", b"loss/", b"lost-stream/", b"running/"))
        partition = collectors_partition if states else control_partition
        self.log.write(partition(self.plan.topic), value, key=key)

    @property
    def previous(self):
        """What the next plan, markers or ends name as the statement before them."""
        return state_of(self).previous

    def propose(self, plan):
        self.write(plan_record(self.previous, plan, attempt="1"))

    def run(self, name, *, page=None, **options):
        """Run an instance in an engine of its own, as in a process of its own.

        Gives the node, and a thread that ends when it has. Raises what stops it from the start.
        Two instances of a collector with different pages can tell each other apart.
        """
        engine = Engine(self.driver, self.plan.topic, page=page)
        node = CollectorInstance(engine, name, limits=self._limits, **options)

        def ended():
            if isinstance(node.error, AmcastError):
                self.errors[name] = node.error

        def run():
            node.ended.wait()
            engine.close()

        node.on_end = ended
        thread = threading.Thread(target=run)
        engine.add(node)
        thread.start()
        due = engine.control.starts(node.plan.epoch) is not None
        until(lambda: (node.begun if due else node.is_open) or node.ended.is_set())
        if node.error is not None:
            thread.join(60)
            raise node.error
        self._running.append((node, thread))
        return node, thread

    def run_all(self, **options):
        return [self.run(node.name, **options) for node in self.plan.collectors]

    def consumer(self, name, **options):
        return Consumer(topic=self.plan.topic, name=name, driver=self.driver, **options)

    def producer(self, *, driver=None, **options):
        return Producer(topic=self.plan.topic, driver=driver or self.driver, **options)

    def all(self, name, *, into=None, **options):
        """Read all from the start on; give the messages' IDs, into a list if one is given."""
        read = [] if into is None else into
        with self.consumer(name, committed=False, **options) as consumer:
            for batch in consumer.until_end(timeout=60):
                read += [f"{batch.log.label}:{record.offset}" for record in batch.records]
        return read
