"""Keyed routing: a message goes to the partition where an application's partitioner puts its key.

partitioners.py     what Kafka's clients compute from a key; the keys of a destination set
router.py           from keys to the partitions of the plan in force
"""

from __future__ import annotations

from multicast.keyed.partitioners import (
    PARTITIONERS,
    Key,
    Keys,
    Partitioner,
    key_bytes,
    keys,
    partitioner_named,
)
from multicast.keyed.router import KeyRouter

__all__ = [
    "PARTITIONERS",
    "Key",
    "KeyRouter",
    "Keys",
    "Partitioner",
    "key_bytes",
    "keys",
    "partitioner_named",
]
