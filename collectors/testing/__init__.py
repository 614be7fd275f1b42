"""Collectors for tests: in turns on a cluster in memory, and in threads on a real broker.

The entry points of the group `amcast.testing` name both, for `multicast.testing`.
"""
