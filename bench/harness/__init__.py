"""Shared parts of the benchmarks: processes, brokers, figures, facts about the machine."""
