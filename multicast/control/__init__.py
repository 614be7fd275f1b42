"""The control topic: plans by epoch, where epochs end, and checkpoints.

All that it exports is meant to be imported from here.

    topics       names of Kafka topics and partitions
    documents    parts of statements, read with one error
    codecs       statements as keys and values
    state        what all statements say together; no I/O
    sources      which stream is read in which epoch; no I/O
    checkpoints  which checkpoint a stream is opened at
    reader       the same, read from a cluster
"""

from multicast.control.checkpoints import best_checkpoint
from multicast.control.codecs import (
    address_record,
    checkpoint_record,
    ends_record,
    markers_record,
    plan_record,
    running_record,
)
from multicast.control.reader import ControlReader
from multicast.control.sources import source_of
from multicast.control.state import ControlState, genesis
from multicast.control.topics import (
    ALONE,
    control_partition,
    groups_topic,
    log_partition,
    order_topic,
    sentinel_topic,
    stream_partition,
)

__all__ = [
    "ALONE",
    "ControlReader",
    "ControlState",
    "address_record",
    "best_checkpoint",
    "checkpoint_record",
    "control_partition",
    "ends_record",
    "genesis",
    "groups_topic",
    "log_partition",
    "markers_record",
    "order_topic",
    "plan_record",
    "running_record",
    "sentinel_topic",
    "source_of",
    "stream_partition",
]
