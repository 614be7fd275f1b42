"""Faults of a topic: retention overtakes a sleeper, a topic is made anew, strangers write to it.

Each function makes its fault in a deployment of its own, and says what it saw; it raises
`Unexpected` where that is not what is promised (see `catalogue.py`).
"""

from __future__ import annotations

from contextlib import closing

from bench.nemesis.isolated.deployment import (
    INTERESTS,
    PATIENCE_S,
    SETS,
    CollectorsProgram,
    Deployment,
    FaultEffect,
    FaultStage,
    expect,
    until,
)
from multicast.consumer import Consumer
from multicast.control import control_partition, log_partition, stream_partition
from multicast.drivers import open_driver
from multicast.drivers.kafka_python import TopicSpec
from multicast.drivers.protocol import Driver, TopicPartition
from multicast.errors import AmcastError, Trimmed
from multicast.messages import EPOCH, SKIP, TO
from multicast.subscription import Bounds

_MESSAGES = 300
_SLEEPS_AT = 40
_TINY = Bounds(buffer_bytes_max=2000, runs_max=2)  # so that a sleeper holds little in memory


def trimmed(stage: FaultStage) -> FaultEffect:
    """Retention goes past where consumers sleep: each gets `Trimmed`, none a silent gap.

    One sleeps in front of payload, one of an order stream, one of a log that it reads alone; one
    more has its consumer open all the while.
    """
    with Deployment(stage, "trimmed") as own, _exact(own) as exact:
        own.collectors()
        own.multicast(_MESSAGES)
        for name in INTERESTS:
            _sleep(own, name)
        with _open(own, exact) as awake:
            batches = awake.poll(PATIENCE_S, messages_max=_SLEEPS_AT)
            own.multicast(_MESSAGES)
            whole = {name: own.read_all(name) for name in INTERESTS}
            last = 2 * _MESSAGES // len(SETS) - 1
            logs = [log_partition(own.plan.log(name)) for name in ("P1", "P4")]
            stream = stream_of(own, "C2")
            end = own.driver.last_stable_offsets([stream])[stream]
            own.admin.delete_records({**dict.fromkeys(logs, last), stream: end})
            seen = own.note("C1", "awake", batches)
            seen += _until_named(own, awake, "C1", "awake", Trimmed)
            expect(seen == whole["C1"][: len(seen)], "an open consumer saw a gap before Trimmed")
            report = own.judged()
            # What is left for it to do: to give up what is gone, and go on from now.
            awake.seek("latest")
            own.multicast(len(SETS))
            after = [record for batch in awake.until_end() for record in batch.records]
            expect(after, "nothing came to a consumer that went on from 'latest'")
        for name, known in whole.items():
            _wake(own, name, known)
        says = "3 sleeping consumers and an open one were told that retention went past them"
        return own.told("trimmed", report, says)


def _exact(own: Deployment) -> closing[Driver]:
    """Open the driver that fetches nothing ahead."""
    return closing(open_driver("kafka-python", own.bootstrap))


def _open(own: Deployment, driver: Driver) -> Consumer:
    return Consumer(topic=own.topic, name="C1", driver=driver, committed=False, bounds=_TINY)


def stream_of(own: Deployment, consumer: str) -> TopicPartition:
    """Name the order stream that a consumer reads."""
    entry = own.plan.subscription(consumer)
    assert entry is not None
    assert entry.collector is not None
    return stream_partition(own.plan, entry.collector)


def _sleep(own: Deployment, name: str) -> None:
    """Have a consumer commit its cursor in the middle, and end."""
    done = own.run("receive", "-n", name, "-g", f"{name}-sleeper", "-c", str(_SLEEPS_AT))
    expect(done.code == 0, f"'amcast receive' ended with {done.code}: {done.err[-300:]}")


def _wake(own: Deployment, name: str, whole: list[str]) -> None:
    """Have it go on; it must fail by name, and what it printed must be what comes next."""
    done = own.run("receive", "-n", name, "-g", f"{name}-sleeper", "-e")
    done.refused("cannot be read from offset", "the log holds")
    seen = [line.split('"message_id": "')[1].split('"')[0] for line in done.out.splitlines()]
    after = whole[_SLEEPS_AT:]
    expect(seen == after[: len(seen)], f"{name} skipped messages before it was told: {seen[:3]}")
    expect(len(seen) < len(after), f"nothing of what {name} was to read was trimmed")


