"""Logs and streams that have lost their ends: what `recover` says, refuses, and accepts."""

from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace

import pytest

import collectors.reconfiguration.drain
from collectors.core.collector import LIMITS
from collectors.core.mending import Harm, recovery_plan
from collectors.explain.inspection import explain
from collectors.metrics import samples_of
from collectors.reconfiguration.drain import drain
from collectors.reconfiguration.lost_order import refuse_lost_orders
from collectors.reconfiguration.survey import find_damage, read_streams, refuse_damaged
from multicast.consuming.batches import Message
from multicast.consuming.subscription import SubscriptionRequest
from multicast.control import ControlReader, log_partition, loss_record, stream_partition
from multicast.errors import Conflict, Truncated
from multicast.messages import MessageID
from multicast.order.records import Loss, OwnRecord, SeenEnd, SightRecord, Ticket, encode
from multicast.properties import check_all
from multicast.verification.from_cluster import replayed
from tests.collectors.core.test_recover import (
    CHAIN,
    NAMES,
    PLAN,
    ROOT,
    Killed,
    found_in,
    multicast,
    ordered,
    recovered,
)
from tests.helpers.forged import is_relayed
from tests.helpers.plans import tag_in
from tests.helpers.small import Small, state_of, until


def lose(system, log, count):
    """Lose the last records of a log, and state it, as a collector does; give the first offset."""
    partition = log_partition(system.plan.log(log))
    first = system.driver.high_watermarks([partition])[partition] - count
    system.log.lose(partition, first)
    system.write(loss_record(log, 0, first))
    return first


def agreed(system):
    """Read all consumers anew, each alike in what it has in common with the others."""
    sequences = {name: system.all(name) for name in NAMES}
    for sequence in sequences.values():
        assert len(set(sequence)) == len(sequence)
        for other in sequences.values():
            common = [message for message in sequence if message in other]
            assert common == [message for message in other if message in sequence]
    return {message for sequence in sequences.values() for message in sequence}


def statuses(running):
    return [node.status() for node, _ in running]


def messages_of(consumer):
    """Read to the end; give the messages."""
    return [
        Message(batch, record)
        for batch in consumer.until_end(timeout=60)
        for record in batch.records
    ]


def offsets_of(messages, label):
    return sorted(int(each.rpartition(":")[2]) for each in messages if each.startswith(f"{label}:"))


def test_what_a_log_has_lost_is_named_and_accepted_only_as_a_loss():
    with Small(PLAN) as system:
        running = system.run_all()
        ordered(system, 70)
        first = lose(system, "P1", 4)
        top, sight = PLAN.top("P1").name, SightRecord(lost=(Loss(PLAN.number("P1"), first),))
        system.log.write(stream_partition(PLAN, top), encode(tag_in(PLAN, top), sight))
        (said, *_) = until(lambda: [s for s in statuses(running) if s["lost"]])
        assert "run 'amcast topology recover --accept-loss'" in said["troubles"][0]
        (sample,) = samples_of({"topic": "A", "nodes": [said]})["amcast_log_lost_offset"]
        assert (sample.labels[2], sample.value) == ("P1", first)
        said = []
        with pytest.raises(Conflict, match=f"log P1 has lost .* offset {first} on.*--accept-loss"):
            recovered(system, say=said.append)
        assert f"it was ordered up to {first + 4}" in said[0]
        with pytest.raises(Conflict, match="topology recover"):
            refuse_damaged(system.driver, state_of(system))
        assert state_of(system).epoch == 1, "refused before the first change"

        assert recovered(system, lossy=True).epoch == 2
        state = state_of(system)
        assert state.plan().log("P1").life == 1
        assert (state.ends[1]["P1"], state.cut_of(1, "P1"), state.loss_of(2, "P1")) == (
            first,
            first,
            None,
        )
        assert find_damage(system.driver, state) == ()
        system.run_all(epoch=2)
        sent = ordered(system, 70)
        delivered = agreed(system)
        assert {*sent} <= delivered
        assert offsets_of(delivered, "P1") == list(range(first))
        assert min(offsets_of(delivered, "P1~1")) >= first
        assert recovered(system, lossy=True).changed is False
        seats = [SubscriptionRequest.of(name, None) for name in NAMES]
        report = check_all(replayed(system.driver, PLAN.topic, seats, timeout_s=60))
        assert not report.violations
        message, admin = MessageID("P1", first), SimpleNamespace(groups=lambda _: ())
        for epoch, each in ((1, message), (2, message._replace(life=1))):
            facts = explain(system.driver, admin, state_of(system), each)
            assert (facts.epoch, facts.log.lost) == (epoch, first if epoch == 1 else None)


