"""Facts with one planted fault give its finding; a sound deployment gives none."""

from dataclasses import replace

import pytest

from collectors.core.mending import Damage, Harm
from collectors.doctor.checks import findings, of_unordered
from collectors.doctor.consumer_checks import STANDS_MS, of_certificates
from collectors.doctor.facts import (
    AheadLog,
    BrokerFacts,
    CollectorFacts,
    Facts,
    GroupFacts,
    GroupPosition,
    HeldLog,
    PartitionFacts,
    Role,
    Stamp,
    TopicFacts,
)
from collectors.doctor.finding import Check, Weight, refuse
from multicast.drivers.kafka import OpenTransaction
from multicast.errors import TopicChanged, UnsafeCluster
from tests.helpers.plans import poster

NOW = 1_800_000_000_000
HOUR = 3_600_000
DAY = 24 * HOUR
IDS = {"A": "1", "A.Msg-TO": "2"}
SETTINGS = {
    "cleanup.policy": "delete",
    "min.insync.replicas": "2",
    "retention.bytes": "-1",
    "retention.ms": str(7 * DAY),
    "unclean.leader.election.enable": "false",
}
BROKER = {"unclean.leader.election.enable": "false", "offsets.retention.minutes": "10080"}


def topic(name, role, **settings):
    changed = {key.replace("_", "."): value for key, value in settings.items()}
    held = PartitionFacts(0, 1, (1, 2, 3), (1, 2, 3))
    return TopicFacts(name, role, {**SETTINGS, **changed}, (held,))


DATA = topic("A", Role.DATA)
ORDER = topic("A.Msg-TO", Role.ORDER, retention_ms=str(8 * DAY))
CONTROL = topic("A.topology", Role.CONTROL, cleanup_policy="compact")
ABOVE = CollectorFacts("K1", None, is_open=True, records=5, last_ms=NOW - 100)
STATED = topic("A.collectors", Role.COLLECTORS, cleanup_policy="compact")
AHEAD = AheadLog("P1", "K1", 12, 9, "a producer's ticket at offset 7", 14_000)
BELOW = CollectorFacts("K2", "K1", is_open=True, records=5, last_ms=NOW - 100)
HELD = HeldLog("P1", "A", 0, 5, 9, (OpenTransaction(7, 0, 5, NOW - HOUR),))
PLACE = GroupPosition("P1", "A", position=10, begin=0, end=100)
GROUP = GroupFacts("C1", "1/K1/3/0/10", (), NOW - 1_000, 1, (PLACE,))
WAITS = replace(PLACE, first=20, oldest_ms=NOW - HOUR)
STANDS = replace(GROUP, places=(WAITS,), committed_ms=None)
SOUND = Facts(
    topic="A",
    now_ms=NOW,
    plan=replace(poster(), topic_ids=IDS),
    begun_epoch=1,
    topic_ids=IDS,
    brokers=tuple(BrokerFacts(number, False, BROKER) for number in (1, 2, 3)),
    topics=(DATA, ORDER, CONTROL, STATED),
    collectors=(ABOVE, BELOW),
    groups=(GROUP,),
    stamps=(Stamp("the controller", NOW, NOW + 20, NOW - 20), Stamp("K1", NOW - DAY, NOW)),
)


def held(*, leader=1, in_sync=(1, 2, 3), replicas=(1, 2, 3), of=DATA):
    return replace(of, partitions=(PartitionFacts(0, leader, replicas, in_sync),))


def with_topic(changed):
    kept = tuple(changed if topic.name == changed.name else topic for topic in SOUND.topics)
    return replace(SOUND, topics=kept)


def with_collectors(*collectors):
    return replace(SOUND, collectors=collectors)


def with_place(of=DATA, **changed):
    group = replace(GROUP, places=(replace(PLACE, **changed),))
    return replace(with_topic(of), groups=(group,))


def with_stamp(*stamp):
    return replace(SOUND, stamps=(Stamp("K9", *stamp),))


def test_a_sound_deployment_has_no_finding():
    assert findings(SOUND) == ()


def test_partitions_that_the_plan_does_not_order_are_named():
    plan = poster()
    for count, expected in ((5, []), (6, ["in partition 5"]), (7, ["in partitions 5, 6"])):
        partitions = tuple(PartitionFacts(number, 1, (1,), (1,)) for number in range(count))
        results = of_unordered(plan, [replace(DATA, partitions=partitions)])
        assert [finding.says.split("gets the messages ")[1] for finding in results] == expected
        assert {finding.weight for finding in results} <= {Weight.WARN}