def _until_named(
    own: Deployment, consumer: Consumer, name: str, instance: str, *named: type[AmcastError]
) -> list[str]:
    """Deliver until one of these errors comes; note and give what was delivered before it."""
    seen: list[str] = []

    def refused() -> bool:
        try:
            seen.extend(own.note(name, instance, consumer.poll(0.1)))
        except named:
            return True
        return False

    until(refused, f"{' or '.join(one.__name__ for one in named)} at consumer {name}")
    return seen


def remade(stage: FaultStage) -> FaultEffect:
    """Delete a topic and make it again: all name it, no hole is filled, nothing of it delivered."""
    with Deployment(stage, "remade") as own:
        host = own.collectors()
        own.multicast(_MESSAGES)
        for name in INTERESTS:
            _sleep(own, name)
            own.read_all(name)
        report = own.judged()
        make_again(own)
        until(lambda: named(host), "a collector that says that its topic is another one")
        fill_again(own)
        for name in INTERESTS:
            done = own.run("receive", "-n", name, "-g", f"{name}-sleeper", "-e")
            done.refused("is not the one that epoch 1 was applied to")
            expect(not done.out, f"{name} delivered from a topic that was made again")
        found = [record for at in _places(own) for record in own.records(at)]
        skips = [one for one in found if any(name == SKIP for name, _ in one.headers)]
        expect(not skips, f"{len(skips)} holes of the new topic were filled")
        says = "collector and consumers named the topic that was made again; no hole was filled"
        return own.told("remade", report, says)


def make_again(own: Deployment) -> None:
    """Delete the topic of a deployment, and make it again, empty."""
    own.admin.delete_topics([own.topic])
    own.admin.create_topics({own.topic: TopicSpec(len(own.plan.partitions))})


def fill_again(own: Deployment) -> None:
    """Fill the topic that was made again, further than it ever went before."""
    for at in _places(own):
        own.strange(at, *[b"of another topic"] * (3 * _MESSAGES // len(SETS)))


def _places(own: Deployment) -> list[TopicPartition]:
    return [TopicPartition(own.topic, number) for number in range(len(own.plan.partitions))]


def named(host: CollectorsProgram) -> bool:
    """Whether a collector says that its topic is not the one of its plan."""
    told = [one.get("error") or "" for one in host.nodes()]
    return any("is not the one that epoch" in error for error in told)


def foreign(stage: FaultStage) -> FaultEffect:
    """Strangers append to data, order and control topics: skipped, counted; the order is the same.

    A record of a stranger in a log is a message like any other, whatever its headers pretend.
    """
    with Deployment(stage, "foreign") as own:
        own.collectors()
        own.multicast(_MESSAGES)
        before = {name: own.read_all(name, "before", ended=False) for name in INTERESTS}
        written = 0
        for node in own.plan.collectors:
            at = stream_partition(own.plan, node.name)
            records = own.records(at)
            noise = [b"", b"TO", b"\x00" * 80, b"TO\x01" + b"\xff" * 90]
            noise += [records[0].value or b"", records[-1].value or b""]
            for value in noise:
                own.strange(at, value)
            written += len(noise)
        _write_odd_messages(own)
        own.strange(control_partition(own.topic), b"{", key=b"plan/2/00/stranger")
        own.multicast(_MESSAGES)
        for name, known in before.items():
            after = own.read_all(name)
            expect(after[: len(known)] == known, f"the order of {name} changed")
        report = own.judged()
        status = own.run("collectors", "status", flags=("-o", "json"))
        void = sum(int(part.split(",")[0]) for part in status.out.split('"void": ')[1:])
        expect(void >= written, f"{written} foreign order records were written, {void} counted")
        says = f"{written} foreign order records were void, the order stayed as it was"
        return own.told("foreign", report, says)


def _write_odd_messages(own: Deployment) -> None:
    """Multicast with a plain client; headers that look like ours and are not."""
    for log in own.plan.logs:
        odd = (
            (SKIP, b"elsewhere"),
            (EPOCH, log.name.encode() + b"|soon"),
            (TO, log.name.encode() + b"|P9,P1"),
            ("amcast.unknown", b"\xff"),
        )
        for header in odd:
            offset = own.strange(log_partition(log), b"\xff\x00?", headers=(header,))
            own.accepted("stranger", f"{log.name}:{offset}", log.to)
