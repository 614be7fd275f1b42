"""Appends records of several Kafka partitions by one request to each leader, idempotently.

request     the bytes of a request and its answer (pure)
link        a socket to one broker
keeper      producer ID, leaders, sockets, on a thread of its own
appender    the appender; `multicast/drivers/appender/` says what goes in a request
"""

from __future__ import annotations

from multicast.drivers.kafka.appender.appender import KafkaPythonJointAppender

__all__ = ["KafkaPythonJointAppender"]
