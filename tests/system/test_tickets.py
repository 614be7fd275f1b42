"""A real broker: messages with and without tickets, and changes of that."""

from dataclasses import replace

import pytest

from bench.pipeline.rule import EPOCH_PLACES, PlannedOrder, Statement, read_control
from bench.pipeline.ticket_rule import scan
from collectors.reconfiguration import drain
from multicast import Consumer, Producer
from multicast.consuming.subscription import SubscriptionRequest
from multicast.control import control_partition, control_topics, order_topic, stream_partition
from multicast.drivers.protocol import TopicPartition
from multicast.order.records import OwnRecord, decode
from multicast.tables.between import between
from tests.collectors.test_replanning import Load, applied, judged
from tests.helpers.authorized import authorized_broker
from tests.helpers.driver_worlds import whole
from tests.helpers.plans import poster
from tests.helpers.small import state_of
from tests.helpers.system import EACH_DRIVER, PATIENCE_S, System, amcast, judge, unheld, until
from tests.system.test_end_to_end import lines

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(900)]
PLAN = poster()
NAMES = ("C1", "C2", "C3")


@pytest.fixture(params=EACH_DRIVER)
def system(request, kafka_cluster, tmp_path):
    with System(kafka_cluster.bootstrap, PLAN, tmp_path, driver=request.param) as made:
        yield made