@pytest.mark.parametrize("life", [0, 1], ids=["a late statement", "lost anew"])
def test_a_second_loss_may_take_what_the_life_before_had_kept(life):
    with Small(PLAN) as system:
        system.run_all()
        ordered(system, 70)
        first = lose(system, "P1", 4)
        assert recovered(system, lossy=True).epoch == 2
        system.run_all(epoch=2)
        ordered(system, 14)
        earlier = first - 3
        if life:
            system.log.lose(log_partition(PLAN.log("P1")), earlier)
            ordered(system, 14)
        system.write(loss_record("P1", life, earlier))
        with pytest.raises(Truncated, match=f"log P1 has lost .* offset {earlier} on"):
            system.all("C1", into=(read := []))
        assert offsets_of(read, "P1") == list(range(earlier))
        with pytest.raises(Conflict, match=f"P1 has lost .* offset {earlier} on.*--accept-loss"):
            recovered(system)
        assert recovered(system, lossy=True).epoch == 3
        system.run_all(epoch=3)
        sent = ordered(system, 70)
        delivered = agreed(system)
        assert {*sent} <= delivered
        assert offsets_of(delivered, "P1") == list(range(earlier))
        assert not offsets_of(delivered, "P1~1")
        assert min(offsets_of(delivered, "P1~2")) >= earlier


def test_the_consumers_are_named_that_have_committed_what_is_lost():
    with Small(PLAN) as system:
        system.run_all()
        ordered(system, 70)
        with system.consumer("C1") as consumer:
            for batch in consumer.until_end(timeout=60):
                assert batch.records
            consumer.commit()
        first, said = lose(system, "P1", 4), []
        recovered(
            system, lossy=True, say=said.append, groups=lambda: ["amcast.A.C1", "amcast.A.C2"]
        )
        assert f"consumer C1 has delivered log P1 up to {first + 4}" in said[1]
        assert not [sentence for sentence in said if "consumer C2" in sentence]


def test_a_loss_behind_a_plan_that_did_not_accept_it_is_accepted_by_the_next_one():
    with Small(PLAN) as system:
        system.run_all()
        ordered(system, 70)
        following = replace(PLAN, epoch=2, base_epoch=1, consumers=PLAN.consumers[:-1])
        system.propose(following)
        first = lose(system, "P1", 4)
        with pytest.raises(Conflict, match="--accept-loss"):
            recovered(system)
        assert recovered(system, lossy=True).epoch == 3
        state = state_of(system)
        assert (state.ends[1]["P1"], state.ends[2]["P1"]) == (first + 4, first)
        assert (state.cut_of(1, "P1"), state.begun(3)["P1"]) == (first, first)


def test_the_change_of_plan_finishes_what_a_recovery_has_begun_to_accept(monkeypatch):
    def killed(*_, **__):
        raise Killed

    with Small(PLAN) as system:
        system.run_all()
        ordered(system, 70)
        first = lose(system, "P1", 4)
        with monkeypatch.context() as patched:
            patched.setattr("collectors.reconfiguration.recovery.RecoveringDrain", killed)
            with pytest.raises(Killed):
                recovered(system, lossy=True)
        control = ControlReader(system.driver, PLAN.topic)
        control.refresh()
        drain(system.driver, control, 1, timeout_s=60, say=lambda _: None)
        assert control.refresh().ends[1]["P1"] == first
        assert "P1" not in control.state.ended[1].lost
        partition = log_partition(PLAN.log("P1"))
        end = system.driver.high_watermarks([partition])[partition]
        assert end == first, "nothing is filled"
        control.close()


def test_the_loss_of_a_log_without_a_collector_is_accepted_and_the_rest_goes_on():
    with Small(CHAIN) as system:
        system.run_all()
        send(system, {"P4"}, 12)
        first = lose(system, "P4", 4)
        (damage,) = found_in(system)
        assert (damage.harm, damage.collector, damage.log) == (Harm.LOST, "", "P4")
        assert recovered(system, lossy=True).epoch == 2
        state = state_of(system)
        assert state.retained(1).collectors == {"K1", "K2"}
        assert state.ends[1] == {"P4": first}
        assert state.single_log_end(1, "P4") == state.single_log_start(2, "P4") == first
        with system.producer(tickets=False) as producer:
            last = str(producer.multicast(b"", to={"P4"}).accepted(60))
        assert last.startswith("P4~1:")
        delivered = system.all("C4")
        assert offsets_of(delivered, "P4") == list(range(first))
        assert delivered[-1] == last


