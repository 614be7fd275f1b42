"""A streaming query as a process of its own, which a test may kill at any moment.

    python -m tests.spark.stream_program JSON

The document gives the options of the source, the sink ("files" or "sqlite"), its path, the
checkpoint, and the trigger ("now": what is there, then end; "always").
"""

import json
import sqlite3
import sys
from contextlib import closing

from pyspark.sql.streaming import StreamingQueryException

from tests.helpers.spark import small_spark

CREATE = """
create table if not exists rows
    (number integer primary key autoincrement, batch int, message text, epoch int, position int);
create table if not exists batches (batch integer primary key);
"""


def into_sqlite(path):
    """A sink that stores each micro-batch in one transaction, once, in delivery order."""

    def store(frame, batch):
        rows = frame.orderBy("epoch", "position").collect()
        with closing(sqlite3.connect(path, timeout=60)) as database:
            database.executescript(CREATE)
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


def main():
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
