"""A fold in delivery order is the fold of a plain consumer, at every position."""

import random

import pytest
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

from multicast.spark import fold, state_after
from tests.spark.query import small_spark
from tests.spark.rows import ON_SPARK, table

pytestmark = ON_SPARK
# An account is on the partition of its first letter; a transfer goes to both accounts' partitions.
INTERESTS = {
    "topic": "bank",
    "partitions": ["A", "B", "C"],
    "destinations": [["A", "B"], ["A", "C"], ["B", "C"]],
    "consumer": [{"name": "books", "interest": ["A", "B", "C"]}],
}
ACCOUNTS = [f"{letter}{number}" for letter in "ABC" for number in range(3)]


def next_balance(balance, row):
    """Move no money that is not there: so the result depends on the order."""
    if row["account"] == row["target"]:
        return balance + row["amount"]
    return balance - row["amount"] if balance >= row["amount"] else balance


@pytest.mark.campaign
def test_balances_over_several_partitions_equal_a_consumers_at_every_position(amcast_topic):
    # Init: 400 transfers between accounts on three partitions.
    topic, rng = amcast_topic(INTERESTS), random.Random(5)
    with topic.producer() as producer:
        receipts = []
        for _ in range(400):
            source, target = rng.sample(ACCOUNTS, 2)
            text = f"{source} {target} {rng.randint(1, 60)}".encode()
            receipts.append(producer.multicast(text, to={source[0], target[0]}))
        for receipt in receipts:
            receipt.accepted(60)

    # Test: each account's balance after each of its transfers.
    with small_spark() as session:
        words = F.split(F.col("value").cast("string"), " ")
        transfers = table(session, topic, consumer="books").load()
        rows = transfers.select(
            *("epoch", "position", "cursor", words[1].alias("target")),
            words[2].cast("bigint").alias("amount"),
            F.explode(F.array(words[0], words[1])).alias("account"),
        ).cache()
        folded = fold(rows, key="account", initial=100, step=next_balance, state="bigint")
        states = folded.cache().collect()
        cursors = {(row.epoch, row.position): row.cursor for row in rows.collect()}
        then = {
            place: state_after(folded, key="account", epoch=place[0], position=place[1]).collect()
            for place in sorted(cursors)[::133]
        }

    # Check.
    by_cursor = {(cursors[row.epoch, row.position], row.account): row.state for row in states}
    balances, expected, after = dict.fromkeys(ACCOUNTS, 100), {}, {}
    for message in topic.drain(topic.consumer("books", committed=False)):
        source, target, amount = message.payload.decode().split()
        for account in (source, target):
            row = {"account": account, "target": target, "amount": int(amount)}
            balances[account] = next_balance(balances[account], row)
            expected[message.cursor.place, account] = balances[account]
        after[message.cursor.place] = dict(balances)
    assert by_cursor == expected
    assert len(expected) == 800
    assert len(then) == 4
    for place, reached in then.items():
        known = {row.account: row.state for row in reached}
        assert dict.fromkeys(ACCOUNTS, 100) | known == after[cursors[place]]
