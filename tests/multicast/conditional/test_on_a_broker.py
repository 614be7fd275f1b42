"""Conditional messages on a real broker: both drivers, running collectors, plain producers."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from multicast import Consumer, Producer, nothing_after
from tests.helpers.plans import poster
from tests.helpers.system import EACH_DRIVER, PATIENCE_S, System, amcast

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
BOTH = ("P1", "P3")


@pytest.fixture(params=EACH_DRIVER)
def system(kafka_cluster, tmp_path, request):
    with System(kafka_cluster.bootstrap, poster(), tmp_path, driver=request.param) as made:
        made.order()
        yield made


def client(system):
    return {"bootstrap": system.bootstrap, "topic": system.topic, "driver": system.driver_name}


def all_of(system, name, **options):
    with Consumer(**client(system), name=name, committed=False, **options) as consumer:
        return [
            (record.value, batch.decision.takes_effect)
            for batch in consumer.until_end()
            for record in batch.records
        ]


def test_clients_that_contend_for_seats_get_each_once(system):
    """Three threads want the same 40 seats; what receipts say is what all consumers deliver."""
    seats = range(40)

    def book(name):
        with (
            Producer(**client(system)) as producer,
            Consumer(**client(system), name="C1", committed=False) as consumer,
        ):
            taken = {
                int(record.value.split(b":")[0])
                for batch in consumer.until_end()
                for record in batch.records
            }
            receipts = {}
            for seat in set(seats) - taken:
                tags = {f"seat:{seat}"}
                expect = nothing_after(consumer.seen(BOTH), tags=tags)
                payload = b"%d:%d" % (seat, name)
                receipts[payload] = producer.multicast(payload, to=BOTH, tags=tags, expect=expect)
            return {
                payload
                for payload, receipt in receipts.items()
                if receipt.decided(PATIENCE_S).takes_effect
            }

    with ThreadPoolExecutor() as pool:
        won = set().union(*pool.map(book, range(3)))
    assert sorted(int(payload.split(b":")[0]) for payload in won) == list(seats)
    for name in ("C1", "C2", "C3"):  # each has P1 or P3
        delivered = [payload for payload, _ in all_of(system, name)]
        if delivered:
            assert set(delivered) == won
            assert len(delivered) == len(won)
    marked = all_of(system, "C1", void="mark")
    assert len(seats) <= len(marked) <= 3 * len(seats)
    assert {payload for payload, effective in marked if effective} == won
    lines = system.receive("--name", "C1", "--from", "earliest", "--until-end")
    assert len(lines) == len(won)
    done = amcast("verify", *system.common(), "--name", "C1", "-i", "P3", "-i", "P1,P2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "violated: 0" in done.stdout
