"""The always-on check on a real broker: silent while all is right, loud once it is not."""

import logging
import threading

import pytest

from collectors.reconfiguration.apply import apply
from multicast import Producer
from multicast.drivers import open_driver
from multicast.drivers.kafka import Admin
from multicast.order.records import Position, RelayRecord, encode
from multicast.verification.running_check import RunningCheck
from tests.collectors.test_replanning import planned
from tests.helpers.forged import forge
from tests.helpers.hosting import hosting
from tests.helpers.plans import by_hand, poster, priced
from tests.helpers.system import PATIENCE_S, System, until

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]

SETS = ({"P1"}, {"P2"}, {"P3"}, {"P4"}, {"P5"}, {"P1", "P3"}, {"P2", "P3", "P4"})
ENOUGH = 500  # deliveries: some turns of the check


def state_of(host):
    return host.status().get("check", {}).get("state")


def test_a_busy_system_whose_plan_changes_passes_the_check(kafka_cluster, tmp_path):
    with System(kafka_cluster.bootstrap, poster(), tmp_path) as system:
        place = (system.bootstrap, system.topic, system.driver_name, tmp_path)
        with hosting(*place, options=["--check"]) as host:
            until(lambda: state_of(host) == "ok", "the check")
            with system.load(SETS):
                until(lambda: host.status()["check"]["messages"] > ENOUGH, "deliveries")
                with Admin(system.bootstrap) as admin:
                    apply(system.driver, admin, planned(system.plan), add_partitions=True)
                until(lambda: {node["epoch"] for node in host.status()["nodes"]} == {2}, "epoch 2")
                before = host.status()["check"]["messages"]
                until(lambda: host.status()["check"]["messages"] > before + ENOUGH, "more")
            check = host.status()["check"]
    assert (check["state"], check["violations"], check["witness"]) == ("ok", 0, None)
    assert check["error"] is None


def two_levels():
    """K1 orders P1 and P2 for C1; K2 relays both to C2, and adds P3."""
    return priced(
        by_hand(
            ("P1", "P2", "P3"),
            {"K1": (("P1", "P2"), None), "K2": (("P1", "P2", "P3"), "K1")},
            {"C1": (("P1", "P2"), "K1"), "C2": (("P1", "P2", "P3"), "K2")},
        )
    )


def relay_turned_round(stream):
    """K2's record that relays the first message of P2 before that of P1."""
    entries = tuple(Position(stream.plan.number(log), 1) for log in ("P2", "P1"))
    state = stream.state
    first, before = state.parent_next, state.parent_last
    return encode(stream.shape.tag, RelayRecord(first, first + 2, entries, before, 1))


def test_a_relay_that_turns_two_messages_round_is_found_logged_and_told(
    kafka_cluster, tmp_path, caplog
):
    with System(kafka_cluster.bootstrap, two_levels(), tmp_path) as system:
        place = (system.bootstrap, system.topic, system.driver_name)
        check = RunningCheck(lambda: open_driver("librdkafka", system.bootstrap), system.topic)
        alone = tmp_path / "alone"
        alone.mkdir()
        with (
            hosting(*place, tmp_path, nodes=["K1"]),
            hosting(*place, alone, nodes=["K1"], options=["--standby", "--check"]) as standby,
        ):
            try:
                check.start()
                assert check.status()["witness"] is None
                until(lambda: check.status()["state"] == "ok", "the first turn")
                until(lambda: state_of(standby) == "ok", "the standby's first turn")
                with Producer(topic=system.topic, driver=system.driver) as producer:
                    for to in ({"P1"}, {"P2"}):
                        producer.multicast(b"x", to=to).ordered(PATIENCE_S)
                forge(system, "K2", relay_turned_round)
                until(lambda: check.status()["state"] == "violated", "the violation")
                until(lambda: state_of(standby) == "violated", "the standby's violation")
                told = standby.status()["check"]["witness"]
                scraped = standby.page("/metrics").decode()
            finally:
                check.stop()
                check.join(PATIENCE_S)
    status = check.status()
    assert status["violations"] == 1
    assert told == status["witness"]
    assert f'amcast_check_violations_total{{topic="{system.topic}"}} 1.0' in scraped
    assert all(name in status["witness"] for name in ("C1", "C2", "P1:0", "P2:0"))
    (error,) = [
        record
        for record in caplog.records
        if record.name == "amcast.check" and record.levelno >= logging.ERROR
    ]
    assert status["witness"] in error.getMessage()


def test_a_check_without_a_broker_says_why_and_ends_when_it_is_told():
    check = RunningCheck(lambda: open_driver("librdkafka", "127.0.0.1:1"), "A")
    check.start()
    until(lambda: check.status()["error"] is not None, "the error")
    assert check.status()["state"] == "starting"
    check.stop()
    check.join(PATIENCE_S)
    assert [each for each in threading.enumerate() if each.name == "amcast-check"] == []
