"""Isolated faults: clocks an hour off, consumers absent during two epochs.

None of them may affect an order. Each function injects its fault into a deployment and returns what
it saw; it raises `Unexpected` if that is not what is promised (see `faults/isolated.py`).
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.nemesis.isolated.deployment import (
    INTERESTS,
    PATIENCE_S,
    SETS,
    Deployment,
    FaultEffect,
    FaultSite,
    expect,
    planned,
    until,
)
from collectors.reconfiguration.apply import apply
from multicast.control import log_partition
from multicast.errors import AmcastError
from multicast.producing.producer import Producer
from multicast.producing.receipts import Receipt
from topology.rollback import back

_HOUR_S = 3600  # more than any time-out of the system
_FAR_S = 3000.0  # a clock that is so far off is wrong, even if a slow machine stamps late
_MESSAGES = 300
_SKEWED = "bench.nemesis.skewed"


def skewed_clocks(site: FaultSite) -> FaultEffect:
    """Run collectors and producers with clocks an hour ahead, an hour behind, and alternating.

    Two processes share the collectors. The timestamps of messages prove that the clocks were wrong;
    those of order records are the brokers', which are right.
    """
    with Deployment(site, "skewed-clocks") as deployment:
        for off in (f"{_HOUR_S}", f"-{_HOUR_S}"):
            deployment.collectors(program=(_SKEWED, off))
        files: list[Path] = []
        for off in (f"{_HOUR_S}", f"-{_HOUR_S}", f"strobe:{_HOUR_S}"):
            files.append(deployment.folder / f"producer-{len(files)}.jsonl")
            _send(deployment, off, files[-1])
        stamps: list[float] = []
        for name in INTERESTS:
            deployment.read_all(name)
        now = time.time()
        for log in deployment.plan.logs:
            stamps += [r.timestamp_ms / 1000 - now for r in deployment.records(log_partition(log))]
        _expect_far("producers'", stamps)
        orders = [abs(stamp) for stamp in _stamps_of_orders(deployment, now)]
        expect(max(orders) < _FAR_S, "no clock but the brokers' should stamp order records")
        says = "clocks of collectors and producers were an hour off, and the order held"
        return deployment.effect("skewed-clocks", deployment.judge(*files), says)


def _send(deployment: Deployment, off: str, history: Path) -> None:
    """Multicast with a producer whose clock is wrong; kafka-python stamps with Python's clock."""
    lines = [
        json.dumps({"to": SETS[number % len(SETS)], "payload": f"{off} {number}"})
        for number in range(_MESSAGES)
    ]
    done = deployment.run(
        "send",
        flags=("--history", str(history), "--producer", history.stem, "--ordered"),
        program=(_SKEWED, off),
        driver="kafka-python",
        stdin="\n".join(lines),
    )
    expect(done.code == 0, f"'amcast send' {off} s off ended with {done.code}: {done.err[-300:]}")


def _stamps_of_orders(deployment: Deployment, now: float) -> list[float]:
    """Return how far off the times of tickets and relays are, in seconds."""
    return [
        record.timestamp_ms / 1000 - now
        for node in deployment.plan.collectors
        for record in deployment.records(deployment.stream(node.name))
    ]


def _expect_far(whose: str, stamps: Sequence[float]) -> None:
    ahead, behind = max(stamps), min(stamps)
    expect(
        ahead > _FAR_S and behind < -_FAR_S,
        f"{whose} clocks should be an hour off in both directions; their stamps are {behind:.0f} "
        f"to {ahead:.0f} s off",
    )


@contextmanager
def _load(deployment: Deployment) -> Iterator[list[Receipt]]:
    """Multicast about 300 messages a second meanwhile; afterwards the receipts are complete."""
    receipts: list[Receipt] = []
    stop = threading.Event()
    failed: list[AmcastError] = []

    def send() -> None:
        try:
            with Producer(topic=deployment.topic, driver=deployment.driver) as producer:
                while not stop.wait(0.003):
                    to = SETS[len(receipts) % len(SETS)]
                    receipts.append(producer.multicast(b"%d" % len(receipts), to=to))
                producer.flush(PATIENCE_S)
        except AmcastError as error:
            failed.append(error)

    thread = threading.Thread(target=send, name="aside-load", daemon=True)
    thread.start()
    try:
        yield receipts
    finally:
        stop.set()
        thread.join(2 * PATIENCE_S)
    if failed:
        raise failed[0]


def away_two_epochs(site: FaultSite) -> FaultEffect:
    """Let consumers that were absent during two epochs catch up through both, under load."""
    with Deployment(site, "away-two-epochs") as deployment:
        deployment.collectors()
        plans = [deployment.plan, planned(deployment.topic, phi=0.1)]
        with _load(deployment) as receipts:
            files = [_leave(deployment, name) for name in INTERESTS]
            for turn in (1, 0):
                until(lambda: len(receipts) > 300 * len(deployment.epochs), "some load")
                after = back(plans[turn], deployment.plan)
                deployment.plan = apply(
                    deployment.driver, deployment.admin, after, timeout_s=PATIENCE_S
                ).plan
                deployment.epochs.append(deployment.plan)
            # They catch up while more messages come; the rest is read below.
            for name in INTERESTS:
                files.append(deployment.folder / f"{name}-back.jsonl")
                _receive(deployment, name, files[-1], "b", "-c", str(len(receipts) // len(SETS)))
        deployment.acknowledged("load", receipts)
        for name in INTERESTS:
            files.append(deployment.folder / f"{name}-end.jsonl")
            _receive(deployment, name, files[-1], "c", "-e")
            seen = {line["cursor"].partition("/")[0] for line in _lines(files) if _of(line, name)}
            # A log that no plan changes stays in its epoch: that of the lone reader C4.
            wanted = {"1"} if name == "C4" else {"1", "2", "3"}
            expect(seen >= wanted, f"{name} delivered in epochs {sorted(seen)}")
            deployment.read_all(name, "all along")
        says = "3 consumers that were away during 2 epochs caught up through both under load"
        return deployment.effect("away-two-epochs", deployment.judge(*files), says)


def _leave(deployment: Deployment, name: str) -> Path:
    """Let a consumer deliver a few messages, commit, and end."""
    file = deployment.folder / f"{name}-before.jsonl"
    _receive(deployment, name, file, "a", "-c", "20")
    return file


def _receive(deployment: Deployment, name: str, file: Path, instance: str, *flags: str) -> None:
    done = deployment.run(
        "receive",
        *("-n", name, "-g", f"{name}-away", "--history", str(file), "--instance", instance),
        flags=flags,
    )
    expect(done.code == 0, f"'amcast receive' ended with {done.code}: {done.err[-300:]}")


def _lines(files: Sequence[Path]) -> Iterator[dict[str, str]]:
    for file in files:
        for line in file.read_text(encoding="utf-8").splitlines():
            yield json.loads(line)


def _of(line: dict[str, str], name: str) -> bool:
    return line.get("consumer") == name and "cursor" in line
