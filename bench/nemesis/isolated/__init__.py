"""Isolated faults: each has its own topic, collectors and history."""
