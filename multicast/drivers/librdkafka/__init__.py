"""The librdkafka driver: the fast data path, and the one door to the package `confluent_kafka`.

In go what `protocol.py` lets a driver be asked; out come this project's values and errors only.
Questions (ends, committed offsets) and watchers go to another driver, which is handed in: what
librdkafka offers for them is slower, or blocks without a time-out.

    settings.py     what producers and consumers have in common
    appender.py     the idempotent producer and the thread that serves its callbacks
    started.py      the appends that have no outcome yet
    outcomes.py     what its errors say about an append
    reader.py       the consumer
    driver.py       the driver

librdkafka does not survive a fork: open the driver in the process that uses it.
"""

from __future__ import annotations

from multicast.drivers.librdkafka.driver import LibrdkafkaDriver

__all__ = ["LibrdkafkaDriver"]
