"""Appends records of several Kafka partitions by one request to each leader, idempotently.

partition_appends   order, sequence numbers and outcomes of one partition (pure)
outbox              what goes in the next request (pure)
request             the bytes of a request and its answer (pure)
link                a socket to one broker
dispatcher          sends the records of all partitions over the links
keeper              producer ID, leaders, sockets, on a thread of its own
appender            the appender
"""

from __future__ import annotations

from multicast.drivers.kafka_python.joint.appender import KafkaPythonJointAppender

__all__ = ["KafkaPythonJointAppender"]
