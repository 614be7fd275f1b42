"""One consumer of a group is active, others stand by: what each call and each fault leads to."""

import asyncio
import random
from contextlib import ExitStack, suppress

import pytest

from multicast.consuming.activity import Activity, choose, next_fence
from multicast.drivers.protocol import MemberIdentity
from multicast.errors import ClusterUnreachable, Fenced, GroupInUse, TimedOut, UsageError
from multicast.testing import system
from tests.multicast.aio.worlds import PATIENCE_S, consumer_of, running

TO = {"P1", "P2"}
INTERESTS = {"consumers": {"C1": TO}, "destinations": [TO]}
GROUP = "amcast.A.C1"
IN_FIRST, IN_SECOND = (MemberIdentity(number, "m", chosen=True) for number in (1, 2))


@pytest.fixture
def double():
    """Ten messages of one consumer, which a test opens as often as it wants."""
    with system(INTERESTS) as opened:
        producer = opened.producer()
        for number in range(10):
            producer.multicast(b"%d" % number, to=TO)
        opened.settle()
        yield opened


def exclusive(double, **options):
    return double.consumer("C1", exclusive=True, **options)


def numbers(consumer, polls=4, **options):
    """Poll some times: beginning to be active takes one, or two after a rebalance."""
    batches = [batch for _ in range(polls) for batch in consumer.poll(0.1, **options)]
    return [int(record.value) for batch in batches for record in batch.records]


# -- the core ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("claims", "chosen"),
    [
        ({"b": b"[0, 0, 0]", "a": b"[0, 0, 0]"}, "a"),  # nobody was: the first name
        ({"a": b"[0, 0, 0]", "b": b"[0, 3, 1]"}, "b"),  # chosen, and not active yet
        ({"a": b"[0, 9, 9]", "b": b"[7, 0, 0]"}, "b"),  # active
        ({"zombie": b"[6, 9, 9]", "b": b"[7, 1, 1]"}, "b"),  # active later
        ({"a": b"\xff", "b": b"[1]", "c": b"[0, 1, 0]", "d": b'[9, "9", 9]'}, "c"),
    ],
)
def test_the_active_member_stays_and_what_others_wrote_claims_nothing(claims, chosen):
    assert choose(claims) == chosen


def test_a_fence_grows_over_a_clock_that_goes_back_and_a_group_that_was_deleted():
    assert [next_fence(10, 7), next_fence(10, 11), next_fence(0, 11)] == [11, 11, 11]


def active(fence=5):
    activity = Activity()
    activity.joined(IN_FIRST, 0)
    activity.activated(fence, IN_FIRST)
    return activity


@pytest.mark.parametrize(
    ("chosen", "stored", "lost"), [(True, 5, False), (True, 6, True), (False, 5, True)]
)
def test_who_joins_again_goes_on_only_if_nobody_else_was_active_since(chosen, stored, lost):
    assert active().joined(MemberIdentity(2, "m", chosen=chosen), stored) is not lost


def test_a_fence_that_was_stored_before_the_last_join_makes_nobody_active():
    activity = Activity()
    activity.joined(IN_FIRST, 0)
    activity.joined(IN_SECOND, 0)
    activity.activated(5, IN_FIRST)
    assert activity.fence == 0
    assert activity.may_begin


def test_after_a_commit_that_failed_it_commits_only_in_another_generation():
    activity = active()
    before = activity.claim
    activity.commit_failed(IN_SECOND)  # of another join: that one is over
    assert activity.may_commit
    activity.commit_failed(IN_FIRST)
    assert not activity.may_commit
    activity.joined(IN_SECOND, 5)
    assert activity.may_commit
    assert activity.claim != before  # equal ones would leave the generation as it is


# -- consumers -----------------------------------------------------------------------------------


def test_a_clean_end_hands_over_at_the_last_commit_and_only_one_delivers(double):
    first, second = exclusive(double), exclusive(double)
    assert numbers(first, messages_max=4)[:4] == [0, 1, 2, 3]
    assert numbers(second) == []
    with pytest.raises(UsageError, match="stands by"):
        second.commit()
    first.commit()
    fence, done = first.fence, int(first.position.next)
    first.close()
    assert numbers(second) == list(range(10))[done:]
    assert second.fence > fence


def test_a_zombie_meets_the_named_error_wherever_it_goes_on_and_its_commit_is_refused(double):
    zombie = exclusive(double)
    messages = iter(zombie)
    handed_out = [next(messages) for _ in range(4)]
    zombie.commit(handed_out[1].cursor)
    other = exclusive(double)
    double.pause_active("C1")
    assert numbers(other) == list(range(2, 10))
    assert handed_out[-1].fence == zombie.fence < other.fence
    for call in (zombie.poll, zombie.commit, lambda: next(messages)):
        with pytest.raises(Fenced, match="taken over"):
            call()
    other.commit()
    other.close()
    with exclusive(double) as third:  # the zombie has left the group
        assert numbers(third) == []
        assert third.fence > other.fence


def test_a_pause_in_which_nobody_took_over_ends_nothing(double):
    alone = exclusive(double)
    assert numbers(alone, messages_max=2)
    fence = alone.fence
    group = double.log.group(GROUP)
    group.leave(group.chosen, choose)
    alone.commit()
    assert alone.fence == fence


def test_others_are_refused_while_one_is_active_and_what_they_commit_is_not_its_own(double):
    one = exclusive(double)
    assert numbers(one)
    late = double.consumer("C1", committed=False)
    for call in (late.commit, lambda: double.consumer("C1")):
        with pytest.raises(GroupInUse):
            call()
    group = double.log.group(GROUP)
    group.leave(group.chosen, choose)  # a pause; the group is empty
    late.commit()
    with pytest.raises(Fenced):
        one.commit()
    with exclusive(double) as next_one:
        assert numbers(next_one) == list(range(10))
        assert next_one.fence > one.fence + 1