BY_BYTES = topic("A", Role.DATA, retention_bytes="1000")
PLANTED = {
    (Weight.REFUSE, Check.UNCLEAN): [
        (
            replace(
                SOUND, brokers=(BrokerFacts(1, False, {"unclean.leader.election.enable": "true"}),)
            ),
            "broker 1 has unclean.leader.election.enable=true",
        ),
        (
            with_topic(topic("A", Role.DATA, unclean_leader_election_enable="true")),
            "topic A has unclean.leader.election.enable=true",
        ),
    ],
    (Weight.REFUSE, Check.IN_SYNC): [
        (
            with_topic(topic("A.Msg-TO", Role.ORDER, retention_ms="-1", min_insync_replicas="1")),
            "replication 3 and min.insync.replicas 1",
        )
    ],
    (Weight.WARN, Check.IN_SYNC): [
        (with_topic(topic("A", Role.DATA, min_insync_replicas="4")), "so nothing can be appended")
    ],
    (Weight.REFUSE, Check.COMPACTION): [
        (
            with_topic(topic("A", Role.DATA, cleanup_policy="compact")),
            "topic A has cleanup.policy=compact, so messages",
        ),
        (
            with_topic(
                topic("A.Msg-TO", Role.ORDER, retention_ms="-1", cleanup_policy="delete,compact")
            ),
            "their order may be deleted",
        ),
        (
            with_topic(topic("A.topology", Role.CONTROL, cleanup_policy="compact,delete")),
            "so plans may be deleted",
        ),
        (with_topic(topic("A.collectors", Role.COLLECTORS)), "so checkpoints may be deleted"),
    ],
    (Weight.NOTE, Check.COMPRESSION): [
        (
            with_topic(topic("A", Role.DATA, compression_type="lz4")),
            "so a small record may take all memory of a broker",
        )
    ],
    (Weight.REFUSE, Check.RETENTION): [
        (
            with_topic(topic("A.Msg-TO", Role.ORDER, retention_ms=str(DAY))),
            "messages may outlive their order",
        ),
        (
            with_topic(topic("A.Msg-TO", Role.ORDER, retention_ms="-1", retention_bytes="9")),
            "retention.bytes=9, so messages may outlive",
        ),
    ],
    (Weight.REFUSE, Check.TOPIC_CHANGED): [
        (replace(SOUND, topic_ids={"A": "7", "A.Msg-TO": "2"}), "(it was deleted and recreated)"),
        (replace(SOUND, topic_ids={"A": "1"}), "topic A.Msg-TO is not the one"),
    ],
    (Weight.WARN, Check.BROKER): [
        (
            replace(SOUND, brokers=(*SOUND.brokers, BrokerFacts(4, True, {}))),
            "broker 4 cannot be reached",
        )
    ],
    (Weight.WARN, Check.PARTITION): [
        (with_topic(held(leader=-1, in_sync=())), "A/0 has no leader"),
        (with_topic(held(in_sync=(1,))), "A/0 has 1 in-sync replicas of 2 needed"),
        (with_topic(held(in_sync=(1, 3))), "A/0 has 2 of 3 replicas in sync"),
    ],
    (Weight.WARN, Check.EPOCH): [
        (Facts("A", NOW, brokers=SOUND.brokers), "no plan was applied to topic A"),
        (replace(SOUND, begun_epoch=0), "epoch 1 has not begun"),
    ],
    (Weight.WARN, Check.FOREIGN): [
        (
            replace(SOUND, control_foreign=(3, 8)),
            "A.topology holds 2 foreign records, the last at offset 8",
        ),
        (
            replace(SOUND, collectors_foreign=(3,)),
            "A.collectors holds a foreign record, the last at offset 3",
        ),
        (
            with_collectors(replace(ABOVE, foreign=(17,))),
            "stream of collector K1 holds a foreign record, the last",
        ),
    ],
    (Weight.WARN, Check.COLLECTOR): [
        (
            with_collectors(replace(ABOVE, problem="the stream cannot be read")),
            "the stream cannot be read",
        ),
        (
            with_collectors(replace(ABOVE, behind={"P1": 3, "P2": 4}, oldest_ms=NOW - 300_000)),
            "K1 has not ordered 7 offsets of P1 P2, the first for 5 min; its last record is 0.1 s",
        ),
        (
            with_collectors(
                BELOW, CollectorFacts("K1", None, is_open=False, records=0, behind={"P1": 1})
            ),
            "it has ordered nothing in this epoch",
        ),
    ],
    (Weight.WARN, Check.AHEAD): [
        (
            with_collectors(replace(ABOVE, ahead=(AHEAD,))),
            "3 offsets from 9 on; they were ordered 14.0 s ago by a producer's ticket at offset 7",
        ),
        (
            with_collectors(replace(ABOVE, ahead=(replace(AHEAD, by="", for_ms=None),))),
            "from 9 on; that record stands before those that were read",
        ),
    ],
    (Weight.NOTE, Check.COLLECTOR): [
        (
            with_collectors(replace(ABOVE, ended_at="127.0.0.1:6066")),
            "acted for collector K1 has ended: nobody listens at 127.",
        ),
        (
            with_collectors(CollectorFacts("K1", None, is_open=False, records=0)),
            "nobody has started collector K1 in this epoch",
        ),
    ],
    (Weight.WARN, Check.DAMAGE): [
        (
            replace(SOUND, damages=(Damage(Harm.FROZEN, "K1", "K1's stream was ended"),)),
            "K1's stream was ended",
        )
    ],
    (Weight.WARN, Check.TRANSACTION): [
        (
            replace(SOUND, held=(HELD,)),
            "wait for a transaction of producer 7 (epoch 0), which has been open for 60 min",
        ),
        (
            replace(SOUND, held=(HeldLog("P1", "A", 0, 5, 9),)),
            "its consumers wait for an open transaction",
        ),
    ],
    (Weight.WARN, Check.CONSUMER): [
        (
            replace(SOUND, groups=(replace(GROUP, problem="its cursor is not valid"),)),
            "its cursor is not valid",
        ),
        (
            replace(SOUND, groups=(replace(STANDS, committed_ms=NOW - STANDS_MS - 1),)),
            "consumer C1 has stood for 2 min, and 80 messages wait",
        ),
        # Who committed without a time: since the message came.
        (
            replace(SOUND, groups=(STANDS,)),
            "consumer C1 has stood for 60 min, and 80 messages wait",
        ),
        (
            replace(
                SOUND, groups=(replace(STANDS, cursor=f"1/K1/0/0/0/{16 * 'a'}/{8 * '0'}/0/7"),)
            ),
            "it is exclusive: if it hangs, no other one takes over until it is ended",
        ),
    ],
    (Weight.NOTE, Check.CONSUMER): [
        (
            replace(SOUND, groups=(GROUP, GroupFacts("C2", ""), GroupFacts("C3", ""))),
            "no group has committed for consumers C2 C3",
        )
    ],
    (Weight.WARN, Check.RETENTION): [
        (with_place(begin=11), "it continues at offset 10 of P1, which begins at 11"),
        (
            with_place(oldest_ms=NOW - 4 * DAY),
            "retention may overtake consumer C1 in 3 days: it has 90 offsets",
        ),
        (
            with_place(oldest_ms=NOW - 8 * DAY),
            "retention may overtake consumer C1 at any moment: it has",
        ),
        (
            with_place(of=BY_BYTES, bytes_left=500),
            "it has about 500 bytes of P1 to read; topic A keeps 1000",
        ),
    ],
    (Weight.NOTE, Check.RETENTION): [
        (
            replace(
                SOUND,
                brokers=(BrokerFacts(1, False, {**BROKER, "offsets.retention.minutes": "60"}),),
            ),
            "delete the cursor of a consumer that is inactive for 60 min",
        )
    ],
    (Weight.NOTE, Check.REPLICATION): [
        (
            with_topic(held(replicas=(1,), in_sync=(1,), of=replace(DATA, settings=SETTINGS))),
            "topics have replication 1, so the loss of one broker",
        )
    ],
    (Weight.WARN, Check.CLOCK): [
        (with_stamp(NOW + 6_000, NOW), "the clock of K9 is at least 6.0 s ahead of ours"),
        (
            with_stamp(NOW - 3 * HOUR, NOW, NOW - 1_000),
            "the clock of K9 is at least 3 h behind ours",
        ),
    ],
    (Weight.NOTE, Check.UNSEEN): [
        (
            replace(SOUND, unseen=("consumer groups cannot be seen: denied",)),
            "consumer groups cannot be seen",
        ),
        (
            replace(SOUND, unchecked={"10.0.0.7:6066": "not checked: the settings of brokers"}),
            "the process at 10.0.0.7:6066: not checked: the settings",
        ),
    ],
}


