"""A streaming query as a process of its own, which can be killed at any moment.

    python -m tests.spark.query JSON

The document gives the options of the source, the sink ("files" or "sqlite"), its path, the
checkpoint, the trigger ("now": what is there, then end; "always"), and settings of Spark.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from bench.pipeline.session import spark
from multicast.spark import register

_BUSY_S = 60.0  # SQLite waits so long for a reader to end
_CREATE = """
create table if not exists rows
    (number integer primary key autoincrement, batch int, message text, epoch int, position int);
create table if not exists batches (batch integer primary key);
"""
_SMALL = {
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",  # starts faster
    "spark.sql.shuffle.partitions": "2",
}


@contextmanager
def small_spark(**settings: str) -> Iterator[SparkSession]:
    """Open a small session that has the format "amcast" and no connector, and end it afterwards."""
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"  # executors, too, listen on the loopback
    chosen = {**_SMALL, **settings}
    with spark(settings=chosen, connector=False, progress=sys.stderr.write) as session:
        register(session)
        yield session


def into_sqlite(path: str) -> Callable[[DataFrame, int], None]:
    """Make a sink that stores each micro-batch in one transaction, once, in delivery order."""

    def store(frame: DataFrame, batch: int) -> None:
        rows = frame.orderBy("epoch", "position").collect()
        with closing(sqlite3.connect(path, timeout=_BUSY_S)) as database:
            database.executescript(_CREATE)
            with database:
                database.execute("begin immediate")
                if database.execute("select 1 from batches where batch = ?", (batch,)).fetchone():
                    return
                database.execute("insert into batches values (?)", (batch,))
                database.executemany(
                    "insert into rows (batch, message, epoch, position) values (?, ?, ?, ?)",
                    [(batch, row.message_id, row.epoch, row.position) for row in rows],
                )

    return store


def main() -> None:
    """Run the query to its end; exit code 1 and a line on stderr if it fails."""
    given = json.loads(sys.argv[1])
    with small_spark(**given.get("settings", {})) as session:
        frame = session.readStream.format("amcast").options(**given["options"]).load()
        writer = frame.writeStream.option("checkpointLocation", given["checkpoint"])
        if given["sink"] == "files":
            writer = writer.format("json").option("path", given["path"])
        else:
            writer = writer.foreachBatch(into_sqlite(given["path"]))
        now = given["trigger"] == "now"
        writer = (
            writer.trigger(availableNow=True) if now else writer.trigger(processingTime="0 seconds")
        )
        query = writer.start()
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            sys.stderr.write(f"the query ended: {error}\n")
            raise SystemExit(1) from error


if __name__ == "__main__":
    main()
