"""Keyed routing: a message goes to the partition where an application's partitioner puts its key.

partitioners.py     what Kafka's clients compute from a key; the keys of a destination set
calls.py            what a call of a producer names, checked
destinations.py     which log of a plan stores a message
router.py           from keys to the partitions of the plan in force
routes.py           the route of a destination set; imported by its name, as it knows receipts
"""

from __future__ import annotations

from multicast.keyed.calls import (
    NOWHERE,
    Batched,
    addressed,
    batched,
    check_payload,
    header_pairs,
)
from multicast.keyed.destinations import find_log, required_log
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
    "NOWHERE",
    "PARTITIONERS",
    "Batched",
    "Key",
    "KeyRouter",
    "Keys",
    "Partitioner",
    "addressed",
    "batched",
    "check_payload",
    "find_log",
    "header_pairs",
    "key_bytes",
    "keys",
    "partitioner_named",
    "required_log",
]