def test_where_the_cursor_is_kept_elsewhere_each_activation_asks_for_it(double):
    kept = ["earliest"]
    first, second = (exclusive(double, committed=False, start=lambda: kept[0]) for _ in range(2))
    messages = iter(first)
    kept[0] = [next(messages) for _ in range(3)][-1].cursor
    first.close()
    assert numbers(second) == list(range(3, 10))


def test_a_commit_of_unknown_outcome_cannot_be_stored_behind_a_later_one(double, monkeypatch):
    late = []
    commit = double.driver.commit

    def lost(group, offsets, member=None):
        if not late:
            late.append((group, offsets, member))
            raise ClusterUnreachable("no answer")
        return commit(group, offsets, member)

    one = exclusive(double)
    messages = iter(one)
    handed_out = [next(messages) for _ in range(3)]
    monkeypatch.setattr(double.driver, "commit", lost)
    one.commit(handed_out[0].cursor)  # tried again, in another generation
    one.commit()
    stored = dict(double.log.group(GROUP).stored)
    with pytest.raises(GroupInUse):  # it arrives now
        commit(*late[0])
    assert double.log.group(GROUP).stored == stored


def test_workers_that_stood_by_begin_where_the_other_one_ended(double):
    first, second = exclusive(double), exclusive(double)
    assert numbers(first, messages_max=5)
    first.commit()
    done = first.position.next
    handled = []
    ends = iter(range(5))

    def stop():  # once while it stands by, and once it is active
        if next(ends, None) == 2:
            first.close()
        return second.fence > 0 and len(handled) == 0

    second.workers(handled.append, n=2, stop=stop)
    assert not handled
    second.workers(handled.append, n=2, until_end=True)
    assert sorted(int(each.payload) for each in handled) == list(range(10))[done:]


@pytest.mark.parametrize("by_workers", [False, True])
def test_until_end_of_a_standby_waits_for_its_turn(double, by_workers):
    first, second = exclusive(double), exclusive(double)
    assert numbers(first, messages_max=5)
    double.later(100.0, lambda: double.log.group(GROUP).leave("member-1", choose))
    double.log.group(GROUP).pause()
    handled = []
    if by_workers:
        second.workers(handled.append, n=1, until_end=True)
    else:
        handled += [each for batch in second.until_end(timeout=1) for each in batch.records]
    assert len(handled) == 10


def test_an_async_consumer_that_stands_by_begins_where_the_other_one_ended():
    async def test(world):
        async with consumer_of(world, "C1", exclusive=True) as first:
            got = [await anext(first) for _ in range(3)]
            await first.commit(got[1].cursor)
            async with consumer_of(world, "C1", exclusive=True) as second:
                assert await second.poll(0.1) == []
                with pytest.raises(TimeoutError):  # and no TimedOut: it waits for its turn
                    async with asyncio.timeout(0.3):
                        await anext(second.until_end(timeout=0.1))
                await first.close()
                handled = []

                async def handle(message):
                    handled.append(message)

                await second.workers(handle, n=1, until_end=True)
                assert handled[0].message_id == got[2].message_id
                assert second.fence > got[0].fence

    with running() as world, world.producer() as producer:
        for number in range(4):
            producer.multicast(b"%d" % number, to={"P1"}).ordered(PATIENCE_S)
        asyncio.run(test(world))


DOINGS = ("send", "poll", "poll", "work", "work", "commit", "end", "pause")


class Database:
    """Takes an effect only under the greatest fence that it has seen, and once."""

    def __init__(self):
        self.fence, self.effects, self.refused = 0, [], 0

    def take(self, message):
        if message.fence < self.fence:
            self.refused += 1
        else:
            self.fence = message.fence
            if message.message_id not in self.effects:
                self.effects.append(message.message_id)


@pytest.mark.parametrize("seed", range(10))
def test_whatever_happens_each_message_has_its_effect_once_and_in_order(seed):
    drawn = random.Random(seed)
    database, committed = Database(), []
    with ExitStack() as stack:
        double = stack.enter_context(system(INTERESTS, seed=seed))
        producer = double.producer()
        sent = 0
        members = [exclusive(double) for _ in range(3)]
        hands = {each: [] for each in members}
        for _ in range(50):
            turn = drawn.choice(members)
            with suppress(Fenced, TimedOut):
                match drawn.choice(DOINGS):
                    case "send":
                        producer.multicast(b"", to=TO)
                        sent += 1
                    case "poll":
                        batches = turn.poll(0.1, messages_max=3)
                        hands[turn] += [b.alone(r) for b in batches for r in b.records]
                    case "work" if hands[turn]:
                        database.take(hands[turn].pop(0))
                    case "commit" if turn.fence and not hands[turn]:
                        turn.commit()
                        stored = double.log.group(GROUP).stored
                        committed += [text for _, text in stored.values() if text.count("/") > 4]
                    case "end":
                        turn.close()
                        members.remove(turn)
                        members.append(exclusive(double))
                        hands[members[-1]] = []
                    case "pause" if double.log.group(GROUP).chosen:
                        double.pause_active("C1")
        for each in members:
            each.close()
        with exclusive(double) as last:
            for batch in last.until_end():
                for record in batch.records:
                    database.take(batch.alone(record))
        assert len(database.effects) == sent
        assert [each.offset for each in database.effects] == list(range(sent))
        places = [tuple(map(int, text.split("/")[2:5])) for text in committed]
        assert places == sorted(places)
