"""The librdkafka driver: the fast reader.

Only this folder imports the package `confluent_kafka`. Its callers get this project's values and
errors only. All that is written or asked goes to another driver, the *delegate*, and so do
watchers: librdkafka's own calls are slower, or block without a time-out, and it has none that sends
the records of two partitions by one request.

    reader.py       the consumer
    client.py       their settings; opens clients of the package
    driver.py       the driver

librdkafka does not survive a fork: open the driver in the process that uses it.
"""

from __future__ import annotations

from multicast.drivers.librdkafka_reader.driver import LibrdkafkaDriver

__all__ = ["LibrdkafkaDriver"]
