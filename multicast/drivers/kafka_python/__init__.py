"""The kafka-python driver and administration: the one door to the package `kafka`.

In go what `protocol.py` lets a driver be asked, and what operators ask of a cluster; out come this
project's values and errors only. Nothing outside this folder imports `kafka`, and no object or
exception of it leaves.

    connection.py       settings, one event loop, requests with a deadline
    fetcher.py          one long-polling fetch outstanding per leader
    reader.py           the records of what was fetched
    watcher.py          how far logs have grown, over a line (watch_connection.py) to each leader:
                        a socket of its own (sockets.py) and one request, written by hand
                        (fetch_request.py)
    appender.py         the idempotent producer
    direct_appender.py  appends to Kafka partitions over sockets of its own (produce_request.py)
    group_member.py     a member of a consumer group that reads nothing: who is there
    driver.py           the driver
    admin.py            topics, settings, cluster identity

kafka-python 3.0 (pinned below 3.1) runs on its own event loop, `kafka.net`. Readers, watchers and
requests drive that loop from the calling thread: no thread to hop to, nothing runs between polls,
and every wait has an end (the package's own blocking calls often have none).
"""

from __future__ import annotations

import logging
import warnings

with warnings.catch_warnings():
    # kafka-python 3.0 reads its schemas with a call that Python 3.11 to 3.12 calls deprecated.
    warnings.filterwarnings("ignore", r"(read|open)_text is deprecated", DeprecationWarning)
    from multicast.drivers.kafka_python.admin import Admin
    from multicast.drivers.kafka_python.admin_facts import OpenTransaction, TopicSpec
    from multicast.drivers.kafka_python.driver import KafkaPythonDriver

__all__ = ["Admin", "KafkaPythonDriver", "OpenTransaction", "TopicSpec"]

# What the package has to say is for those who set up logging; users get our sentences.
logging.getLogger("kafka").addHandler(logging.NullHandler())
