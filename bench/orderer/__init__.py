"""Benchmarks of the ordering service."""