ROWS = [(facts, *key, words) for key, rows in PLANTED.items() for facts, words in rows]


@pytest.mark.parametrize(("facts", "weight", "check", "words"), ROWS, ids=[row[3] for row in ROWS])
def test_what_is_planted_is_found_with_what_to_do(facts, weight, check, words):
    results = [finding for finding in findings(facts) if finding.check is check]
    matching = [each for each in results if each.weight is weight and words in each.says]
    assert matching, results
    assert all(finding.do and finding.about for finding in results)


def test_what_is_lost_is_one_finding_with_the_command_that_accepts_it():
    lost = Damage(Harm.LOST, "K1", "P1 has lost its end", "P1", 9)
    unread = CollectorFacts("K2", None, is_open=True, records=0, problem="it cannot be read")
    cut = Damage(Harm.CUT, "K2", "K2's stream has lost its end")
    facts = with_collectors(replace(ABOVE, ahead=(AHEAD,)), unread)
    found = findings(replace(facts, damages=(lost, cut)))
    assert [(each.about, each.says) for each in found] == [
        ("log P1", "P1 has lost its end"),
        ("collector K2", "K2's stream has lost its end"),
    ]
    assert all("'amcast topology recover --accept-loss'" in each.do for each in found)


def test_every_weight_and_check_is_planted():
    weights, checks = zip(*PLANTED, strict=True)
    assert (set(weights), set(checks)) == (set(Weight), set(Check) - {Check.CERTIFICATE})


