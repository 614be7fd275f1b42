"""The Spark pipeline: a real run by real clients, figured and judged; and planted faults found."""

import contextlib
import io
import json
from dataclasses import dataclass, replace

import pytest
import typer

from bench.comparison.arms import Arm, MeasuredCluster
from bench.comparison.events import PARTITIONS, events_topic
from bench.comparison.workload import from_document
from bench.pipeline import judge
from bench.pipeline.cli import pipeline
from bench.pipeline.rule import Pair, PlannedOrder, Statement, read_control
from bench.pipeline.session import spark
from multicast.control import ends_record, markers_record, plan_record
from multicast.drivers import open_driver
from multicast.drivers.kafka import Admin, TopicSpec
from multicast.drivers.protocol import Appended, TopicPartition
from multicast.errors import UnknownVersion
from multicast.order import records as tickets
from multicast.order.runs import digest_of
from tests.helpers.driver_worlds import append_all, whole
from tests.helpers.plans import chain
from topology.output import Output

# Little work in many small jobs: compiling it well costs more than it saves.
SETTINGS = [
    "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1",
    "spark.sql.shuffle.partitions=2",
]
MESSAGES, WARM_UP = 300, 50
# pyspark leaves the sockets of its answers to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning",
    "ignore:unclosed <socket:ResourceWarning",
)


def order_of(plan):
    order = PlannedOrder()
    first = plan_record(digest_of(b"amcast genesis\0" + plan.topic.encode()), plan, attempt="a")
    rival = plan_record(digest_of(b"another"), replace(plan, input_hash="x"), attempt="b")
    read_control(plan.topic, [Statement(*rival), Statement(*first), Statement(b"x", None)], order)
    return order


@pytest.mark.parametrize("version", [1, 2, 4])
def test_a_plan_of_an_unknown_version_stops_the_judge(version):
    with pytest.raises(UnknownVersion, match="epoch 1 of topic A has order records of a version"):
        order_of(replace(chain(), order_version=version))


def test_a_rival_plan_does_not_count_and_an_epoch_begins_where_the_last_one_ended():
    plan, order = chain(), PlannedOrder()
    first = plan_record(digest_of(b"amcast genesis\0A"), plan, attempt="a")
    moved = [replace(node, stream=node.stream + 2) for node in plan.collectors]
    after = replace(chain(epoch=2), collectors=tuple(moved))
    second = plan_record(digest_of(first[1]), after, attempt="a")
    positions = {"P1": 7, "P2": 8, "P3": 9, "P4": 1}
    early = ends_record(digest_of(second[1]), 1, positions, attempt="a")
    markers = markers_record(digest_of(second[1]), 1, positions, attempt="a")
    ends = ends_record(digest_of(markers[1]), 1, positions, attempt="a")
    rival = ends_record(digest_of(markers[1]), 1, {**positions, "P1": 9}, attempt="a")
    third = plan_record(digest_of(ends[1]), chain(epoch=3), attempt="a")
    said = [first, second, early, markers, ends, rival, third]
    read_control("A", [Statement(*one) for one in said], order)
    assert [(rule.epoch, rule.collector) for rule in order.rules] == [
        (1, "K1"), (1, "K2"), (2, "K1"), (2, "K2"),
    ]  # fmt: skip
    assert order.rules[2].starts == {0: 7, 1: 8}
    assert order.single_log == [("A", "C4"), ("A", "C4")]


def test_a_collector_that_is_carried_over_goes_on_under_the_plan_in_which_it_began():
    order = PlannedOrder()
    first = plan_record(digest_of(b"amcast genesis\0A"), chain(), attempt="a")
    second = plan_record(digest_of(first[1]), chain(epoch=2), attempt="a")
    markers = markers_record(digest_of(second[1]), 1, {}, attempt="a")
    said = [first, second, markers, ends_record(digest_of(markers[1]), 1, {}, attempt="a")]
    read_control("A", [Statement(*one) for one in said], order)
    assert [(rule.epoch, rule.collector) for rule in order.rules] == [(1, "K1"), (1, "K2")]
    assert {(reader.epoch, reader.consumer) for reader in order.readers} == {(1, "C1"), (1, "C2")}


# -- a real run -----------------------------------------------------------------------------


@dataclass
class Measured:
    bootstrap: str
    run: str
    rounds: dict
    folder: str


def stored(driver, topic, count):
    """All records of a topic by Kafka partition."""
    return {
        at: [record.value for record in whole(driver, TopicPartition(topic, at))]
        for at in range(count)
    }


def append(driver, topic, values):
    with contextlib.closing(driver.appender()) as appender:
        for at, raws in values.items():
            outcomes = append_all(appender, TopicPartition(topic, at), raws)
            assert all(isinstance(outcome, Appended) for outcome in outcomes)


@pytest.fixture(scope="module")
def measured(kafka_cluster, tmp_path_factory):
    """Two arms of a run, a round each, by real producers, collectors and consumers."""
    folder = tmp_path_factory.mktemp("pipeline")
    asked = {"kind": "one", "size": 3, "message_bytes": 100, "load": 500}
    workload = from_document({**asked, "messages": MESSAGES, "warm_up": WARM_UP}, name="w")
    driver = open_driver("librdkafka", kafka_cluster.bootstrap)
    cluster = MeasuredCluster(kafka_cluster.bootstrap, driver, (), folder, run=f"w-{folder.name}")
    rounds = {}
    for name in ("ordered", "plain"):
        with Arm(workload, name, cluster) as arm:
            arm.warm_up()
            rounds[name] = arm.round(1)
            arm.write_events(1)
            if name == "ordered":
                # What does not count stands there, too: foreign bytes, and a relay in a root.
                stream = TopicPartition(f"{arm._topic}.Msg-TO", 0)
                first = stored(driver, stream.topic, 1)[0][0]
                relay = tickets.encode(first[3:19], tickets.RelayRecord(0, 1, ()))
                append(driver, stream.topic, {0: [b"no order record", relay]})
    yield Measured(kafka_cluster.bootstrap, cluster.run, rounds, str(folder))
    driver.close()