def send(system, history, count, *, start=0, cwd=None):
    flags = [*system.common(), "--timeout", str(PATIENCE_S), "--history", str(history)]
    done = amcast("send", *flags, stdin=lines(count, seed=start, start=start), cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stderr


def ticketed(system):
    """Count the messages that tickets in the streams of the newest epoch count."""
    state, count = state_of(system), 0
    for node in system.plan.collectors:
        epoch = state.first_epoch(state.begun_epoch, node.name)
        tag = state.tag(epoch, node.name)
        for each in whole(system.driver, stream_partition(state.plan(epoch), node.name)):
            record = decode(tag, each.value)
            if isinstance(record, OwnRecord):
                count += sum(ticket.messages for ticket in record.tickets)
    return count


def test_messages_with_and_without_tickets_are_delivered_in_one_order(system, tmp_path):
    # Init: all collectors in one process; 1,000 messages with tickets, of which the last 300 are
    # compressed and linger, and 300 without tickets.
    system.order()
    assert "writes no tickets" not in send(system, tmp_path / "with", 700)
    settings = tmp_path / "amcast.toml"
    settings.write_text('[client]\n"compression.type" = "gzip"\n"linger.ms" = "20"\n')
    told = send(system, tmp_path / "tuned", 300, start=700, cwd=tmp_path)
    assert "writes no tickets" not in told
    tickets = ticketed(system)
    assert tickets >= 1000  # a busy machine may send some again
    settings.write_text('tickets = "off"\n')
    send(system, tmp_path / "without", 300, start=1000, cwd=tmp_path)
    assert ticketed(system) == tickets

    # Test: consumers of three interests; one of them is read again from a cursor in the middle.
    files, sequences = [], {}
    for name in NAMES:
        files.append(tmp_path / name)
        sequences[name] = system.receive("-n", name, "--until-end", "--history", str(files[-1]))
    middle = sequences["C2"][len(sequences["C2"]) // 2]
    rest = system.receive("-n", "C2", "--until-end", "--from", middle["cursor"])

    # Check: every guarantee; the cursor; receipts; the judge's own replay of the cluster.
    sent = [tmp_path / name for name in ("with", "tuned", "without")]
    found = judge(system.plan, *sent, *files)
    assert not unheld(found, "replay")
    assert rest == sequences["C2"][len(sequences["C2"]) - len(rest) :]
    assert len(rest) == len(sequences["C2"]) - 1 - len(sequences["C2"]) // 2
    with Producer(topic=system.topic, driver=system.driver) as producer:
        assert producer.multicast(b"", to={"P1", "P3"}).ordered(PATIENCE_S)
    done = amcast("verify", *system.common(), *[flag for n in NAMES for flag in ("--name", n)])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "holds" in done.stdout


def moved(system, *, tickets):
    """Apply a plan with tickets or without, which is else the one that runs."""
    running, steps = system.plan, []
    following = replace(running, epoch=running.epoch + 1, base_epoch=running.epoch, tickets=tickets)
    system.plan = applied(system, following, say=steps.append)
    assert system.plan.tickets == tickets
    assert not any("did not freeze" in step for step in steps)


@pytest.mark.campaign  # some 25 s, with three epochs
@pytest.mark.parametrize("driver", EACH_DRIVER)
def test_tickets_are_switched_off_and_on_under_load(kafka_cluster, tmp_path, driver, monkeypatch):
    monkeypatch.setattr(drain, "_HELP_S", PATIENCE_S)  # each epoch ends without help
    with System(kafka_cluster.bootstrap, poster(), tmp_path, driver=driver) as system:
        system.order()
        load = Load(system, list(NAMES))
        until(lambda: all(len(messages) > 50 for messages in load.received.values()), "a start")
        until(lambda: ticketed(system) > 100, "tickets of the running producer")
        moved(system, tickets=False)
        until(lambda: is_still(system, load), "an end of the tickets")
        before = ticketed(system)
        until(lambda: all(len(messages) > 300 for messages in load.received.values()), "more")
        assert ticketed(system) == before
        moved(system, tickets=True)
        until(lambda: ticketed(system) > before + 100, "tickets again")
        load.end()  # nothing is lost or doubled
        for messages in load.received.values():
            by_log = {}
            for _, number in messages:
                by_log.setdefault(number % len(Load.SETS), []).append(number)
            assert all(numbers == sorted(numbers) for numbers in by_log.values())
        judged(system, *NAMES)
        for name in NAMES:
            in_one_order(system, name, {e.name: e for e in system.plan.consumers}[name].interest)


def is_still(system, load):
    """Whether the running producer writes no ticket while it sends a hundred messages."""
    before, sent = ticketed(system), load.sent
    until(lambda: load.sent > sent + 100, "messages without tickets")
    return ticketed(system) == before


def in_one_order(system, name, interest):
    """Check that tables and the pipeline's rule have the order that a consumer delivers."""
    request = SubscriptionRequest.of(name, None)
    pieces = between(system.driver, system.topic, request, "earliest", None, timeout_s=PATIENCE_S)
    walked = [
        (piece.epoch, piece.position + step, piece.log.name, piece.first + step)
        for piece in pieces
        for step in range(piece.next - piece.first)
    ]
    with Consumer(topic=system.topic, name=name, driver=system.driver) as consumer:
        delivered = [
            (batch.epoch, batch.log.name, record.offset)
            for batch in consumer.until_end()
            for record in batch.records
        ]
    control = control_partition(system.topic)
    order = PlannedOrder()
    said = [Statement(record.key, record.value) for record in whole(system.driver, control)]
    read_control(system.topic, said, order)
    streams = sorted({rule.stream for rule in order.rules})
    rows = [
        (system.topic, stream, record.offset, record.value)
        for stream in streams
        for record in whole(system.driver, TopicPartition(order_topic(system.topic), stream))
    ]
    followed = {(r.epoch, r.collector) for r in order.readers if r.consumer == name}
    logs = {log.name for log in system.plan.logs if set(interest) & set(log.to)}
    placed = sorted(
        (*divmod(run.place + step, EPOCH_PLACES), run.log, run.first + step)
        for kind, run in scan(order.rules, rows)
        if kind == "run" and (run.place // EPOCH_PLACES, run.collector) in followed
        if run.log in logs
        for step in range(run.next - run.first)
    )
    assert walked == placed[: len(walked)]
    places = {(epoch, log, offset): place for epoch, place, log, offset in placed}
    found = [(message[0], places[message]) for message in delivered]
    assert len(found) > 100
    assert found == sorted(set(found))


@pytest.fixture(scope="module")
def authorized():
    with authorized_broker() as made:
        yield made


@pytest.mark.campaign
@pytest.mark.parametrize("reads_the_order", [True, False])
@pytest.mark.parametrize("driver", EACH_DRIVER)
def test_a_producer_without_the_right_to_write_the_order_topic_multicasts_without_tickets(
    authorized, tmp_path, caplog, driver, reads_the_order
):
    with System(authorized.operator, PLAN, tmp_path) as system:
        system.order()
        topic, orders = system.topic, order_topic(system.topic)
        rights = [("Write", "topic", topic), ("Write", "topic", f"{topic}.groups")]
        rights += [("Read", "topic", name) for name in control_topics(topic)]
        rights.append(("Describe", "topic", topic))
        if reads_the_order:
            rights.append(("Read", "topic", orders))
        user = authorized.user(*rights)
        with Producer(authorized.users, topic=topic, driver=driver, client=user) as producer:
            for number in range(30):
                producer.multicast(b"%d" % number, to={"P3"}).accepted(PATIENCE_S)
            producer.flush(PATIENCE_S)
        assert ticketed(system) == 0
        said = [entry.message for entry in caplog.records if entry.name == "amcast.tickets"]
        assert len(said) == 1
        assert "this producer writes no tickets" in said[0]
        received = system.receive("-n", "C2", "--until-end")
        assert [message["payload"] for message in received] == [str(n) for n in range(30)]
