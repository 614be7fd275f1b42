"""Ordered messages in Spark: `spark.read.format("amcast")` and `spark.readStream`.

    from multicast.spark import register
    register(spark)
    table = spark.read.format("amcast").option(…).load()

Needs the extra [spark]; this folder is the only one of the product that imports pyspark.
docs/spark.md describes the options, the columns, the errors and the limits.
"""

from __future__ import annotations

from multicast.errors import UsageError
from multicast.tables.arrow import pyarrow

try:
    from multicast.spark.source import AmcastSource, register
except ImportError as error:
    if (error.name or "").partition(".")[0] != "pyspark":
        raise
    raise UsageError(
        "amcast in Spark needs the package pyspark; run: pip install 'amcast[spark]'"
    ) from error

pyarrow()  # Spark's own error for a missing pyarrow comes late and is long

__all__ = ["AmcastSource", "register"]
