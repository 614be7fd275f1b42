"""An installed version of Kafka: its jars, and what is built of them once.

Two artefacts of each version are built once and cached with its jars, because each takes a start of
Java. `formatted/` holds what Kafka's own `StorageTool format` writes: the feature levels. It is the
same for every cluster and broker, because the voters are in the configuration; only
`meta.properties`, four lines, is written for each broker. The other is an archive of loaded
classes, which more than halves a broker's start (measured: 0.8 s against 1.9 s).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
import uuid
from pathlib import Path

from multicast.local.broker import META, Broker, Installed, free_ports, new_id, stop, wait_serving
from multicast.local.jars import Progress, broker_jars, cache_directory, find_java, run_tool
from multicast.local.process import Guard

_PREPARE_TIMEOUT_S = 60.0  # for each step of the preparation, which takes some 2 s


def install(version: str, *, progress: Progress) -> Installed:
    """Find Java, fetch the jars and build the two cached artefacts, unless they are there.

    Blocks for seconds the first time (bounded), later for 0.2 s. Any number of processes may call
    it at once.
    """
    java = find_java()
    jars = broker_jars(version, java=java, progress=progress)
    home = cache_directory() / f"kafka-{version}"
    build = hashlib.sha256(java.build.encode()).hexdigest()[:12]
    formatted, archive = home / "formatted", home / f"classes-{build}.jsa"
    if not (formatted.exists() and archive.exists()):
        progress(f"preparing Kafka {version} for this Java (once)")
        bare = Installed(version, java, jars, formatted, None)
        with tempfile.TemporaryDirectory(prefix=f".prepare-{version}-", dir=home.parent) as work:
            _prepare(bare, archive, Path(work))
    usable = archive.exists() and archive.stat().st_size > 0
    return Installed(version, java, jars, formatted, archive if usable else None)


def _prepare(bare: Installed, archive: Path, work: Path) -> None:
    """Run Kafka's format tool and a broker once, and keep the files of both."""
    port, controller_port = free_ports(2)
    broker = Broker(1, port, controller_port, directory=work / "broker")
    broker.write_properties([broker], {})
    tool = bare.command(
        "kafka.tools.StorageTool",
        *("format", "--cluster-id", new_id(), "--config", os.fspath(broker.properties)),
    )
    run_tool("Kafka's format tool", tool)
    formatted = work / "formatted"
    shutil.copytree(broker.data, formatted, ignore=shutil.ignore_patterns(META))

    classes = work / "classes.jsa"
    token = uuid.uuid4().hex
    guard = Guard(token, remove=work)
    try:
        broker.start(
            bare, token=token, heap_mb=256, options=[f"-XX:ArchiveClassesAtExit={classes}"]
        )
        wait_serving([broker], token=token, timeout_s=_PREPARE_TIMEOUT_S)
        # Java writes the archive when it exits, after the logs are closed.
        grace_s = _PREPARE_TIMEOUT_S
        if not stop([broker], token=token, grace_s=grace_s, closed_grace_s=grace_s):
            classes.touch()  # an empty file marks that this Java writes no archive
    finally:
        stop([broker], token=token, grace_s=0)
        guard.dismiss()
    if classes.exists():
        classes.replace(archive)
    with contextlib.suppress(OSError):  # another process was first; its files are the same
        formatted.rename(bare.formatted)