@pytest.mark.parametrize("regrown", [False, True], ids=["the stream ends below", "others follow"])
def test_a_stream_that_lost_a_named_checkpoint_is_named_and_goes_on_in_the_next_epoch(regrown):
    with Small(PLAN, limits=replace(LIMITS, checkpoint_records=6)) as system:
        running = system.run_all()
        sent = ordered(system, 7)
        while not state_of(system).checkpoints(1, ROOT):
            sent += ordered(system, 7)
        until(lambda: is_relayed(read_streams(system.driver, state_of(system))))
        for node, thread in running:
            node.stop()
            thread.join(60)
        partition = stream_partition(PLAN, ROOT)
        lost = state_of(system).checkpoints(1, ROOT)[-1].offset
        system.log.lose(partition, lost - 3)
        for number in sorted(map(PLAN.number, PLAN.own_logs(ROOT)), reverse=True) * 3 * regrown:
            log = log_partition(PLAN.logs[number])
            end = system.driver.high_watermarks([log])[log]
            record = OwnRecord((Ticket(number, 0, end),))
            system.log.write(partition, encode(tag_in(PLAN, ROOT), record))
        harms = {(each.harm, each.collector): each.says for each in found_in(system)}
        assert f"at offset {lost} or before" in harms[Harm.CUT, ROOT]
        assert "committed=False" in harms[Harm.CUT, ROOT]
        with pytest.raises(Conflict, match=r"has lost its end.*--accept-loss"):
            recovered(system)
        assert recovered(system, lossy=True).epoch == 2
        assert found_in(system) == ()
        assert state_of(system).checkpoints(1, ROOT) == []
        system.run_all(epoch=2)
        sent += ordered(system, 70)
        delivered = agreed(system)
        assert {each.replace("~1", "") for each in delivered} == {
            each.replace("~1", "") for each in sent
        }
        assert len(delivered) == len(sent)


def test_readers_of_what_was_lost_keep_their_place_and_go_on_in_the_next_epoch():
    with Small(PLAN) as system:
        system.run_all()
        sent = ordered(system, 70)
        with system.consumer("C1") as consumer:
            before = [str(each.message_id) for each in messages_of(consumer)]
            consumer.commit()
        first = lose(system, "P1", 4)
        multicast(system, 14)
        recovered(system, lossy=True)
        system.run_all(epoch=2)
        sent = ordered(system, 7)
        with system.consumer("C1") as consumer:
            after = [str(each.message_id) for each in messages_of(consumer)]
        assert offsets_of(before, "P1")[-1] == first + 3, "what is lost now"
        assert offsets_of(after, "P1") == []
        assert offsets_of(after, "P1~1")[0] <= first + 1
        assert {message for message in sent if message in system.all("C1")} <= {*after}


def test_what_no_collector_was_there_to_state_is_found_by_comparison_and_stated():
    with Small(PLAN) as system:
        running = system.run_all()
        ordered(system, 70)
        for node, thread in running:
            node.stop()
            thread.join(60)
        partition, number = log_partition(PLAN.log("P1")), PLAN.number("P1")
        end = system.driver.high_watermarks([partition])[partition]
        (present,) = system.driver.leader_ends([partition]).values()
        sight = SightRecord((SeenEnd(number, end, present.leader_epoch, 0),))
        top = PLAN.top("P1").name
        system.log.write(stream_partition(PLAN, top), encode(tag_in(PLAN, top), sight))
        system.log.lose(partition, end - 4)
        for _ in range(9):
            system.log.write(partition, b"another message")
        (damage,) = found_in(system)
        assert (damage.log, damage.first) == ("P1", end - 4)
        assert state_of(system).loss_of(1, "P1") is None
        recovered(system, lossy=True)
        assert state_of(system).cut_of(1, "P1") == end - 4


