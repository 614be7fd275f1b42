"""The librdkafka driver: the fast data path.

Only this folder imports the package `confluent_kafka`. Its callers get this project's values and
errors only. Single requests (ends, committed offsets), watchers and joint appenders go to another
driver, the *delegate*: librdkafka's own calls are slower, or block without a time-out, and it has
none that sends the records of two partitions by one request.

    settings.py     the settings that producers and consumers share
    appender.py     the idempotent producer and the thread that serves its callbacks
    started.py      the appends without an outcome
    outcomes.py     what the producer's errors mean for an append
    reader.py       the consumer
    driver.py       the driver

librdkafka does not survive a fork: open the driver in the process that uses it.
"""

from __future__ import annotations

from multicast.drivers.librdkafka.driver import LibrdkafkaDriver

__all__ = ["LibrdkafkaDriver"]
