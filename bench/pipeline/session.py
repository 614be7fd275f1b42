"""A Spark session, with the Kafka connector, as a context manager that stops what it started.

The connector's jars are locked (`connector.lock`) and fetched once, as a broker's are; Spark sends
them to its executors. Workers run this Python interpreter, so a cluster's machines need amcast.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

from multicast.errors import AmcastError, UsageError
from multicast.local.jars import Java, find_java, kept_jars, read_lock
from multicast.local.process import run_bounded

try:
    import pyspark
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark import SparkContext
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession
except ImportError as error:
    raise UsageError(
        "amcast bench pipeline needs the package pyspark; run: pip install 'amcast[spark]'"
    ) from error

LOCAL = "local[2]"
# Java's errors come as they are where pyspark has no class of its own for them.
SPARK_ERRORS = (PySparkException, Py4JError)
_JAVA_TIMEOUT_S = 20.0  # for `java -version`, on a busy machine
_STOP_S = 10.0  # for Java to end; then it is killed
# The heap is what the figures in docs/pipeline.md were measured with, up to ten million events.
# Eight partitions are a few for each core of `local[2]`; adaptive execution joins small ones.
_SETTINGS = {
    "spark.driver.memory": "1500m",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "8",
    "spark.sql.adaptive.enabled": "true",
}


class SparkFailed(AmcastError):
    """Spark did not start, or a query failed: nothing is known of the runs."""

    exit_code = 2  # 1 says that a message was lost


def sentence_of(error: Exception) -> str:
    """Give the sentence of Spark's error; a traceback of Java follows it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    caused = [line.removeprefix(":").strip() for line in lines if line.startswith(":")]
    return (caused or lines or [type(error).__name__])[0]


@contextmanager
def spark(
    *,
    master: str = LOCAL,
    settings: Mapping[str, str] | None = None,
    connector: bool = True,
    progress: Callable[[str], None],
) -> Iterator[SparkSession]:
    """Open a session; `settings` are Spark settings that override ours.

    Without `connector` no jar is needed. A session that is already active is used unchanged, and
    left open.
    """
    running = SparkSession.getActiveSession()
    if running is not None:
        yield running
        return
    java = find_java()
    chosen = dict(_SETTINGS)
    if connector:
        chosen["spark.jars"] = ",".join(map(os.fspath, _connector_jars(java, progress)))
    _check_java(os.fspath(java.executable))
    os.environ["JAVA_HOME"] = os.fspath(java.home)
    # By default workers run the python3 on PATH, which lacks our packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("amcast bench pipeline").master(master)
    if master.startswith("local"):
        chosen |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    for key, value in {**chosen, **(settings or {})}.items():
        builder = builder.config(key, value)
    try:
        session: SparkSession = builder.getOrCreate()
    except (*SPARK_ERRORS, OSError) as error:
        raise SparkFailed(f"Spark did not start: {sentence_of(error)}") from error
    try:
        yield session
    finally:
        _end(session)


def _connector_jars(java: Java, progress: Callable[[str], None]) -> list[Path]:
    """Give the jars of the Kafka connector; raises `UsageError` for another version of pyspark."""
    lock = resources.files("bench.pipeline").joinpath("connector.lock").read_text("utf-8")
    version = pyspark.__version__
    if f"spark-sql-kafka-0-10_2.13:{version}" not in lock:
        raise UsageError(
            f"pyspark {version} and the locked Kafka connector have different versions; run: "
            "pip install 'amcast[spark]'"
        )
    return kept_jars(
        read_lock(lock),
        f"spark-kafka-{version}",
        title=f"Spark {version}'s Kafka connector",
        java=java,
        progress=progress,
    )


def _end(session: SparkSession) -> None:
    """Stop Spark, and pyspark's Java process if any, which would otherwise live as long as ours."""
    gateway: Any = session.sparkContext._gateway  # noqa: SLF001 - pyspark has no other way
    session.stop()
    process = getattr(gateway, "proc", None)
    if process is None:
        return
    gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001
    process.stdin.close()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _check_java(java: str) -> None:
    """Raise `UsageError` where Java lacks a module that Spark needs; Spark's own error is long."""
    command = [java, "--add-modules", "jdk.incubator.vector", "-version"]
    try:
        code, _ = run_bounded(command, timeout_s=_JAVA_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        code = 1
    if code != 0:
        raise UsageError(
            f"{java} lacks the module jdk.incubator.vector, which Spark needs; set JAVA_HOME to "
            "a full JDK 17 or 21"
        )
