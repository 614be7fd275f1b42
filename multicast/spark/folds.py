"""Folds in delivery order: the state of each key after each of its messages.

A fold over several partitions is what one order makes possible: for every key, all readers of the
same rows see the same states, those that a plain `Consumer` reaches by applying `step` message by
message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

Step = Callable[[Any, dict[str, Any]], Any]
_PLACE = ("epoch", "position")


def fold(rows: DataFrame, *, key: str, initial: Any, step: Step, state: str) -> DataFrame:
    """Give, for each row, the state of its key after it: key, epoch, position, state.

    `rows` has the columns `key`, epoch and position; a message that concerns several keys is
    several rows (`explode`), at most one for each key. `step(state, row)` gives the next state; it
    gets the columns as a dict, and must not change `state` in place. The first state is `initial`;
    `state` is the type of the states, in Spark's words ("bigint"). One task goes through all rows
    of a key, and holds its state only. Rows of no key (null) are left out. Not for streams.
    """
    given = rows.where(F.col(key).isNotNull())
    kind = given.schema[key].dataType.simpleString()
    columns = f"`{key}` {kind}, `epoch` bigint, `position` bigint, `state` {state}"
    in_order = given.repartition(key).sortWithinPartitions(key, *_PLACE)
    folded = in_order.rdd.mapPartitions(partial(_states, key, initial, step))
    return rows.sparkSession.createDataFrame(folded, columns)


def _states(key: str, initial: Any, step: Step, rows: Iterable[Row]) -> Iterator[tuple[Any, ...]]:
    """Fold one partition's rows, sorted by key and place; runs in Spark's workers."""
    for value, group in groupby(rows, itemgetter(key)):
        reached = initial
        for row in group:
            reached = step(reached, row.asDict())
            yield value, row["epoch"], row["position"], reached


def state_after(states: DataFrame, *, key: str, epoch: int, position: int) -> DataFrame:
    """Give each key's state right after a place of the order: key, state.

    Keys without a row up to there are missing: their state is the initial one.
    """
    own, place = F.col("epoch"), F.col("position")
    before = (own < epoch) | ((own == epoch) & (place <= position))
    newest = F.max_by("state", F.struct("epoch", "position")).alias("state")
    return states.where(before).groupBy(key).agg(newest)
