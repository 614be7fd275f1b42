"""Ordered messages in Spark: the names of `multicast.spark` (docs/spark.md)."""

from multicast.spark import AmcastSource, fold, register, state_after

__all__ = ["AmcastSource", "fold", "register", "state_after"]
