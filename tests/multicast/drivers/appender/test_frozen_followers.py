"""A leader whose followers are frozen stores everything and acknowledges nothing."""

import itertools
import threading

import pytest

from multicast.drivers.kafka import Admin
from multicast.drivers.protocol import Appended
from multicast.errors import AppendUnknown
from tests.helpers.joint import Joint

pytestmark = pytest.mark.timeout(600)
DELIVERY_S = 3.0


def test_what_frozen_followers_do_not_acknowledge_in_time_is_stored_once(kafka_cluster_of_three):
    # Init
    cluster = kafka_cluster_of_three
    cluster.start()
    joint = Joint(cluster, settings={"delivery_timeout_s": DELIVERY_S})
    (log,) = joint.topic(replication=3)
    joint.append_surely(log, b"before")
    with Admin(cluster.bootstrap) as admin:
        ((_, leader, _, _),) = admin.holders([log.topic])[log.topic]
    followers = [number for number in (1, 2, 3) if number != leader]

    # Test: until an append is given up that started after another was given up: so each was tried
    # for the full time-out.
    for follower in followers:
        cluster.pause(follower)
    try:
        pace = threading.Event()
        started_then = None
        for number in itertools.count():
            joint.append(log, b"%d" % number)
            pace.wait(0.02)
            told = joint.outcomes[log]
            if started_then is None and not isinstance(told[-1][1], Appended):
                started_then = len(joint.sent[log])
            if started_then is not None and len(told) >= started_then:
                break
    finally:
        for follower in followers:
            cluster.resume(follower)
    joint.settle()
    joint.append_surely(log, b"after")

    # Check
    errors = joint.judge(log)
    assert any(isinstance(error, AppendUnknown) for error in errors.values())
    joint.close()
