"""`amcast explain`: a message that is delivered, and messages for which somebody waits."""

import json
from contextlib import closing
from dataclasses import replace

import pytest

from collectors.explain.facts import (
    ExplainedMessage,
    Hop,
    LogFacts,
    OrderPlace,
    StoredRecord,
    lines,
    waits,
)
from collectors.explain.inspection import message_of
from multicast import MessageID, Producer, UsageError, nothing_after
from multicast.control import log_partition
from multicast.drivers.kafka import Admin
from tests.helpers.system import PATIENCE_S, amcast, open_transaction
from topology.tree import Subscription

BOTH = {"P1", "P3"}
LOG = "P1+P3"


# -- what follows from the facts --------------------------------------------------------------

RECORD = StoredRecord("message", ("P1", "P3"), 1000, 5)
PLACE = OrderPlace(7, 1002, {})
FACTS = ExplainedMessage(
    MessageID(LOG, 17),
    now_ms=60_000,
    epoch=1,
    log=LogFacts("A.groups/0", 0, 20, 20),
    record=RECORD,
    hops=(
        Hop("K1", None, "A.Msg-TO/0", PLACE, 20, 1002),
        Hop("K2", "K1", "A.Msg-TO/1", PLACE, 20, 1002),
    ),
    readers=tuple(Subscription(f"C{n}", (), k) for n, k in ((1, "K1"), (2, "K2"), (3, None))),
)


def hop(number, **changes):
    hops = list(FACTS.hops)
    hops[number] = replace(hops[number], **changes)
    return tuple(hops)


@pytest.mark.parametrize(
    ("facts", "sentences"),
    [
        (FACTS, []),
        (replace(FACTS, log=LogFacts("A.groups/0", 18, 20, 20), record=None), []),
        (
            replace(FACTS, hops=hop(1, place=None, ordered_to=15)),
            ["collector K2 and who reads its order: it has ordered log P1+P3 up to offset 15; its"],
        ),
        (
            replace(FACTS, hops=(*hop(0, place=None)[:1], *hop(1, place=None)[1:])),
            ["collector K1 and who reads its order"],  # K2 waits for K1: one cause
        ),
        (
            replace(FACTS, hops=hop(1, place=replace(PLACE, ahead={"P2": (3, 5)}))),
            ["consumer C2: offset 3 of log P2 was ordered early and is not stored yet"],
        ),
        (
            replace(FACTS, log=LogFacts("A.groups/0", 0, 10, 20, "transaction t is open"),
                    record=None),
            ["all readers: transaction t is open, and Kafka gives nothing behind it"],
        ),
        (
            replace(FACTS, log=LogFacts("A.groups/0", 0, 10, 10), record=None),
            ["all readers: the offset was ordered early, and log P1+P3 is stored up to 10 only"],
        ),
        (
            replace(FACTS, log=LogFacts("A.groups/0", 0, 10, 10, lost=9), record=None),
            ["all readers: log P1+P3 has lost its messages from offset 9 on"],
        ),
        (replace(FACTS, log=replace(FACTS.log, lost=18)), []),
        (
            replace(FACTS, log=LogFacts("A.groups/0", 0, 9, 9), record=None,
                    hops=(*hop(0, place=None)[:1], *hop(1, place=None)[1:])),
            ["nobody: log P1+P3 ends at 9: there is no such message yet"],
        ),
        (
            replace(FACTS, log=LogFacts("A.groups/0", 0, 20, 20, lost=16), record=None),
            ["all readers: log P1+P3 has lost its messages from offset 16 on"],
        ),
        (
            replace(FACTS, log=LogFacts("A.groups/0", 0, 20, 20, lost=16, accepted=True)),
            [],
        ),
    ],
)  # fmt: skip
def test_the_first_cause_of_a_wait_is_named(facts, sentences):
    said = [f"{wait.who}: {wait.why}" for wait in waits(facts)]
    assert len(said) == len(sentences)
    for text, beginning in zip(said, sentences, strict=True):
        assert text.startswith(beginning)
    screen = "\n".join(lines(facts))
    for text in said:
        assert text in screen


