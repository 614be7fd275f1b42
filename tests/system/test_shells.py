"""The shells (producer, consumer, node) on the in-memory log: the whole path without a broker."""

from dataclasses import replace

import pytest

from collectors.core.collector import LIMITS
from multicast.control import ControlReader
from multicast.control.codecs import named_record
from multicast.order.records import encode
from tests.helpers.plans import chain, tag_in
from tests.helpers.small import Small, until


@pytest.mark.slow
def test_a_collector_that_begins_at_a_checkpoint_goes_on_and_one_that_is_belied_begins_anew():
    with Small(chain(), limits=replace(LIMITS, checkpoint_records=4)) as system:
        node, thread = system.run("K1")
        with system.producer(tickets=False) as producer:
            for number in range(20):
                producer.multicast(b"%d" % number, to={"P1"}).ordered(60)
        control = ControlReader(system.driver, system.plan.topic)
        until(lambda: any(each.read_from for each in control.refresh().checkpoints(1, "K1")))
        node.stop()
        thread.join(60)
        points = control.refresh().checkpoints(1, "K1")
        control.close()
        node, _ = system.run("K1")
        assert node.core.own.offset_next > 0
        whole = system.all("C1")
        assert len(whole) == 20

        # A checkpoint that the log belies: named, and passed over without it.
        lying = replace(
            points[-1].record, own=tuple(each._replace(debt=9) for each in points[-1].record.own)
        )
        raw = encode(tag_in(system.plan, "K1"), lying)
        system.write(named_record(replace(points[-1], raw=raw), 1, (0, 0)))
        assert len(system.all("C1", start="latest")) == 0
        with system.consumer("C1", committed=False) as consumer:
            cursors = [str(m.cursor) for _, m in zip(range(20), consumer, strict=False)]
        assert len(system.all("C1", start=cursors[-2])) == 1


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
