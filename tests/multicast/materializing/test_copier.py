"""A copier in memory: what it copies, where it goes on, which targets it refuses."""

import contextlib
import threading
import urllib.request
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException
from typer.testing import CliRunner

from multicast.cli import materialize as command
from multicast.consuming.batches import Message
from multicast.consuming.cursor import Cursor
from multicast.consuming.subscription import SubscriptionRequest
from multicast.drivers.librdkafka_reader.transactions import LibrdkafkaTransactions
from multicast.drivers.protocol import Record, TopicPartition
from multicast.errors import AppendNotStored, ClusterUnreachable, Conflict, Fenced, UsageError
from multicast.materializing.materialize import Copier, copier_group, materialize
from multicast.materializing.target import CopyTarget, copied_to, fit, last_records, refuse_own
from multicast.testing import system
from tests.helpers.plans import poster
from tests.multicast.materializing.memory_transactions import MemoryTransactions

TARGET = TopicPartition("ordered", 0)
GROUP = "amcast.A.C1@ordered"


@pytest.fixture
def double():
    with system(poster()) as opened:
        opened.log.create(TARGET.topic, 1)
        yield opened


def copier_of(double, **options):
    transactions = MemoryTransactions(double.log, TARGET, GROUP)
    target = CopyTarget(TARGET.topic, 1, -1)
    about = {"topic": "A", "target": target, "group": GROUP, "header_prefix": "amcast."}
    return Copier(double.driver, transactions, **{**about, **options}), transactions


def copy(double):
    """Copy to the present end; give what was asked of the transactions."""
    copier, transactions = copier_of(double)
    with copier.open("C1", None, "earliest") as consumer:
        copier.copy_all(consumer, until_end=True)
    return transactions.calls


def send(double, *payloads):
    with double.producer() as producer:
        for number, payload in enumerate(payloads):
            to = [{"P1"}, {"P1", "P3"}, {"P4"}, {"P2"}][number % 4]  # C1 reads no P4
            producer.multicast(payload, to=to, key=b"k", headers=[("x", b"1")]).ordered()


def copies(double):
    """The committed records of the target."""
    reader = double.driver.reader({TARGET: 0})
    with contextlib.closing(reader):
        return [record for fetched in reader.poll(0) for record in fetched.records]


def as_received(double):
    with double.consumer("C1", committed=False) as consumer:
        return [
            (str(m.message_id), m.payload, m.key, m.to, m.cursor, m.headers)
            for batch in consumer.until_end()
            for m in (Message(batch, record) for record in batch.records)
        ]


def as_copied(double):
    rows = []
    for record in copies(double):
        headers = dict(record.headers)
        to = tuple(headers.pop("amcast.to").decode().split(","))
        message_id = headers.pop("amcast.id").decode()
        cursor = Cursor.parse(headers.pop("amcast.cursor").decode())
        rows.append((message_id, record.value, record.key, to, cursor, list(headers.items())))
    return rows


def test_each_message_that_the_consumer_delivers_is_copied_once_over_restarts(double):
    for _ in range(3):
        send(double, *(b"%d" % n for n in range(8)))
        assert copy(double)[:2] == ["fence", "committed"]  # the other way round may copy twice
    assert as_copied(double) == as_received(double)
    assert len(copies(double)) == 18


def test_what_a_transaction_that_never_ended_held_is_copied_by_the_next(double):
    send(double, b"a", b"b")
    copier, transactions = copier_of(double)
    with copier.open("C1", None, "earliest") as consumer:
        transactions.begin()
        copier._copy(consumer.poll()[0], is_last=True)  # and then it is killed
        assert copy(double)  # fences it
        assert as_copied(double) == as_received(double)
        with pytest.raises(Fenced):
            transactions.commit(GROUP, {})


def test_what_an_earlier_copier_commits_just_before_it_is_fenced_is_copied_once(double):
    send(double, b"a", b"b")
    (earlier, _), (later, transactions) = copier_of(double), copier_of(double)
    fence = transactions.fence
    with earlier.open("C1", None, "earliest") as consumer:
        batches = consumer.poll()

        def after_a_commit():
            earlier._transaction(consumer, batches)
            fence()

        transactions.fence = after_a_commit
        with later.open("C1", None, "earliest") as other:
            later.copy_all(other, until_end=True)
    assert as_copied(double) == as_received(double)


