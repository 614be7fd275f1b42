"""Clocks an hour off, announcements that lie, and a consumer that was away during two epochs.

Nothing of this may show in any order. Each function makes its fault in a deployment of its own, and
says what it saw; it raises `Unexpected` where that is not what is promised (see `catalogue.py`).
"""

from __future__ import annotations

import json
import socket
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
    FaultStage,
    expect,
    planned,
    until,
)
from collectors.reconfiguration.apply import apply
from multicast.announcements import Address, Announcement, Count, encode
from multicast.control import ControlReader, log_partition
from multicast.errors import AmcastError
from multicast.order import decode
from multicast.producer import Producer, Receipt
from topology.rollback import back

_HOUR_S = 3600
_FAR_S = 3000.0  # a clock is surely wrong, on a machine that is slow, too
_MESSAGES = 300
_SKEWED = "bench.nemesis.skewed"
_LIES = 200


def skewed_clocks(stage: FaultStage) -> FaultEffect:
    """Clocks of collectors and producers are an hour ahead, behind, and jump to and fro.

    Two processes share out the collectors. That the clocks were wrong is seen in the stamps of
    messages and of order records; the brokers' clocks are right.
    """
    with Deployment(stage, "skewed-clocks") as own:
        for off in (f"{_HOUR_S}", f"-{_HOUR_S}"):
            own.collectors(program=(_SKEWED, off))
        files: list[Path] = []
        for off in (f"{_HOUR_S}", f"-{_HOUR_S}", f"strobe:{_HOUR_S}"):
            files.append(own.folder / f"producer-{len(files)}.jsonl")
            _send(own, off, files[-1])
        stamps: list[float] = []
        for name in INTERESTS:
            own.read_all(name)
        now = time.time()
        for log in own.plan.logs:
            stamps += [r.timestamp_ms / 1000 - now for r in own.records(log_partition(log))]
        _expect_far("producers'", stamps)
        _expect_far("collectors'", _stamps_of_orders(own, now))
        says = "clocks of collectors and producers were an hour off, and the order held"
        return own.told("skewed-clocks", own.judged(*files), says)


def _send(own: Deployment, off: str, history: Path) -> None:
    """Multicast by a producer whose clock is wrong; kafka-python stamps with Python's clock."""
    lines = [
        json.dumps({"to": SETS[number % len(SETS)], "payload": f"{off} {number}"})
        for number in range(_MESSAGES)
    ]
    done = own.run(
        "send",
        flags=("--history", str(history), "--producer", history.stem, "--ordered"),
        program=(_SKEWED, off),
        driver="kafka-python",
        stdin="\n".join(lines),
    )
    expect(done.code == 0, f"'amcast send' {off} s off ended with {done.code}: {done.err[-300:]}")


def _stamps_of_orders(own: Deployment, now: float) -> list[float]:
    """Say how far off the clocks are that stamped the order records."""
    streams = [own.records(own.stream(node.name)) for node in own.plan.collectors]
    records = [decode(record.value or b"") for stream in streams for record in stream]
    return [record.time_ms / 1000 - now for record in records]


def _expect_far(whose: str, stamps: Sequence[float]) -> None:
    ahead, behind = max(stamps), min(stamps)
    expect(
        ahead > _FAR_S and behind < -_FAR_S,
        f"{whose} clocks were to be an hour off to both sides; their stamps are {behind:.0f} to "
        f"{ahead:.0f} s off",
    )


