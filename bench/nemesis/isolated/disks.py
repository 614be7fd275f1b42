"""Isolated faults: full disks, of a client and of one broker of three.

A client's disk is simulated by a limit on the size of its files, or by the device /dev/full; a
broker's disk is a small tmpfs, which needs the right to mount.

Each function injects its fault into a deployment and returns what it saw; it raises `Unexpected` if
that is not what is promised (see `faults/isolated.py`).
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
    FaultSite,
    Unexpected,
    expect,
    until,
)
from multicast.control import log_partition
from multicast.errors import UsageError
from multicast.local.cluster import LocalCluster

_MESSAGES = 400
_FILE_BYTES = 15_000  # less than the history of so many messages
_FULL = Path("/dev/full")
_BALLAST = "ballast"
_LINES = "".join(
    json.dumps({"to": ["P1"], "payload": str(number)}) + "\n" for number in range(_MESSAGES)
)


def full_client(site: FaultSite) -> FaultEffect:
    """Fill a consumer's and a producer's disk: each ends with one sentence, and nothing is lost.

    With room again, the consumer resumes from its cursor and extends the same history.
    """
    with Deployment(site, "full-client") as deployment:
        deployment.collectors()
        deployment.multicast(_MESSAGES)
        narrow = ("prlimit", f"--fsize={_FILE_BYTES}", "--")
        _send_to_full_disk(deployment, narrow)
        history = deployment.folder / "C1.jsonl"
        go_on = ("-g", "full", "-e", "--history", str(history))
        full = deployment.run(
            "receive", "-n", "C1", flags=(*go_on, "--instance", "a"), before=narrow
        )
        full.refused(str(history))
        expect(history.stat().st_size <= _FILE_BYTES, "a file grew beyond its limit")
        # The same for standard output: messages that could not be printed are not received.
        deaf = deployment.run("receive", "-n", "C2", "-g", "deaf", "-e", stdout=_FULL)
        deaf.refused("No space left")
        freed = deployment.run("receive", "-n", "C1", flags=(*go_on, "--instance", "b"))
        expect(
            freed.code == 0,
            f"'amcast receive' with room again ended with {freed.code}: {freed.err[-300:]}",
        )
        heard = deployment.run("receive", "-n", "C2", "-g", "deaf", "-e")
        whole = {name: deployment.read_all(name) for name in INTERESTS}
        expect(
            _ids(heard.out) == whole["C2"], "messages that could not be printed were not repeated"
        )
        expect(
            set(whole["C1"]) == {*_ids(full.out), *_ids(freed.out)},
            "with its disk full and then with room a consumer did not print all messages",
        )
        report = deployment.judge(history)
        says = "a full disk ended a consumer and a producer with one sentence; nothing was lost"
        return deployment.effect("full-client", report, says)


def _ids(printed: str) -> list[str]:
    return [json.loads(line)["message_id"] for line in printed.splitlines()]


def _send_to_full_disk(deployment: Deployment, narrow: tuple[str, ...]) -> None:
    """Multicast with a history that does not fit: `send` says so, and counts stored messages."""
    history = deployment.folder / "send.jsonl"
    partition = log_partition(deployment.plan.log("P1"))
    before = deployment.driver.last_stable_offsets([partition])[partition]
    done = deployment.run("send", flags=("--history", str(history)), before=narrow, stdin=_LINES)
    done.refused(str(history))
    expect(f"{_MESSAGES} accepted" in done.err, "a producer did not say what was accepted")
    sent = [r.offset for r in deployment.records(partition) if r.offset >= before and not r.headers]
    expect(len(sent) == _MESSAGES, f"{_MESSAGES} were accepted, the log holds {len(sent)}")
    for offset in sent:
        deployment.accepted("send", f"P1:{offset}", ("P1",))


def full_broker(site: FaultSite) -> FaultEffect:
    """Fill one broker's disk: the others work on, no acknowledged message is lost, it comes back.

    Needs `site.cluster` with three brokers and the right to mount; otherwise raises `UsageError`.
    """
    cluster = site.cluster
    if cluster is None:
        raise UsageError("only a local cluster's disk can be filled; run without --bootstrap")
    victim = max(broker.broker_id for broker in cluster.status().brokers)
    with Deployment(site, "full-broker") as deployment:
        deployment.collectors()
        deployment.multicast(_MESSAGES)
        with small_disk(cluster, victim) as disk:
            until(
                lambda: _in_sync(deployment, victim), f"broker {victim} in sync on its small disk"
            )
            deployment.multicast(_MESSAGES)
            ballast = disk / _BALLAST
            fill(ballast)
            until(
                lambda: _sent_while_full(deployment, cluster, victim), f"the end of broker {victim}"
            )
            deployment.multicast(_MESSAGES)
            expect(not _in_sync(deployment, victim), f"broker {victim} is in sync without a disk")
            ballast.unlink()
            cluster.restart(victim)
            until(
                lambda: _in_sync(deployment, victim), f"broker {victim} in sync after there is room"
            )
            deployment.multicast(_MESSAGES)
        until(lambda: _in_sync(deployment, victim), f"broker {victim} in sync on its own disk")
        for name in INTERESTS:
            deployment.read_all(name)
        report = deployment.judge()
        says = f"broker {victim} ended with its disk full, the others went on, and it came back"
        return deployment.effect("full-broker", report, says)


def _sent_while_full(deployment: Deployment, cluster: LocalCluster, victim: int) -> bool:
    """Multicast more messages; whether the broker has noticed its full disk and stopped."""
    deployment.multicast(50)
    (state,) = [broker.state for broker in cluster.status().brokers if broker.broker_id == victim]
    return state == "stopped"


def _in_sync(deployment: Deployment, broker: int) -> bool:
    """Whether all of a broker's replicas of the deployment are in sync."""
    held = [
        broker in in_sync
        for parts in deployment.admin.holders(
            [deployment.topic, f"{deployment.topic}.Msg-TO"]
        ).values()
        for _, _, replicas, in_sync in parts
        if broker in replicas
    ]
    return bool(held) and all(held)


@contextmanager
def small_disk(cluster: LocalCluster, broker: int, *, room_mb: int = 64) -> Iterator[Path]:
    """Move a broker's data to a small disk with `room_mb` of free space; yields its folder.

    The broker is killed and restarted at the beginning and at the end, when its data move back.
    Raises `UsageError` if this process may not mount.
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
        raise UsageError(
            f"cannot mount a small disk for a broker; run as root: {done.stderr.strip()}"
        )


def _copy(source: Path, target: Path) -> None:
    """Copy a broker's data; its index files are sparse, and stay sparse."""
    _run("cp", "-a", "--sparse=always", f"{source}/.", str(target))


def _size_mb(folder: Path) -> int:
    """Return the disk space of a folder in MiB, rounded up; holes in files take none."""
    blocks = sum(file.stat().st_blocks for file in folder.rglob("*"))
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
        raise Unexpected(f"{left} blocks are free on a disk that should be full")
