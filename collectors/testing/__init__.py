"""Collectors for tests: in turns on a cluster in memory; on a real broker in threads or processes.

The entry points of the group `amcast.testing` name the first two, for `multicast.testing`.
"""
