"""Ordered messages in Spark: `spark.read.format("amcast")` and `spark.readStream`.

    from amcast.spark import register
    register(spark)
    table = spark.read.format("amcast").option(…).load()

Needs the extra [spark]; this folder is the only one of the product that imports pyspark.
docs/spark.md describes the options, the columns, the errors and the limits.
"""

from multicast.tables.arrow import pyarrow
from topology import extra

pyarrow()  # Spark's own error for a missing pyarrow comes late and is long
with extra("spark"):
    from multicast.spark.folds import fold, state_after
    from multicast.spark.source import AmcastSource, register

__all__ = ["AmcastSource", "fold", "register", "state_after"]
