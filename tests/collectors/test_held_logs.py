"""An open transaction in one log, on a real broker: who waits, and what the doctor reports."""

import re
import threading
from dataclasses import replace

import pytest

from collectors.doctor.checks import Check, findings
from collectors.doctor.inspection import inspect
from collectors.reconfiguration.apply import apply
from multicast import Consumer, Producer
from multicast.drivers.kafka import Admin
from multicast.errors import Conflict
from tests.helpers.system import PATIENCE_S, open_transaction, until

pytestmark = pytest.mark.timeout(900)


def transaction_findings(system):
    with Admin(system.bootstrap) as admin:
        facts = inspect(system.driver, admin, system.topic, patience_s=0.0)
    return [each for each in findings(facts) if each.check is Check.TRANSACTION]


def test_a_log_that_stands_still_holds_up_nobody_who_does_not_wait_for_its_messages(system):
    host = system.order()
    top = system.plan.top("P2").name
    with Producer(topic=system.topic, driver=system.driver) as producer:
        for to in ({"P2"}, {"P4"}):
            producer.multicast(b"before", to=to).ordered(PATIENCE_S)
        transaction = open_transaction(system, system.plan.log("P2"))
        until(
            lambda: any(
                "P2" in node["held"] for node in host.status()["nodes"] if node["node"] == top
            ),
            "a log that is held",
        )
        waits = producer.multicast(b"waits", to={"P2"})
        waits.accepted(PATIENCE_S)
        others = [producer.multicast(b"goes on", to={"P4"}) for _ in range(5)]
        others[-1].ordered(PATIENCE_S)
        done = threading.Event()
        with Consumer(topic=system.topic, name="C2", driver=system.driver) as consumer:
            values = []
            for message in consumer:
                values.append(message.payload)
                if values.count(b"goes on") == 5:
                    done.set()
                    break
        assert done.is_set()
        assert b"waits" not in values
        until(lambda: transaction_findings(system), "a finding")
        (finding,) = transaction_findings(system)
        assert re.search(
            rf"log P2 is held at offset \d+, \d+ offsets before its end: its consumers wait for a "
            rf"transaction of producer \d+ \(epoch \d+, transactional id {system.topic}\), which "
            rf"has been open for ",
            finding.says,
        )
        assert "Kafka aborts it 10 min after it began" in finding.do
        assert f"kafka-transactions.sh abort --topic {system.topic} --partition 1" in finding.do
        first, *rest = system.plan.consumers
        served = (replace(first, name="C9"), *rest)
        renamed = replace(system.plan, epoch=2, base_epoch=1, consumers=served)
        with Admin(system.bootstrap) as admin:
            with pytest.raises(Conflict, match=r"could not end: log P2 is held at offset \d+, "):
                apply(system.driver, admin, renamed, uncovered=True)
            transaction.abort_transaction(PATIENCE_S)
            assert apply(system.driver, admin, renamed, uncovered=True).changed
        waits.ordered(PATIENCE_S)
        until(lambda: not transaction_findings(system), "no finding")