def lying_announcements(stage: FaultStage) -> FaultEffect:
    """Announce what never comes, what has come long ago, twice, too much, and for others.

    A stranger who knows the token does it, while messages flow.
    """
    with Deployment(stage, "lying-announcements") as own:
        host = own.collectors()
        until(lambda: _addresses(own), "a collector that listens")
        addresses = _addresses(own)
        with _load(own) as receipts, socket.socket(type=socket.SOCK_DGRAM) as to:
            for turn in range(_LIES):
                for name, address in addresses.items():
                    for raw in _lies(own, name, address, turn):
                        to.sendto(raw, (address.host, address.port))
                threading.Event().wait(0.02)
            heard = sum(one.get("announcements", 0) for one in host.nodes())
        own.acknowledged("load", receipts)
        expect(heard > _LIES, f"the collectors heard {heard} announcements")
        own.multicast(len(SETS))  # its logs are filled to here, whatever was promised of them
        for name in INTERESTS:
            own.read_all(name)
            own.read_all(name, "again")
        skips = sum(one.get("skips", 0) for one in host.nodes())
        says = f"{heard} announcements were heard, {skips} holes filled, and the order held"
        return own.told("lying-announcements", own.judged(), says)


def _addresses(own: Deployment) -> dict[str, Address]:
    control = ControlReader(own.driver, own.topic)
    try:
        return {name: told for name, (_, told) in control.refresh().addresses.items()}
    finally:
        control.close()


def _lies(own: Deployment, collector: str, address: Address, turn: int) -> Iterator[bytes]:
    """Yield datagrams: of messages that never come, doubled; late; absurd; with a wrong token."""
    numbers = [own.plan.number(log) for log in own.plan.own_logs(collector)]
    never = [Count(number, turn // 20, 0) for number in numbers]
    late = [Count(number, 10 * turn, 10 * turn) for number in numbers]
    absurd = [Count(number, 2**63, 0) for number in [*numbers, 10**6]]
    for producer, counts in ((1, never), (1, never), (2, late)):
        yield encode(address.token, Announcement(producer, counts))
    if turn == _LIES // 2:
        yield encode(address.token, Announcement(3, absurd))
    yield encode(bytes(len(address.token)), Announcement(1, absurd))
    yield b"TA" + bytes(turn)


@contextmanager
def _load(own: Deployment) -> Iterator[list[Receipt]]:
    """Multicast at a few hundred messages a second; the receipts are complete afterwards."""
    receipts: list[Receipt] = []
    stop = threading.Event()
    failed: list[AmcastError] = []

    def send() -> None:
        try:
            with Producer(topic=own.topic, driver=own.driver) as producer:
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


def away_two_epochs(stage: FaultStage) -> FaultEffect:
    """Consumers that were away during two epochs catch up through both, under load."""
    with Deployment(stage, "away-two-epochs") as own:
        own.collectors()
        plans = [own.plan, planned(own.topic, prefer="latency")]
        with _load(own) as receipts:
            files = [_leave(own, name) for name in INTERESTS]
            for turn in (1, 0):
                until(lambda: len(receipts) > 300 * len(own.epochs), "some load")
                after = back(plans[turn], own.plan)
                own.plan = apply(own.driver, own.admin, after, timeout_s=PATIENCE_S).plan
                own.epochs.append(own.plan)
            # While more comes they catch up; what comes after is read below.
            for name in INTERESTS:
                files.append(own.folder / f"{name}-back.jsonl")
                _receive(own, name, files[-1], "b", "-c", str(len(receipts) // len(SETS)))
        own.acknowledged("load", receipts)
        for name in INTERESTS:
            files.append(own.folder / f"{name}-end.jsonl")
            _receive(own, name, files[-1], "c", "-e")
            seen = {line["cursor"].partition("/")[0] for line in _lines(files) if _of(line, name)}
            # What no plan has changed stays in its epoch: the log that C4 reads alone.
            wanted = {"1"} if name == "C4" else {"1", "2", "3"}
            expect(seen >= wanted, f"{name} delivered in epochs {sorted(seen)}")
            own.read_all(name, "all along")
        says = "3 consumers that were away during 2 epochs caught up through both under load"
        return own.told("away-two-epochs", own.judged(*files), says)


def _leave(own: Deployment, name: str) -> Path:
    """Have a consumer deliver a little, commit, and go."""
    file = own.folder / f"{name}-before.jsonl"
    _receive(own, name, file, "a", "-c", "20")
    return file


def _receive(own: Deployment, name: str, file: Path, instance: str, *flags: str) -> None:
    done = own.run(
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