def run_pipeline(measured, run, *, code=0, **options):
    """Run the command in the open session; its document. Its exit code must be as said."""
    said = io.StringIO()
    ended = 0
    with contextlib.redirect_stdout(said):
        try:
            pipeline([run], bootstrap=measured.bootstrap, output=Output.JSON, **options)
        except typer.Exit as exit_:
            ended = exit_.exit_code
    assert ended == code
    return json.loads(said.getvalue())


@pytest.fixture(scope="module")
def session():
    with spark(settings=dict(one.split("=", 1) for one in SETTINGS), progress=str) as opened:
        yield opened


@pytest.fixture(scope="module")
def batch(measured, session):
    assert session.version == "4.2.0"
    return run_pipeline(measured, measured.run, out=f"{measured.folder}/out")


def test_void_order_records_are_told_and_take_no_place(batch):
    assert batch["order"]["void"] == {"foreign": 1, "impossible": 1}
    assert batch["order"]["unplaced"] == 0


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("session")
def test_two_swapped_deliveries_end_with_3_and_a_lost_one_is_counted(measured):
    # Init: the same events under another name; two deliveries changed places, one never was.
    run = f"{measured.run}-wrong"
    driver = open_driver("librdkafka", measured.bootstrap)
    told = stored(driver, events_topic(measured.run), PARTITIONS)
    told = {at: [{**json.loads(one), "run": run} for one in ones] for at, ones in told.items()}
    deliveries = {
        (one["arm"], one["sequence"]): one
        for ones in told.values()
        for one in ones
        if one.get("role") == "consumer"
    }
    at = next(
        number
        for number in range(10, MESSAGES)
        if deliveries["ordered", number]["log"] != deliveries["ordered", number + 1]["log"]
    )
    one, other = (deliveries["ordered", number] for number in (at, at + 1))
    one["sequence"], other["sequence"] = other["sequence"], one["sequence"]
    lost = deliveries["plain", 77]
    with Admin(measured.bootstrap) as admin:
        admin.create_topics({events_topic(run): TopicSpec(PARTITIONS)})
    raws = {
        at: [json.dumps(one).encode() for one in ones if one is not lost]
        for at, ones in told.items()
    }
    append(driver, events_topic(run), raws)
    driver.close()

    # Test.
    found = run_pipeline(measured, run, code=3)

    # Check: each fault is found, and only it.
    assert (found["order"]["inversions"], found["order"]["unplaced"]) == (1, 0)
    names = [f"{one_['log']}:{one_['offset']}" for one_ in (other, one)]
    (witness,) = found["order"]["witnesses"]
    assert witness == (
        f"{run}/ordered: C1 delivered {names[0]}, then {names[1]}; "
        "in the order the second comes 1 before the first"
    )
    assert [row["lost"] for row in found["losses"]] == [0, 1]
    assert found["lost"] == 1


# -- plans of Spark, and streams that differ ------------------------------------------------


def runs_of(session, *rows):
    schema = "topic string, epoch bigint, collector string, log string, first bigint, "
    return session.createDataFrame(
        [("A", 1, *row) for row in rows], schema + "next bigint, place bigint"
    )


PAIR = PlannedOrder(pairs=[Pair("A", 1, "K1", "K2")])


@pytest.mark.timeout(900)
def test_streams_that_order_two_messages_differently_disagree(session):
    one = [("K1", "P1", 0, 9, 0), ("K1", "P2", 0, 4, 9), ("K1", "P1", 9, 12, 13)]
    same = [("K2", "P3", 0, 2, 0), ("K2", "P1", 0, 5, 2), ("K2", "P1", 5, 9, 7),
            ("K2", "P2", 0, 4, 12), ("K2", "P1", 9, 12, 16)]  # fmt: skip
    other = [("K2", "P2", 0, 2, 0), ("K2", "P1", 0, 12, 2), ("K2", "P2", 2, 4, 14)]
    nothing = session.createDataFrame(
        [],
        "run string, arm string, consumer string, instance string, scope string, "
        "sequence bigint, log string, offset bigint, place bigint",
    )
    for rows, bucket, disagreements in ((same, 4, 0), (other, 1, 2), (other, 1024, 2)):
        verdict = judge.verdict(nothing, runs_of(session, *one, *rows), PAIR, bucket)
        assert verdict.disagreements == disagreements, bucket
        assert verdict.holds == (not disagreements)
    assert "collector K1 orders P1:8 before P2:0, K2 after it" in verdict.witnesses[0]


def test_a_descent_is_seen_inside_a_block_and_across_blocks(session):
    def descents(places):
        rows = [("k", number, place) for number, place in enumerate(places)]
        frame = session.createDataFrame(rows, "key string, number bigint, place bigint")
        return judge.descents(frame, keys=["key"], by="number", low="place", high="place")

    long = list(range(judge._BLOCK_ROWS + 10))
    assert descents(long) == 0
    assert descents([0, 2, 1, 3]) == 1
    assert descents([0, 1, 1]) == 1
    assert descents([*long[:-1], 5]) >= 1
    edge = judge._BLOCK_ROWS
    assert descents([*long[: edge - 1], long[edge], long[edge - 1], *long[edge + 1 :]]) == 1