def test_a_certificate_that_ends_within_a_month_is_a_warning():
    ends = {("ssl.certificate.location", "c.pem"): 40 * DAY / 1000}
    assert of_certificates(ends, now=0.0) == []
    (finding,) = of_certificates(ends, now=20 * DAY / 1000)
    assert (finding.weight, finding.check) == (Weight.WARN, Check.CERTIFICATE)
    assert "c.pem" in finding.says


@pytest.mark.parametrize(
    "sound",
    [
        with_place(oldest_ms=NOW - 3 * DAY),
        replace(SOUND, held=(replace(HELD, opened=(OpenTransaction(7, 0, 5, NOW - 500),)),)),
        with_place(position=100, oldest_ms=NOW - 9 * DAY),
        replace(SOUND, groups=(replace(STANDS, committed_ms=NOW - STANDS_MS + 1),)),
        with_place(first=20, oldest_ms=NOW - HOUR, ordered=20),  # nobody has ordered it yet
        with_place(first=100),  # skips and epoch markers
        with_place(of=BY_BYTES, bytes_left=499),
        with_stamp(NOW + 4_000, NOW),
        with_stamp(NOW - 30 * DAY, NOW),  # an old record: nobody can say what clock wrote it
        with_stamp(NOW - 3_000, NOW, NOW - 1_000),
        with_topic(topic("A.Msg-TO", Role.ORDER, retention_ms=str(7 * DAY))),
    ],
)
def test_what_is_near_a_limit_and_within_it_is_not_found(sound):
    assert findings(sound) == ()


def test_a_collector_below_a_late_one_is_not_blamed_for_what_that_one_left():
    late = {"behind": {"P2": 4}, "oldest_ms": NOW - 2_000}
    both = with_collectors(replace(ABOVE, **late), replace(BELOW, **late))
    assert [finding.about for finding in findings(both)] == ["collector K1"]
    lone = with_collectors(ABOVE, replace(BELOW, **late))
    assert [finding.about for finding in findings(lone)] == ["collector K2"]


def test_many_collectors_of_a_process_that_ended_are_one_finding():
    names = [f"K{number}" for number in range(1, 101)]
    gone = [replace(ABOVE, name=name, ended_at="127.0.0.1:6066") for name in names[:60]]
    never = [CollectorFacts(name, None, is_open=False, records=0) for name in names[60:]]
    ended, missing = findings(replace(with_collectors(*gone, *never), members=1))
    assert "acted for collectors K1 K2 K3 K4 K5 K6 and 54 more has ended" in ended.says
    assert missing.says == (
        "nobody has started collectors K61 K62 K63 K64 K65 K66 and 34 more in this epoch"
    )


def test_the_worst_comes_first_and_refused_with_what_to_do():
    bad = replace(
        with_topic(topic("A", Role.DATA, cleanup_policy="compact")),
        unseen=("something",),
        topic_ids={"A": "1"},
    )
    assert [finding.weight for finding in findings(bad)] == [
        Weight.REFUSE,
        Weight.REFUSE,
        Weight.NOTE,
    ]
    with pytest.raises(
        TopicChanged, match=r"was deleted\); .*\. Besides, topic A has cleanup\.policy"
    ):
        refuse(findings(bad))
    compacted = [finding for finding in findings(bad) if finding.check is Check.COMPACTION]
    with pytest.raises(UnsafeCluster, match=r"has cleanup\.policy=compact, .*; set it to delete$"):
        refuse(compacted)
    refuse(finding for finding in findings(bad) if finding.weight is not Weight.REFUSE)
