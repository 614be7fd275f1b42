"""The balance of each account after each of its transfers, computed by Spark in delivery order.

    python examples/accounts/history.py --bootstrap HOST:PORT --topic accounts \
        [--then EPOCH/POSITION]

Writes a line for each account and transfer: {"epoch", "position", "account", "balance"}; with
--then, a line for each account: its balance right after that place of the order. Both are what a
plain consumer of all accounts reaches there, although the transfers are spread over many tasks.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import accounts
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

from amcast.spark import fold, register, state_after

_TRANSFER = "`from` string, `to` string, amount bigint"  # what `accounts.parse` returns


def add(balance: int, row: dict[str, Any]) -> int:
    """Give the next balance of an account."""
    return balance + int(row["change"])


def balances(spark: SparkSession, bootstrap: str, topic: str) -> DataFrame:
    """Give the balance of each account after each of its transfers: account, place, state."""
    register(spark)
    table = (
        spark.read.format("amcast")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", topic)
        .option("interest", ",".join(accounts.ACCOUNTS))
        .load()
    )
    spark.sparkContext.addPyFile(accounts.__file__)  # the tasks' processes import it
    parsed = table.select("epoch", "position", F.udf(accounts.parse, _TRANSFER)("value").alias("t"))
    table, transfer = parsed.where("t IS NOT NULL"), F.col("t")
    debit = F.struct(transfer["from"].alias("account"), (-transfer["amount"]).alias("change"))
    credit = F.struct(transfer["to"].alias("account"), transfer["amount"].alias("change"))
    moves = table.select("epoch", "position", F.explode(F.array(debit, credit)).alias("move"))
    rows = moves.select("epoch", "position", "move.account", "move.change")
    return fold(rows, key="account", initial=accounts.START, step=add, state="bigint")


def place(text: str) -> tuple[int, int]:
    """Read a place of the order: EPOCH/POSITION."""
    epoch, position = map(int, text.split("/"))
    return epoch, position


def main() -> None:
    """Compute once."""
    parser = argparse.ArgumentParser(description="Balances at each position, by Spark")
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--then", type=place, help="EPOCH/POSITION: the balances there")
    options = parser.parse_args()
    spark = SparkSession.builder.getOrCreate()
    states = balances(spark, options.bootstrap, options.topic)
    if options.then is None:
        rows = states.orderBy("epoch", "position", "account").collect()
    else:
        epoch, position = options.then
        rows = state_after(states, key="account", epoch=epoch, position=position).collect()
    for row in rows:
        line = row.asDict()
        line["balance"] = line.pop("state")
        sys.stdout.write(f"{json.dumps(line)}\n")
    spark.stop()


if __name__ == "__main__":
    main()
