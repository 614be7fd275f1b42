"""The shells (producer, consumer, node) on the in-memory log: the whole path without a broker."""

from dataclasses import replace

import pytest

from collectors.collector import CollectorLimits
from multicast.control import (
    ControlReader,
    checkpoint_record,
    stream_partition,
)
from multicast.errors import UnknownVersion
from multicast.order import OrderRecord, OrderStream, ParentNext, RecordKind, encode
from multicast.subscription import Bounds
from tests.helpers.plans import chain, from_start, poster
from tests.helpers.small import Small, until


def send(system, count=200):
    sets = [{"P1"}, {"P3"}, {"P1", "P3"}, {"P2", "P3", "P4"}, {"P5"}]
    with system.producer() as producer:
        receipts = [producer.multicast(b"%d" % n, to=sets[n % len(sets)]) for n in range(count)]
        return [str(receipt.ordered(60)) for receipt in receipts]


@pytest.mark.slow
def test_the_whole_path_with_tiny_limits_everywhere():
    limits = CollectorLimits(
        run_length_max=2, runs_max=2, pending_max=1, relay_max=2, checkpoint_every=5
    )
    with Small(poster(), limits=limits) as system:
        system.run_all()
        sent = send(system)
        first = system.all("C1", bounds=Bounds(buffer_bytes_max=1, runs_max=1))
        assert first == system.all("C1")
        assert set(first) == {m for m in sent if not m.startswith("P5:")}
        third = system.all("C3", bounds=Bounds(buffer_bytes_max=1, runs_max=1))
        assert [m for m in first if m in set(third)] == [m for m in third if m in set(first)]


@pytest.mark.slow
def test_a_collector_that_begins_at_a_checkpoint_goes_on_and_one_that_is_belied_begins_anew():
    with Small(chain(), limits=CollectorLimits(run_length_max=1, checkpoint_every=4)) as system:
        node, thread = system.run("K1")
        with system.producer() as producer:
            for number in range(20):
                producer.multicast(b"%d" % number, to={"P1"}).ordered(60)
        node.stop()
        thread.join(60)
        control = ControlReader(system.driver, system.plan.topic)
        points = control.refresh().checkpoints(1, "K1")
        control.close()
        assert points
        node, _ = system.run("K1")
        assert node.core.own.offset_next > 0
        whole = system.all("C1")
        assert len(whole) == 20

        # A checkpoint that the log belies: named, and passed over without it.
        system.write(checkpoint_record(replace(points[-1], digest=b"\0" * 16)))
        assert len(system.all("C1", start="latest")) == 0
        with system.consumer("C1", committed=False) as consumer:
            cursors = [str(m.cursor) for _, m in zip(range(20), consumer, strict=False)]
        assert len(system.all("C1", start=cursors[-2])) == 1


@pytest.mark.slow
def test_a_sole_writer_stops_reading_back_and_begins_again_when_another_writes():
    with Small(chain()) as system, system.producer() as producer:
        first, _ = system.run("K1")

        def send(count):
            for number in range(count):
                producer.multicast(b"%d" % number, to={"P1"}).ordered(60)

        send(200)
        until(lambda: not first.status()["reads_back"])
        assert first.core.void == {}

        # Test: a second instance comes, both write, and the first one goes.
        second, _ = system.run("K1")
        send(200)
        until(lambda: first.core.own.state.count == second.core.own.state.count)
        first.stop()
        until(first.ended.is_set)
        send(200)
        assert system.all("C1") == [f"P1:{offset}" for offset in range(600)]


def test_a_restarted_consumer_goes_on_at_its_commit_and_seeks():
    with Small(chain()) as system:
        system.run("K1")
        with system.producer() as producer:
            for number in range(10):
                producer.multicast(b"%d" % number, to={"P1"}).ordered(60)
        with system.consumer("C1") as consumer:
            for message in consumer:
                if message.payload == b"4":
                    consumer.commit()
                    break
        with system.consumer("C1") as consumer:
            assert next(iter(consumer)).payload == b"5"
            consumer.seek("earliest")
            assert next(iter(consumer)).payload == b"0"
            consumer.seek(message.cursor)
            assert next(iter(consumer)).payload == b"5"


def test_a_newer_version_in_the_stream_stops_the_consumer_with_a_sentence():
    with Small(chain()) as system:
        begin = OrderStream(system.plan, "K1", from_start(system.plan)).state.digest
        raw = bytearray(encode(OrderRecord(RecordKind.FREEZE, begin, ParentNext(0, 0), ())))
        raw[2] = 9
        system.log.write(stream_partition(system.plan, "K1"), bytes(raw))
        with system.consumer("C1") as consumer, pytest.raises(UnknownVersion, match="version 9"):
            consumer.poll(60)


@pytest.mark.slow
def test_collectors_of_version_1_go_on_after_retention_has_deleted_where_their_streams_began():
    limits = CollectorLimits(first_checkpoint_ms=0, checkpoint_ms=1)
    plan = chain()
    with Small(plan, limits=limits) as system, system.producer() as producer:
        streams = {name: stream_partition(plan, name) for name in ("K1", "K2")}
        instances = [system.run("K1"), system.run("K2")]
        producer.multicast(b"of both", to={"P2"}).ordered(60)
        ends = {}

        def restart_needs_no_more_than_the_last_records():
            # The last one is of K1 alone: K2, which has nothing of it, must pass it nevertheless.
            for to in ("P3", "P1"):
                producer.multicast(b"", to={to}).ordered(60)
            control = ControlReader(system.driver, plan.topic)
            state = control.refresh()
            control.close()
            ends.update(system.driver.last_stable_offsets(list(streams.values())))
            points = [state.checkpoints(1, name)[-1:] for name in streams]
            newest = [point.offset for (point,) in points] if all(points) else []
            return (
                newest == [end - 1 for end in ends.values()]
                and points[1][0].parent_next.offset == ends[streams["K1"]]
            )

        until(restart_needs_no_more_than_the_last_records)
        for node, thread in instances:
            node.stop()
            thread.join(60)
        for partition, end in ends.items():
            system.log.trim(partition, end - 1)
        for name in streams:
            system.run(name)
        for to in ("P1", "P2", "P3"):
            producer.multicast(b"after", to={to}).accepted(60)
        for name in ("C1", "C2"):
            with system.consumer(name, start="latest") as consumer:
                producer.multicast(b"now", to={"P2"}).accepted(60)
                assert [r.value for b in until(lambda: consumer.poll(0.1)) for r in b.records]