@pytest.mark.parametrize(
    "text", ["", "P1", "P1:", ":7", "P1:-1", "P1:x", "P1:٣", "P1~0:7", "P1~:7", "P1~x:7", "~1:7"]
)
def test_what_is_no_id_is_refused(text):
    with pytest.raises(UsageError, match="is not a message's ID"):
        message_of(text)


def test_the_partitions_of_an_id_may_stand_in_any_order_and_a_later_life_is_in_it():
    assert message_of("P3+P1:17") == MessageID(LOG, 17)
    assert message_of("P3+P1~2:17") == MessageID(LOG, 17, 2)
    assert str(MessageID(LOG, 17, 2)) == "P1+P3~2:17"
    assert MessageID(LOG, 17, 2) != MessageID(LOG, 17)


# -- on a cluster -----------------------------------------------------------------------------


def explain(system, message, code):
    done = amcast("explain", str(message), *system.common(), "-o", "json")
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_a_message_is_followed_from_its_log_to_its_consumers(system):
    with Producer(topic=system.topic, driver=system.driver, tickets=False) as producer:
        first = producer.multicast(b"early", to=BOTH).accepted(PATIENCE_S)
        document = explain(system, first, 1)
        assert "collectors run" in document["waits"][0]["do"]
        assert not any(hop["place"] for hop in document["hops"])
        system.order()
        here = producer.multicast(b"first", to=BOTH).ordered(PATIENCE_S)
        tags = {"a"}
        for _ in range(2):
            expect = nothing_after(here, tags=tags)
            last = producer.multicast(b"twice", to=BOTH, tags=tags, expect=expect)
        void = last.ordered(PATIENCE_S)
        covered = producer.multicast(b"covered", to={"P2", "P4"}).ordered(PATIENCE_S)
    names = {entry.name for entry in system.plan.consumers if BOTH & set(entry.interest)}
    # A child may be behind its parent, whose order `ordered` waits for: then somebody waits still.
    done = amcast("receive", *system.common(), "-n", "C3", "--until-end")
    assert done.returncode == 0, done.stderr
    document = explain(system, first, 0)
    assert document["record"]["to"] == ["P1", "P3"]
    assert document["record"]["bytes"] == 5
    assert set(document["consumers"]) == names
    assert all("may deliver it" in state for state in document["consumers"].values())
    assert all(hop["place"]["record"] >= 0 for hop in document["hops"])
    bags = [node.name for node in system.plan.collectors if LOG in node.bag]
    assert sorted(hop["collector"] for hop in document["hops"]) == sorted(bags)
    document = explain(system, void, 0)
    assert document["record"]["decision"] == f"void: message {LOG}:{void.offset - 1} conflicts"
    assert set(document["consumers"].values()) == {"passes over it"}
    assert explain(system, covered, 0)["record"]["to"] == ["P2", "P4"]
    shown = amcast("explain", str(void), *system.common())
    assert "conditional: void" in shown.stdout
    assert "Nobody waits." in shown.stdout


def test_an_open_transaction_a_removed_message_and_unknown_ids_are_named(system):
    log = system.plan.log("P3")
    producer = open_transaction(system, log)
    with closing(system.driver.reader({})):
        document = explain(system, "P3:0", 1)
    assert f"transaction {system.topic} is open from offset 0" in document["waits"][0]["why"]
    producer.abort_transaction(PATIENCE_S)
    assert explain(system, "P3:0", 1)["record"] is None  # aborted; no collector runs
    assert "there is no such message" in explain(system, "P3:99", 1)["waits"][0]["why"]
    with Admin(system.bootstrap) as admin:
        admin.delete_records({log_partition(log): 1})
    assert explain(system, "P3:0", 0)["log"]["first"] == 1
    for wrong, sentence in [("P9:0", "has a log P9"), ("P3", "is not a message's ID")]:
        done = amcast("explain", wrong, *system.common())
        assert done.returncode == 2
        assert sentence in done.stderr
