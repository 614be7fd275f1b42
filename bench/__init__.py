"""Benchmarks, the simulator and the demo."""
