"""Collectors for tests: in turns on a cluster in memory; on a real broker in threads.

The entry points of the group `amcast.testing` name them, for `multicast.testing`.
"""
