"""Measures what the metrics of producers and consumers cost: `python -m bench.micro.metrics`."""
