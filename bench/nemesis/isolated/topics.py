"""Isolated faults of a topic: retention overtakes consumers, recreation.

Each function injects its fault into a deployment and returns what it saw; it raises `Unexpected` if
that is not what is promised (see `faults/isolated.py`).
"""

from __future__ import annotations

from contextlib import closing

from bench.harness.processes import CollectorProcess
from bench.harness.rig import store
from bench.nemesis.isolated.deployment import (
    INTERESTS,
    PATIENCE_S,
    SETS,
    Deployment,
    FaultEffect,
    FaultSite,
    expect,
    until,
)
from multicast.consuming.consumer import Consumer
from multicast.consuming.subscription import Bounds
from multicast.control import log_partition, stream_partition
from multicast.drivers import open_driver
from multicast.drivers.kafka import TopicSpec
from multicast.drivers.protocol import Driver, TopicPartition
from multicast.errors import Trimmed
from multicast.messages import SKIP

_MESSAGES = 300
_SLEEPS_AT = 40  # messages that a consumer delivers before it sleeps
_TINY = Bounds(buffer_bytes_max=2000, runs_max=2)  # so that an open consumer buffers little


def trimmed(site: FaultSite) -> FaultEffect:
    """Let retention delete what sleeping consumers need: each gets `Trimmed`, none a silent gap.

    One consumer lacks payloads, one order records, one is a lone reader; a further one stays open.
    """
    with Deployment(site, "trimmed") as deployment, _exact(deployment) as exact:
        deployment.collectors()
        deployment.multicast(_MESSAGES)
        for name in INTERESTS:
            _sleep(deployment, name)
        with _open(deployment, exact) as awake:
            batches = awake.poll(PATIENCE_S, messages_max=_SLEEPS_AT)
            deployment.multicast(_MESSAGES)
            whole = {name: deployment.read_all(name) for name in INTERESTS}
            last = 2 * _MESSAGES // len(SETS) - 1
            logs = [log_partition(deployment.plan.log(name)) for name in ("P1", "P4")]
            stream = stream_of(deployment, "C2")
            end = deployment.driver.last_stable_offsets([stream])[stream]
            deployment.admin.delete_records({**dict.fromkeys(logs, last), stream: end})
            seen = deployment.note("C1", "awake", batches)
            seen += _until_trimmed(deployment, awake)
            expect(seen == whole["C1"][: len(seen)], "an open consumer saw a gap before Trimmed")
            report = deployment.judge()
            # It can still give up the deleted messages, and continue from now.
            awake.seek("latest")
            deployment.multicast(len(SETS))
            after = [record for batch in awake.until_end() for record in batch.records]
            expect(after, "a consumer that sought 'latest' delivered nothing")
        for name, known in whole.items():
            _wake(deployment, name, known)
        says = "3 sleeping consumers and an open one got an error after retention overtook them"
        return deployment.effect("trimmed", report, says)


def _exact(deployment: Deployment) -> closing[Driver]:
    """Open the driver without prefetching."""
    return closing(open_driver("kafka-python", deployment.bootstrap))


def _open(deployment: Deployment, driver: Driver) -> Consumer:
    return Consumer(topic=deployment.topic, name="C1", driver=driver, committed=False, bounds=_TINY)


def stream_of(deployment: Deployment, consumer: str) -> TopicPartition:
    """Return the order stream that a consumer reads."""
    entry = deployment.plan.subscription(consumer)
    assert entry is not None
    assert entry.collector is not None
    return stream_partition(deployment.plan, entry.collector)


def _sleep(deployment: Deployment, name: str) -> None:
    """Let a consumer commit its cursor in the middle, and end."""
    done = deployment.run("receive", "-n", name, "-g", f"{name}-sleeper", "-c", str(_SLEEPS_AT))
    expect(done.code == 0, f"'amcast receive' ended with {done.code}: {done.err[-300:]}")


def _wake(deployment: Deployment, name: str, whole: list[str]) -> None:
    """Resume it: it must fail with `Trimmed`, after printing only the messages that follow."""
    done = deployment.run("receive", "-n", name, "-g", f"{name}-sleeper", "-e")
    done.refused("cannot be read from offset", "the log holds")
    seen = [line.split('"message_id": "')[1].split('"')[0] for line in done.out.splitlines()]
    after = whole[_SLEEPS_AT:]
    expect(seen == after[: len(seen)], f"{name} skipped messages before its error: {seen[:3]}")
    expect(len(seen) < len(after), f"retention deleted nothing that {name} needs")


def _until_trimmed(deployment: Deployment, consumer: Consumer) -> list[str]:
    """Deliver to C1 until it gets `Trimmed`; note and return the deliveries before it."""
    seen: list[str] = []

    def refused() -> bool:
        try:
            seen.extend(deployment.note("C1", "awake", consumer.poll(0.1)))
        except Trimmed:
            return True
        return False

    until(refused, "the error of an open consumer that was overtaken")
    return seen


def recreated(site: FaultSite) -> FaultEffect:
    """Recreate a topic: all report it, no hole is filled, none of its messages is delivered."""
    with Deployment(site, "remade") as deployment:
        host = deployment.collectors()
        deployment.multicast(_MESSAGES)
        for name in INTERESTS:
            _sleep(deployment, name)
            deployment.read_all(name)
        report = deployment.judge()
        recreate(deployment)
        until(lambda: named(host), "a collector's report that its topic was recreated")
        refill(deployment)
        for name in INTERESTS:
            done = deployment.run("receive", "-n", name, "-g", f"{name}-sleeper", "-e")
            done.refused("is not the one that epoch 1 was applied to")
            expect(not done.out, f"{name} delivered from a recreated topic")
        records = [
            record
            for partition in _partitions(deployment)
            for record in deployment.records(partition)
        ]
        skips = [record for record in records if any(name == SKIP for name, _ in record.headers)]
        expect(not skips, f"{len(skips)} holes of the new topic were filled")
        says = "collector and consumers reported the recreated topic; no hole was filled"
        return deployment.effect("remade", report, says)


def recreate(deployment: Deployment) -> None:
    """Delete the topic of a deployment, and create it again, empty."""
    deployment.admin.delete_topics([deployment.topic])
    deployment.admin.create_topics({deployment.topic: TopicSpec(len(deployment.plan.partitions))})


def refill(deployment: Deployment) -> None:
    """Append to the recreated topic, beyond its old end."""
    values = [b"of another topic"] * (3 * _MESSAGES // len(SETS))
    chunks = ((partition, values) for partition in _partitions(deployment))
    store(deployment.driver, chunks, timeout_s=PATIENCE_S)


def _partitions(deployment: Deployment) -> list[TopicPartition]:
    return [
        TopicPartition(deployment.topic, number)
        for number in range(len(deployment.plan.partitions))
    ]


def named(host: CollectorProcess) -> bool:
    """Whether a collector reports that its topic is not the one of its plan."""
    errors = [node.get("error") or "" for node in host.status()["nodes"]]
    return any("is not the one that epoch" in error for error in errors)
