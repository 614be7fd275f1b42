"""A forked process can neither use nor harm the clients of its parent."""

import subprocess
import sys
import uuid

import pytest

from multicast.drivers import home_process
from multicast.drivers.kafka import Admin, TopicSpec
from multicast.errors import UsageError
from tests.helpers.driver_worlds import REAL
from tests.helpers.plans import chain
from tests.helpers.small import Small

ENDED = 7  # an exit code that nothing else gives
# Ends as any program does: what is left is freed.
PROGRAM = f"""
import gc, os, sys, threading
from multicast.drivers import open_driver
from multicast.drivers.protocol import Appended, TopicPartition
from multicast.errors import UsageError

name, bootstrap, topic = sys.argv[1:]
log = TopicPartition(topic, 0)

def stored(appender, value):
    done = threading.Event()
    outcomes = []
    appender.append(log, value, done=lambda outcome: (outcomes.append(outcome), done.set()))
    assert done.wait(60) and isinstance(outcomes[0], Appended), outcomes

def refused(call, *arguments, **options):
    try:
        call(*arguments, **options)
    except UsageError as error:
        assert "another process" in str(error), error
    else:
        raise AssertionError(call)

driver = open_driver(name, bootstrap)
appender = driver.appender()
stored(appender, b"before")
reader = driver.reader({{log: 0}})
found = []

def read(reader, count):
    while len(found) < count:
        for fetched in reader.poll(1.0):
            found.extend(record.value for record in fetched.records)

read(reader, 1)
child = os.fork()
if not child:
    refused(appender.append, log, b"child", done=print)
    refused(appender.append_all, log, [b"child"], done=print)
    refused(appender.flush, 60)
    refused(reader.poll, 60)
    refused(driver.commit, "group", {{log: (1, "")}})
    for client in (appender, reader, driver):
        client.close()
    del appender, reader, driver, client
    gc.collect()
    with open_driver(name, bootstrap) as own:
        appender = own.appender()
        stored(appender, b"own")
        appender.close()
    sys.exit({ENDED})
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == {ENDED}
stored(appender, b"after")
read(reader, 3)
assert found == [b"before", b"own", b"after"], found
for client in (appender, reader, driver):
    client.close()
"""


@pytest.mark.parametrize("name", REAL)
def test_a_forked_process_uses_no_client_of_its_parent_and_harms_none(kafka_cluster, name):
    topic = f"forked-{uuid.uuid4().hex[:8]}"
    with Admin(kafka_cluster.bootstrap) as admin:
        admin.create_topics({topic: TopicSpec(1)})
    command = [sys.executable, "-c", PROGRAM, name, kafka_cluster.bootstrap, topic]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr
    assert "Exception" not in ended.stderr


def test_a_producer_says_that_it_was_opened_in_another_process(monkeypatch):
    with Small(chain()) as system, system.producer() as producer:
        receipt = producer.multicast(b"", to={"P1"})
        receipt.accepted()
        with monkeypatch.context() as forked:
            forked.setattr(home_process._here, "pid", -1)
            for call in (
                lambda: producer.multicast(b"", to={"P1"}),
                lambda: producer.multicast_all([b""], to={"P1"}),
                lambda: producer.declares({"P1"}),
                receipt.ordered,
                receipt.decided,
                producer.flush,
            ):
                with pytest.raises(UsageError, match="open one after the fork"):
                    call()
            producer.close()
        producer.multicast(b"", to={"P1"}).accepted()
