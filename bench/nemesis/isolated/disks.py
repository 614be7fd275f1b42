"""Full disks: of a client, and of one broker of three.

A client's disk is full by a limit on the size of its files, or because it writes to a device that
is always full; a broker's is a small file system of memory (tmpfs), which needs the right to mount.

Each function makes its fault in a deployment of its own, and says what it saw; it raises
`Unexpected` where that is not what is promised (see `catalogue.py`).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.nemesis.isolated.deployment import (
    INTERESTS,
    Deployment,
    FaultEffect,
    FaultStage,
    Unexpected,
    expect,
    until,
)
from multicast.control import log_partition
from multicast.errors import UsageError
from multicast.local.cluster import LocalCluster

_MESSAGES = 400
_FILE_BYTES = 15_000
_FULL = Path("/dev/full")
_BALLAST = "ballast"
_LINES = "".join(
    json.dumps({"to": ["P1"], "payload": str(number)}) + "\n" for number in range(_MESSAGES)
)


def full_client(stage: FaultStage) -> FaultEffect:
    """Fill a consumer's and a producer's disk: one sentence, and nothing is lost.

    Once there is room the consumer goes on from its cursor, into the same history.
    """
    with Deployment(stage, "full-client") as own:
        own.collectors()
        own.multicast(_MESSAGES)
        narrow = ("prlimit", f"--fsize={_FILE_BYTES}", "--")
        _send_to_full_disk(own, narrow)
        history = own.folder / "C1.jsonl"
        go_on = ("-g", "full", "-e", "--history", str(history))
        full = own.run("receive", "-n", "C1", flags=(*go_on, "--instance", "a"), before=narrow)
        full.refused(str(history))
        expect(history.stat().st_size <= _FILE_BYTES, "a file grew beyond its limit")
        # The same with what is printed: nothing of it may count as received.
        deaf = own.run("receive", "-n", "C2", "-g", "deaf", "-e", stdout=_FULL)
        deaf.refused("No space left")
        freed = own.run("receive", "-n", "C1", flags=(*go_on, "--instance", "b"))
        expect(freed.code == 0, f"with room again it ended with {freed.code}: {freed.err[-300:]}")
        heard = own.run("receive", "-n", "C2", "-g", "deaf", "-e")
        whole = {name: own.read_all(name) for name in INTERESTS}
        expect(_ids(heard.out) == whole["C2"], "what could not be printed was not printed later")
        expect(
            set(whole["C1"]) == {*_ids(full.out), *_ids(freed.out)},
            "with its disk full and then with room a consumer did not print all",
        )
        report = own.judged(history)
        says = "a full disk ended a consumer and a producer with one sentence; nothing was lost"
        return own.told("full-client", report, says)


def _ids(printed: str) -> list[str]:
    return [json.loads(line)["message_id"] for line in printed.splitlines()]


def _send_to_full_disk(own: Deployment, narrow: tuple[str, ...]) -> None:
    """Multicast with a history that does not fit: it says so, and what is stored is counted."""
    history = own.folder / "send.jsonl"
    at = log_partition(own.plan.log("P1"))
    before = own.driver.last_stable_offsets([at])[at]
    done = own.run("send", flags=("--history", str(history)), before=narrow, stdin=_LINES)
    done.refused(str(history))
    expect(f"{_MESSAGES} accepted" in done.err, "a producer did not say what was accepted")
    sent = [r.offset for r in own.records(at) if r.offset >= before and not r.headers]
    expect(len(sent) == _MESSAGES, f"{_MESSAGES} were accepted, {len(sent)} stand in the log")
    for offset in sent:
        own.accepted("send", f"P1:{offset}", ("P1",))


def full_broker(stage: FaultStage) -> FaultEffect:
    """One broker's disk is full: the others go on, nothing acknowledged is lost, it comes back.

    Needs `stage.cluster`, three brokers, and the right to mount. Raises `UsageError` without.
    """
    cluster = stage.cluster
    if cluster is None:
        raise UsageError("a broker's disk can be filled in a cluster of our own only")
    victim = max(one.broker_id for one in cluster.status().brokers)
    with Deployment(stage, "full-broker") as own:
        own.collectors()
        own.multicast(_MESSAGES)
        with small_disk(cluster, victim) as disk:
            until(lambda: _in_sync(own, victim), f"broker {victim} in sync on its small disk")
            own.multicast(_MESSAGES)
            ballast = disk / _BALLAST
            fill(ballast)
            until(lambda: _sent_while_full(own, cluster, victim), f"the end of broker {victim}")
            own.multicast(_MESSAGES)
            expect(not _in_sync(own, victim), f"broker {victim} is in sync without a disk")
            ballast.unlink()
            cluster.restart(victim)
            until(lambda: _in_sync(own, victim), f"broker {victim} in sync after there is room")
            own.multicast(_MESSAGES)
        until(lambda: _in_sync(own, victim), f"broker {victim} in sync on its own disk")
        for name in INTERESTS:
            own.read_all(name)
        report = own.judged()
        says = f"broker {victim} ended with its disk full, the others went on, and it came back"
        return own.told("full-broker", report, says)


def _sent_while_full(own: Deployment, cluster: LocalCluster, victim: int) -> bool:
    """Multicast some more, and look whether the broker has noticed that its disk is full."""
    own.multicast(50)
    (state,) = [one.state for one in cluster.status().brokers if one.broker_id == victim]
    return state == "stopped"


def _in_sync(own: Deployment, broker: int) -> bool:
    """Whether every replica of the deployment that a broker holds is in sync."""
    held = [
        broker in in_sync
        for parts in own.admin.holders([own.topic, f"{own.topic}.Msg-TO"]).values()
        for _, _, replicas, in_sync in parts
        if broker in replicas
    ]
    return bool(held) and all(held)


@contextmanager
def small_disk(cluster: LocalCluster, broker: int, *, room_mb: int = 64) -> Iterator[Path]:
    """Yield a broker a disk of its own with so much room beside its data; return its folder.

    The broker is killed and started again, at the beginning and at the end, when its data go back.
    Raises `UsageError` where nothing can be mounted here.
    """
    data = cluster.directory / f"broker-{broker}" / "data"
    kept = data.with_name("data.kept")
    cluster.kill(broker)
    data.rename(kept)
    data.mkdir()
    try:
        size = room_mb + _size_mb(kept)
        _run("mount", "-t", "tmpfs", "-o", f"size={size}m", "amcast", str(data))
        try:
            _copy(kept, data)
            try:
                cluster.restart(broker)
                yield data
            finally:
                _kill_if_it_runs(cluster, broker)  # else the disk is in use
                (data / _BALLAST).unlink(missing_ok=True)
                shutil.rmtree(kept)
                kept.mkdir()
                _copy(data, kept)
        finally:
            _run("umount", str(data))
    finally:
        data.rmdir()
        kept.rename(data)
        cluster.restart(broker)


def _kill_if_it_runs(cluster: LocalCluster, broker: int) -> None:
    if any(one.broker_id == broker and one.pid for one in cluster.status().brokers):
        cluster.kill(broker)


def _run(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise UsageError(f"a broker cannot have a small disk here: {done.stderr.strip()}")


def _copy(source: Path, target: Path) -> None:
    """Copy a broker's data; its indexes are mostly holes, and stay so."""
    _run("cp", "-a", "--sparse=always", f"{source}/.", str(target))


def _size_mb(folder: Path) -> int:
    """Return the space that a folder takes; a file's holes take none."""
    blocks = sum(one.stat().st_blocks for one in folder.rglob("*"))
    return blocks * 512 // (1 << 20) + 1


def fill(ballast: Path) -> None:
    """Write a file until the disk is full."""
    with ballast.open("wb", buffering=0) as out:
        try:
            while True:
                out.write(bytes(1 << 20))
        except OSError:
            left = os.statvfs(ballast.parent).f_bavail
    if left:
        raise Unexpected(f"{left} blocks are free on a disk that was filled")