def test_a_copier_goes_on_after_its_copies_if_the_group_is_forgotten(double):
    send(double, b"a", b"b")
    copy(double)
    double.log._groups.clear()
    send(double, b"c")
    copy(double)
    assert [record.value for record in copies(double)] == [b"a", b"b", b"c"]


def test_a_copier_goes_on_after_copies_that_were_committed_without_the_cursor(double):
    send(double, b"a")
    copy(double)
    before = double.log.committed(GROUP, [TopicPartition("A.topology", 0)])
    send(double, b"b", b"c")
    copy(double)
    double.log.commit(GROUP, before)
    copy(double)
    assert as_copied(double) == as_received(double)


def test_a_group_without_its_copies_is_refused(double):
    send(double, b"a")
    copy(double)
    double.log.recreate(TARGET.topic)
    with pytest.raises(Conflict, match="recreated or has lost its end"):
        copy(double)


@pytest.mark.parametrize("headers", [[], [("amcast.id", b"P1:0")]])
def test_a_target_that_another_program_has_written_to_is_refused(double, headers):
    double.log.write(TARGET, b"other", headers=headers)
    with pytest.raises(Conflict, match="is no copy"):
        copy(double)


def test_a_target_with_an_open_transaction_of_another_program_is_refused(double):
    other = double.log.transaction()
    other.append(TARGET, b"other")
    with pytest.raises(Conflict, match="has a transaction open"):
        copy(double)


def test_another_writer_is_noticed_while_copies_are_made(double):
    copier, transactions = copier_of(double)
    with copier.open("C1", None, "earliest") as consumer:
        send(double, b"a")
        copier.copy_all(consumer, until_end=True)
        double.log.write(TARGET, b"other")
        send(double, b"b")
        with pytest.raises(Conflict, match="another program writes"):
            copier.copy_all(consumer, until_end=True)
    assert transactions.calls[-1] == "abort"


def test_what_stops_the_consumer_is_raised_behind_the_copies_before_it(double, monkeypatch):
    send(double, b"a", b"b")
    copier, transactions = copier_of(double)
    with copier.open("C1", None, "earliest") as consumer:
        batches = consumer.poll()

        def stopped(*_):
            raise Conflict("stopped")

        monkeypatch.setattr(consumer, "poll", stopped)
        with pytest.raises(Conflict, match="stopped"):
            copier._transaction(consumer, batches)
    assert transactions.calls[-1] == "commit"
    assert copies(double)


def test_a_last_copy_before_many_aborted_ones_is_found(double):
    double.log.write(TARGET, b"copy")
    for _ in range(3):
        aborted = double.log.transaction()
        for _ in range(100):
            aborted.append(TARGET, b"aborted")
        aborted.abort()
    assert last_records(double.driver, [TARGET])[TARGET].value == b"copy"


FITS = {"partitions": 1, "policy": "delete", "retention_ms": "-1", "by_key": False}


@pytest.mark.parametrize(
    ("unfit", "why"),
    [
        ({"policy": "compact"}, "compacted"),
        ({"policy": "compact,delete"}, "compacted"),
        ({"partitions": 3}, "3 partitions"),
        ({"partitions": 3, "policy": "compact", "by_key": True}, "compacted"),
    ],
)
def test_a_topic_that_cannot_keep_copies_in_order_is_refused(unfit, why):
    with pytest.raises(UsageError, match=why):
        fit("ordered", **{**FITS, **unfit})


def test_a_topic_of_several_partitions_may_keep_the_order_of_each_key():
    assert fit("ordered", **{**FITS, "partitions": 3, "by_key": True}).partitions == 3


@pytest.mark.parametrize("topic", ["A", "A.groups", "A.Msg-TO", "A.topology", "A.bells", "no/name"])
def test_a_topic_of_the_system_itself_is_refused(topic):
    with pytest.raises(UsageError):
        refuse_own("A", topic)


