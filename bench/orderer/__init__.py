"""Benchmarks of the ordering service: speed, and a long run with kills."""
