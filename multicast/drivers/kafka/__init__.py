"""The kafka-python driver and the administration of clusters.

Only this folder imports the package `kafka`. Its callers get this project's values and errors,
never an object or an exception of the package.

    connection.py       settings, one event loop, requests with a deadline
                        (quiet.py: the loop; transports.py: its connections)
    leader_answers.py   offsets, and what leaders say of their epochs
    fetcher.py          at most one long-polling fetch outstanding per leader
    reader.py           the records of the fetched batches
    watcher.py          the ends of logs, over one connection to each leader
                        (watch_connection.py, sockets.py, fetch_request.py)
    appender/           the appender: idempotent appends to several partitions by one request
    group_member.py     a consumer group's member that reads nothing and lists the members
    driver.py           the driver
    private.py          what all of these use beyond the public interface of the package
    admin.py            topics, settings, cluster identity

kafka-python 3.0 (pinned below 3.1) runs on its own event loop, `kafka.net`. Readers, watchers and
requests drive that loop from the calling thread: no other thread is involved, nothing runs between
polls, and every wait has a time limit (the package's own blocking calls often have none).
"""

from __future__ import annotations

import logging
import warnings

with warnings.catch_warnings():
    # kafka-python 3.0 reads its schemas by a call that is deprecated in Python 3.11 and 3.12.
    warnings.filterwarnings("ignore", r"(read|open)_text is deprecated", DeprecationWarning)
    from multicast.drivers.kafka.admin import Admin
    from multicast.drivers.kafka.admin_facts import OpenTransaction, TopicSpec
    from multicast.drivers.kafka.driver import KafkaPythonDriver

__all__ = ["Admin", "KafkaPythonDriver", "OpenTransaction", "TopicSpec"]

# The package logs only where the application configures logging; users get this project's errors.
logging.getLogger("kafka").addHandler(logging.NullHandler())