def test_two_targets_of_a_consumer_have_two_groups():
    request = SubscriptionRequest.of(None, ["P1", "P3"])
    assert copier_group(request, "x") != copier_group(request, "y")


def row(cursor):
    return Record(7, b"", headers=[("c", cursor.encode())])


@pytest.mark.parametrize(
    ("cursors", "stored", "end", "expected"),
    [
        ([], None, 0, None),
        (["1/K1/3/0/5"], "1/K1/3/0/5", 9, "1/K1/3/0/5"),
        (["1/K1/3/0/5"], None, 9, "1/K1/3/0/5"),
        (["1/K1/3/0/5", "1/K1/2/9/9"], "1/K1/3/0/5", 9, "1/K1/3/0/5"),  # several partitions
        ([], "1/K1/3/0/5", 9, "1/K1/3/0/5"),  # retention
        ([], "1/K1/3/0/5", 0, Conflict),
        (["1/K1/3/0/4"], "1/K1/3/0/5", 9, Conflict),
        (["2/K1/3/0/4"], "1/K1/3/0/5", 9, "2/K1/3/0/4"),  # without the group's cursor
        (["nonsense"], None, 9, UsageError),
    ],
)
def test_target_and_group_say_together_where_a_copier_goes_on(cursors, stored, end, expected):
    rows = [row(cursor) for cursor in cursors]
    known = None if stored is None else Cursor.parse(stored)
    if isinstance(expected, type):
        with pytest.raises(expected):
            copied_to("ordered", rows, known, "c", ends=[end])
    else:
        copied = copied_to("ordered", rows, known, "c", ends=[end])
        assert copied == (None if expected is None else Cursor.parse(expected))


def test_the_command_serves_what_its_consumer_counts(double, capsys):
    with double.consumer("C1") as consumer, command._metrics(consumer, 0):
        url = capsys.readouterr().err.split()[-1]
        with urllib.request.urlopen(url) as answer:
            text = answer.read().decode()
    assert 'amcast_consumer_epoch{consumer="C1",topic="A"} 1.0' in text


@pytest.mark.parametrize("wrong", [{"partitions_by": "time"}, {"header_prefix": ""}, {"name": ""}])
def test_wrong_arguments_are_refused_before_anything_is_opened(wrong):
    with pytest.raises(UsageError):
        materialize("nowhere", topic="A", to="ordered", **{"name": "C1", **wrong})


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "consumer of the plan or an interest"),
        (["C1", "--interest", "P1"], "not both"),
        (["C1", "--transaction-timeout", "1"], "--transaction-timeout"),
        (["C1", "--partitions-by", "time"], "--partitions-by"),
    ],
)
def test_the_command_refuses_wrong_arguments(arguments, reason):
    done = CliRunner().invoke(command.app, ["--to", "ordered", *arguments])
    assert reason in f"{done.stderr}{done.exception}"


def moving():
    raise KafkaException(
        KafkaError(KafkaError.COORDINATOR_LOAD_IN_PROGRESS, "", False, False, True)
    )


@pytest.mark.parametrize(
    ("send", "error", "says"),
    [
        (lambda: threading.Event().wait(), ClusterUnreachable, "librdkafka does not return"),
        (moving, AppendNotStored, "nothing of the transaction is committed"),
    ],
)
def test_a_copier_is_to_be_started_again_where_a_coordinator_moves(monkeypatch, send, error, says):
    aborts = []
    transactions = LibrdkafkaTransactions(
        "127.0.0.1:1", None, topic="copies", partition=0, group="G", timeout_s=60.0
    )
    fake = SimpleNamespace(
        begin_transaction=lambda: None,
        send_offsets_to_transaction=lambda *_: send(),
        abort_transaction=aborts.append,
    )
    monkeypatch.setattr(transactions, "_producer", fake)
    monkeypatch.setattr(transactions, "_patience_s", -1.9)
    transactions.begin()
    with pytest.raises(error, match=says) as raised:
        transactions.commit("G", {TopicPartition("A.topology", 0): (1, "cursor")})
    assert raised.value.exit_code == 4
    transactions.close()
    assert len(aborts) == (send is moving)  # one beside what hangs would hang, too