def test_what_one_stream_had_not_ordered_is_of_the_next_life_for_all():
    with Small(CHAIN) as system:
        system.run("K1")
        node, thread = system.run("K2")
        send(system, {"P2"}, 10)
        until(lambda: streams_of(system)["K2"].state.positions[1] == 10)
        node.stop()
        thread.join(60)
        send(system, {"P2"}, 10)
        until(lambda: streams_of(system)["K1"].state.positions[1] == 20)
        assert lose(system, "P2", 4) == 16
        assert recovered(system, lossy=True).epoch == 2
        assert state_of(system).ends[1]["P2"] == 10
        system.run_all(epoch=2)
        send(system, {"P2"}, 1)
        for name in ("C1", "C2"):
            delivered = system.all(name)
            assert offsets_of(delivered, "P2") == list(range(10))
            assert offsets_of(delivered, "P2~1")[:6] == list(range(10, 16))


def send(system, to, count):
    with system.producer(tickets=False) as producer:
        for number in range(count):
            producer.multicast(b"%d" % number, to=to).accepted(60)


def streams_of(system):
    reads = read_streams(system.driver, state_of(system))
    return {name: read.stream for name, read in reads.items()}


def test_where_collectors_went_on_in_another_tail_of_a_stream_all_agree_again():
    with Small(PLAN) as system:
        running = system.run_all()
        ordered(system, 35)
        until(lambda: is_relayed(read_streams(system.driver, state_of(system))))
        partition = stream_partition(PLAN, ROOT)
        end = system.driver.high_watermarks([partition])[partition]
        system.log.lose(partition, end - 4)
        multicast(system, 35)
        until(lambda: Harm.CUT in {each.harm for each in found_in(system)})
        with pytest.raises(Conflict, match="has lost its end, as a collector has stated"):
            recovered(system)
        assert recovered(system, lossy=True).epoch == 2
        for node, thread in running:
            node.stop()
            thread.join(60)
        assert found_in(system) == ()
        system.run_all(epoch=2)
        sent = ordered(system, 35)
        assert {*sent} <= agreed(system)


def test_the_loss_of_a_log_that_only_lone_readers_have_seen_is_found_by_what_they_committed():
    with Small(CHAIN) as system:
        system.run_all()
        send(system, {"P4"}, 12)
        with system.consumer("C4") as consumer:
            before = messages_of(consumer)
            consumer.commit()
        partition, groups = log_partition(CHAIN.log("P4")), lambda: ["amcast.A.C4"]
        assert recovered(system, groups=groups).changed is False
        system.log.lose(partition, 8)
        send(system, {"P4"}, 6)
        with pytest.raises(Conflict, match="log P4 has lost what it held from offset 8 on"):
            recovered(system, groups=groups)
        assert recovered(system, groups=groups, lossy=True).epoch == 2
        assert state_of(system).cut_of(1, "P4") == 8
        assert recovered(system, groups=groups).changed is False
        with system.consumer("C4") as consumer:
            after = messages_of(consumer)
        assert len(before) == 12
        assert [str(each.message_id) for each in after] == [f"P4~1:{at}" for at in range(8, 14)]


@pytest.mark.parametrize(("first", "grows"), [("apply", True), ("recover", False)])
def test_a_change_that_was_interrupted_notices_what_a_frozen_child_has_relayed(
    monkeypatch, first, grows
):
    def kill(sentence):
        if "freeze" in sentence:
            raise Killed

    monkeypatch.setattr(collectors.reconfiguration.drain, "_READY_S", 0.0)
    with Small(PLAN) as system, closing(ControlReader(system.driver, PLAN.topic)) as control:
        running = system.run_all()
        ordered(system, 70)
        system.propose(recovery_plan(PLAN, [ROOT]))
        control.refresh()
        with pytest.raises(Killed):
            drain(system.driver, control, 1, timeout_s=60, say=kill)
        for node, thread in running:
            thread.join(60)
            assert not thread.is_alive()
            assert node.error is None
        # Init: the root's stream loses its end, which its children have relayed.
        end = read_streams(system.driver, state_of(system))[ROOT].stream.offset_next
        system.log.lose(stream_partition(PLAN, ROOT), end // 2)
        if grows:
            _, thread = system.run(ROOT, epoch=1)
            thread.join(60)
            assert not thread.is_alive()
        # Test.
        if first == "apply":
            with pytest.raises(Conflict, match=f"stream of collector {ROOT} has lost its end"):
                refuse_lost_orders(system.driver, state_of(system), 60)
        with pytest.raises(Conflict, match="accept-loss"):
            recovered(system)
        # Check: readers stop, and have one order once an operator has accepted the loss.
        assert state_of(system).stream_is_lost(1, ROOT)
        system.run_all(epoch=recovered(system, lossy=True).epoch)
        sent = ordered(system, 70)
        assert {*sent} <= agreed(system)
