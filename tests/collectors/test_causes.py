"""What follows from another cause is a detail of that one, and each cause is a line."""

from dataclasses import replace

import pytest

from collectors.doctor.checks import findings
from collectors.doctor.facts import BrokerFacts, PartitionFacts, Role
from collectors.doctor.finding import Check
from collectors.reconfiguration.apply import Applied
from tests.collectors.test_checks import (
    ABOVE,
    AHEAD,
    BELOW,
    DATA,
    HELD,
    NOW,
    ORDER,
    ROWS,
    SOUND,
    STANDS,
    topic,
    with_collectors,
    with_topic,
)
from tests.helpers.plans import chain


@pytest.mark.parametrize(
    ("changes", "nobody"),
    [
        ({"ended_at": "127.0.0.1:6066", "behind": {"P1": 3}}, True),
        ({"is_open": False, "behind": {"P1": 3}}, True),
        ({"ended_at": "127.0.0.1:6066", "members": 0}, True),
        ({"ended_at": "127.0.0.1:6066", "members": 1}, False),  # a standby may take over
        ({"behind": {"P1": 3}, "members": 0}, True),  # on machines that cannot be asked
        ({"behind": {"P1": 3}, "members": 1}, False),
        ({"members": 0}, False),  # one with --node is in no group
    ],
)
def test_that_no_process_of_collectors_runs_is_one_cause(changes, nobody):
    # Init: what is ordered ahead stays so, because nobody fills it.
    members = changes.pop("members", None)
    late = [replace(each, oldest_ms=NOW - 300_000, **changes) for each in (ABOVE, BELOW)]
    late[0] = replace(late[0], ahead=(AHEAD,))

    # Test.
    found = findings(replace(with_collectors(*late), members=members))

    # Check.
    says = "no process of collectors runs"
    assert any(each.says.startswith(says) for each in found) == nobody
    if nobody:
        (cause,) = found
        waits = ": nobody orders 3 offsets of P1, the first for 5 min"
        assert cause.brief == says + waits * ("behind" in changes) + " → amcast collectors run"
        assert cause.details == (AHEAD.says(),)


def test_a_dead_broker_is_one_cause_and_what_its_partitions_lack_is_its_detail():
    # Init: 15 partitions have two replicas left; two of them need three.
    short = tuple(PartitionFacts(number, 1, (1, 2, 3), (1, 2)) for number in range(13))
    strict = topic("A.Msg-TO", Role.ORDER, retention_ms="-1", min_insync_replicas="3")
    dead = replace(
        with_topic(replace(DATA, partitions=short)),
        brokers=(*SOUND.brokers[:2], BrokerFacts(3, True, {})),
    )
    topics = tuple(replace(strict, partitions=short[:2]) if each is ORDER else each
                   for each in dead.topics)  # fmt: skip

    # Test.
    found = [each for each in findings(replace(dead, topics=topics)) if each.check is Check.BROKER]
    others = findings(replace(dead, topics=topics, brokers=SOUND.brokers))

    # Check.
    (cause,) = found
    lacks = "15 partitions lack replicas, and 2 refuse appends"
    assert cause.brief == f"broker 3 cannot be reached: {lacks}"
    assert len(cause.details) == 15
    (lagging,) = [each for each in others if each.do == "check broker 3"]  # it answers, and lags
    assert lagging.says.startswith("A.Msg-TO/0 has 2 in-sync replicas of 3 needed")
    assert len(lagging.details) == 14


@pytest.mark.parametrize("facts", [row[0] for row in ROWS])
def test_a_cause_is_a_line_and_a_long_one_says_the_rest_in_its_details(facts):
    for finding in findings(facts):
        text = finding.brief.split(" → ")[0]
        assert len(text) <= 100
        assert finding.says.startswith(text.split(" ")[0])
    assert len({each.brief for each in findings(facts)}) == len(findings(facts))


def test_a_setting_of_several_topics_is_one_cause():
    unsafe = tuple(
        replace(each, settings={**each.settings, "min.insync.replicas": "1"})
        for each in SOUND.topics
    )
    (found,) = findings(replace(SOUND, topics=unsafe))
    others = "A.Msg-TO A.topology A.collectors"
    assert found.brief == f"topic A (and {others}) has replication 3 and min.insync.replicas 1"


def test_no_cause_is_hidden_however_many_there_are_and_logs_of_one_transaction_are_one():
    # Init.
    stand = tuple(replace(STANDS, group=f"C{number}") for number in range(20))
    logs = tuple(replace(HELD, log=f"P{number}", partition=number) for number in range(10))

    # Test.
    found = findings(replace(SOUND, groups=stand, held=logs))

    # Check.
    assert [each.check for each in found] == [Check.TRANSACTION] + [Check.CONSUMER] * 20
    assert len(found[0].details) == 9
    assert found[0].brief.endswith("→ kafka-transactions.sh abort --topic A --partition 0 "
                                   "--start-offset 5")  # fmt: skip


@pytest.mark.parametrize(
    ("missing", "tickets", "waits"),
    [
        ((), False, False),
        (("K1",), True, False),  # tickets order what enters at a collector without a parent
        (("K1",), False, True),
        (("K2",), True, True),  # nobody relays to its readers
    ],
)
def test_apply_fails_for_a_missing_collector_only_where_messages_with_tickets_wait(
    missing, tickets, waits
):
    plan = replace(chain(), tickets=tickets)
    assert Applied(plan, (), changed=True, not_running=missing).waits == waits
