"""Order records are deleted while collectors run: these have read them, and write checkpoints."""

import pytest

from collectors.doctor import streams
from collectors.doctor.streams import open_near_end
from collectors.engine import chores, clock, core_runner
from multicast.control import StatusPage, running_record, stream_partition
from multicast.errors import Trimmed
from tests.helpers.plans import chain
from tests.helpers.small import Small, state_of, until


def purge(system):
    """Delete the order of all collectors."""
    parts = [stream_partition(system.plan, node.name) for node in system.plan.collectors]
    for partition, end in system.driver.last_stable_offsets(parts).items():
        system.log.trim(partition, end)


def has_read(system, node):
    """Whether an instance has read what there is of the streams that it reads."""
    ends = system.driver.last_stable_offsets(node.assignment.streams)
    read = [stream.offset_next for stream in (node.core.own, node.core.parent) if stream]
    return read == list(ends.values())


def is_readable(system):
    """Whether a new reader can open all streams: at checkpoints that nothing is missing of."""
    state = state_of(system)
    try:
        for node in system.plan.collectors:
            open_near_end(system.driver, state, system.plan, node.name)
    except Trimmed:
        return False
    return True


def test_collectors_that_rest_write_checkpoints_once_their_order_is_purged(monkeypatch, caplog):
    monkeypatch.setattr(chores, "_RECHECK_EVERY_S", 0.02)
    monkeypatch.setattr(clock, "_REST_S", 0.02)
    monkeypatch.setattr(core_runner, "_STARTS_EVERY_S", 0.02)
    with Small(chain()) as system:
        nodes = [node for node, _ in system.run_all()]
        name = system.plan.consumers[0].name
        with system.producer() as producer:
            producer.multicast(b"", to={"P1"}).ordered(60)
            until(lambda: all(has_read(system, node) for node in nodes))
            purge(system)
            until(lambda: is_readable(system))
            with system.consumer(name, committed=False, start="latest") as consumer:
                consumer.poll(0)
                message = producer.multicast(b"", to=set(system.plan.consumers[0].interest[:1]))
                until(lambda: consumer.poll(0.1))
                assert message.ordered(60)
    assert "records of A.Msg-TO are deleted" in caplog.text


@pytest.mark.parametrize("begun", [True, False])
def test_nobody_is_told_to_delete_an_order_that_a_process_has_read(begun, monkeypatch):
    with Small(chain()) as system:
        purge_all, page = system.plan.collectors, StatusPage("127.0.0.1", 1, b"p" * 8)
        for node in purge_all:
            partition = stream_partition(system.plan, node.name)
            system.log.write(partition, b"any")
            system.write(running_record(1, node.name, page))
        purge(system)
        said = [{"node": node.name, "epoch": 1, "begun": begun} for node in purge_all]
        monkeypatch.setattr(
            streams, "read_pages", lambda pages: {each: {"nodes": said} for each in pages}
        )
        with pytest.raises(Trimmed) as raised:
            open_near_end(system.driver, state_of(system), system.plan, purge_all[0].name)
        assert ("leave it running; it writes a checkpoint" in str(raised.value)) is begun
        assert ("delete the topics" in str(raised.value)) is not begun
