"""Ordered messages in Spark, on a real broker and a real Spark."""
