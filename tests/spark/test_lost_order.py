"""What walks along an order refuses what is lost: tables, streams, exports. In memory."""

from dataclasses import replace

import pytest

from multicast.consuming.cursor import Cursor
from multicast.consuming.subscription import SubscriptionRequest
from multicast.control import (
    ends_record,
    log_partition,
    loss_record,
    markers_record,
    stream_partition,
)
from multicast.errors import Truncated
from multicast.order.records import FreezeRecord, Loss, SeenEnd, SightRecord, encode
from multicast.tables.between import between
from multicast.tables.export import Export, export, locked
from multicast.tables.order_walk import OrderWalk
from tests.helpers.plans import chain, tag_in
from tests.helpers.small import Small
from tests.multicast.consuming.test_lost_tails import write

PLAN = chain()
ORDER = stream_partition(PLAN, "K1")
READS = {"C1": "P1", "C4": "P4"}
LOST = "log {} has lost its messages from offset 3 on"


@pytest.fixture
def world():
    with Small(PLAN) as made:
        yield made


def lose(world, count, *, regrown):
    """Lose the last records of K1's stream; then others may come."""
    end = world.driver.last_stable_offsets([ORDER])[ORDER]
    world.log.lose(ORDER, end - count)
    if regrown:
        write(world, count + 3)


def walk(world, name="C1", start="earliest", **options):
    return OrderWalk(world.driver, "A", SubscriptionRequest.of(name, None), start, **options)


def offsets(pieces):
    return [offset for piece in pieces for offset in range(piece.first, piece.next)]


@pytest.mark.parametrize("regrown", [False, True])
def test_a_walk_goes_on_only_where_its_cursors_record_is(world, regrown):
    write(world, 9)
    with walk(world) as first:
        start = first.position
        assert offsets(first.advance()) == list(range(9))
        kept = Cursor.parse(str(first.position))
    with walk(world, start=kept) as unchanged:
        assert unchanged.advance() == []
    lose(world, 3, regrown=regrown)

    def advance():
        with walk(world, start=kept) as again:
            again.advance()

    with pytest.raises(Truncated):
        advance()
    if regrown:  # as Spark plans a batch again, and as a table ends
        with pytest.raises(Truncated):
            between(world.driver, "A", SubscriptionRequest.of("C1", None), start, kept, timeout_s=1)


@pytest.mark.parametrize("regrown", [False, True])
def test_a_walk_that_is_there_stops(world, regrown):
    write(world, 9)
    with walk(world) as there:
        there.advance()
        lose(world, 3, regrown=regrown)
        with pytest.raises(Truncated, match=r"A.Msg-TO/0 has lost its end"):
            there.advance()


@pytest.mark.parametrize(
    ("name", "where"), [("C1", "stream"), ("C1", "control"), ("C4", "control")]
)
@pytest.mark.parametrize("is_there", [False, True])
def test_a_walk_gives_nothing_of_what_is_lost(world, name, where, is_there):
    write(world, 2 if is_there else 6)
    with walk(world, name) as there:
        given = offsets(there.advance()) if is_there else []
        write(world, 4 if is_there else 0)
        if where == "stream":
            raw = encode(tag_in(PLAN, "K1"), SightRecord(lost=(Loss(0, 3),)))
            world.log.write(ORDER, raw)
        else:
            world.write(loss_record(READS[name], 0, 3))
        given += offsets(there.advance())
        assert given == [0, 1, 2]
        for _ in range(2):
            with pytest.raises(Truncated, match=LOST.format(READS[name])):
                there.advance()


@pytest.mark.parametrize("interest", [["P1", "P2"], ["P1"]])
@pytest.mark.parametrize("is_there", [False, True])
def test_a_walk_compares_what_collectors_saw_with_what_leaders_have(world, interest, is_there):
    write(world, 2)
    request = SubscriptionRequest.of(None, interest)
    with OrderWalk(world.driver, "A", request, "earliest") as there:
        given = offsets(there.advance()) if is_there else []
        write(world, 5)
        world.log.write(ORDER, encode(tag_in(PLAN, "K1"), SightRecord((SeenEnd(0, 6, 0),))))
        world.log.lose(log_partition(PLAN.log("P1")), 3)
        write(world, 9)
        given += offsets(there.advance())
        assert given == [0, 1, 2]
        for _ in range(2):
            with pytest.raises(Truncated, match=LOST.format("P1")):
                there.advance()


def test_a_walk_goes_on_under_another_leader_that_has_replaced_nothing(world):
    write(world, 6)
    world.log.write(ORDER, encode(tag_in(PLAN, "K1"), SightRecord((SeenEnd(0, 6, 0),))))
    for _ in range(2):
        world.log.lose(log_partition(PLAN.log("P1")), 6)
        with walk(world) as there:
            assert offsets(there.advance()) == list(range(6))


@pytest.mark.parametrize("name", READS)
def test_a_walk_leaves_out_what_an_operator_has_accepted_as_lost(world, name):
    write(world, 6)
    world.write(loss_record(READS[name], 0, 3))
    lives = tuple(replace(log, life=int(log.name == READS[name])) for log in PLAN.logs)
    world.propose(replace(chain(epoch=2), logs=lives))
    ends = {"P1": 6, "P2": 0, "P3": 0, "P4": 6, READS[name]: 3}
    for make in (markers_record, ends_record):
        world.write(make(world.previous, 1, ends, attempt="1"))
    world.log.write(ORDER, encode(tag_in(PLAN, "K1"), FreezeRecord(0, ())))
    world.log.lose(log_partition(PLAN.log(READS[name])), 3)
    with walk(world, name) as there:
        assert offsets(there.advance()) == [0, 1, 2]
        assert there.position.epoch == 2


def test_a_walk_refuses_a_consumers_cursor_whose_message_is_gone(world):
    write(world, 6)
    with world.consumer("C4") as consumer:
        list(consumer.until_end())
        kept = consumer.position
    world.log.lose(log_partition(PLAN.log("P4")), 3)
    write(world, 6)
    with pytest.raises(Truncated, match="A/3 has lost its end"):
        walk(world, "C4", kept)


def test_an_export_goes_on_only_after_the_record_of_its_last_row(world, tmp_path):
    what = Export("A", SubscriptionRequest.of("C1", None), 100, 60.0)

    def exported():
        with locked(tmp_path, what):
            return export(world.driver, tmp_path, what, "earliest", follow=False, progress=str).rows

    write(world, 9)
    assert exported() == 9
    assert exported() == 0
    lose(world, 3, regrown=True)
    with pytest.raises(Truncated, match="is not the one from which cursor"):
        exported()
