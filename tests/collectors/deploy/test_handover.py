"""A process that is asked to end hands its collectors over: no standby waits for its patience."""

import json
import time
from itertools import count

from collectors.core.standby import Standby
from multicast.control import (
    NOBODY,
    PROCESS_BYTES,
    ControlState,
    StatusPage,
    collectors_partition,
    running_record,
)
from multicast.drivers.memory.driver import MemoryDriver
from multicast.drivers.protocol import Record
from tests.collectors.deploy.shared import Instances, core_of_k1
from tests.helpers.plans import chain
from tests.helpers.small import Small, state_of
from tests.helpers.system import until as eventually

HERE = "127.0.0.1"
ENDLESS_S = 1e9  # a patience that no test uses up


def page(number):
    """Give the web page of a process of its own, so that instances can be told apart."""
    return StatusPage(HERE, number, bytes(PROCESS_BYTES))


# -- the role, in virtual time ----------------------------------------------------------------


def test_a_standby_acts_at_once_for_one_that_hands_over_and_that_one_acts_until_then():
    made = Instances(3, ENDLESS_S)
    made.ends(1)
    assert not made.turn(1)  # a standby waits
    made.offer()
    assert made.turn(0)  # the one that leaves still acts
    assert not made.turn(1)  # it reads that record, of which nobody says who wrote it
    made.turn(1)  # it acts from now on; what it had found before it says again
    assert made.acting == [True, True, False]
    made.ends(2)
    assert made.turn(1)
    assert not made.turn(0)  # another instance's record was accepted
    assert made.acting == [False, True, False]
    assert [role.takeovers for role in made.roles] == [0, 1, 0]


def test_a_late_record_of_the_one_that_left_stops_its_successor_for_its_patience():
    made = Instances(3, 1.0)
    made.offer()
    assert not made.turn(1)
    made.roles[1].offer(None)  # it has advertised itself, so nobody offers any more
    made.ends(1)
    assert made.turn(0)  # appended before, read late
    assert not made.turn(1)
    made.ends(2)
    assert not made.turn(1, now=5.0)
    assert made.turn(1, now=6.0)
    assert made.acting[1]


def test_of_two_standbys_that_take_the_same_offer_one_steps_back():
    made = Instances(3, ENDLESS_S)
    made.offer()
    made.ends(1)
    assert made.turn(1)
    made.roles[2].offer(None)  # the first has advertised itself
    assert not made.turn(2)
    made.ends(2)
    assert not made.turn(2)
    assert made.turn(1)
    assert made.acting == [True, True, False]


def test_an_instance_that_has_not_caught_up_takes_no_offer():
    made = Instances(3, ENDLESS_S)
    behind = core_of_k1(4)
    behind.own_end(1)  # the stream has a record that it has not read
    role = Standby(primary=False, patience_s=ENDLESS_S)
    role.begin(behind)
    role.offer(1)
    assert not role.decide(behind, 0.0)
    made.ends(1)
    made.turn(0)
    behind.own_read(0, made.records[0])
    assert role.decide(behind, 0.0)


def test_records_that_the_stream_had_at_the_start_do_not_end_an_offer():
    made = Instances(3, ENDLESS_S)
    for end in (1, 2, 3):
        made.ends(end)
        assert made.turn(0)  # an earlier instance, which is neither the one that leaves nor alive
    behind = core_of_k1(4)
    behind.own_end(2)
    behind.log_end(0, 4)
    role = Standby(primary=False, patience_s=ENDLESS_S)
    role.begin(behind)
    role.offer(9)
    behind.own_read(0, made.records[0])
    assert not role.decide(behind, 0.0)
    behind.own_read(1, made.records[1])
    assert role.decide(behind, 0.0)
    behind.own_read(2, made.records[2])  # it acts now, so that is another instance of now
    assert not role.decide(behind, 0.0)


# -- what the control topic says ----------------------------------------------------------------


def test_the_control_topic_carries_an_offer_until_another_instance_advertises_itself():
    state, offsets = ControlState("A"), count()
    assert state.advertised.offered_by(1, "K1") == NOBODY

    def record(**released):
        return running_record(1, "K1", **released)

    def read(raw):
        key, value = raw
        state.read_collectors(Record(next(offsets), value, key))

    read(record(releases=2**64 - 1))
    before = state.copy()
    assert (state.advertised.offered_by(1, "K1"), state.advertised.offered_by(2, "K1")) == (
        2**64 - 1,
        NOBODY,
    )
    read(record())
    assert (state.advertised.offered_by(1, "K1"), before.advertised.offered_by(1, "K1")) == (
        None,
        2**64 - 1,
    )
    key, value = record()
    for wrong in ("", "12", 1, None):
        document = {**json.loads(value), "epoch": 7, "released": wrong}
        read((key, json.dumps(document).encode()))
    assert state.void == 4
    assert state.advertised.running == {"K1": 1}


# -- instances on a log in memory -----------------------------------------------------------------


def test_an_instance_that_is_released_ends_once_a_standby_has_advertised_itself():
    with Small(chain()) as system, system.producer(tickets=False) as producer:
        first, thread = system.run("K1", page=page(1))
        second, _ = system.run("K1", page=page(2), standby=True, patience_s=0.2)
        producer.multicast(b"1", to={"P1"}).ordered(60)
        first.release()  # nothing is due, and nobody stops it
        thread.join(60)
        assert first.over
        assert first.error is None
        assert second.status()["takeovers"] >= 1  # a late record of the first one stops it again
        producer.multicast(b"2", to={"P1"}).ordered(60)
        assert system.all("C1") == ["P1:0", "P1:1"]


def test_an_offer_that_comes_after_the_next_instance_has_begun_to_act_is_taken_too():
    with Small(chain()) as system, system.producer(tickets=False) as producer:
        first, thread = system.run("K1", page=page(1))
        second, _ = system.run("K1", page=page(2), standby=True, patience_s=ENDLESS_S)
        producer.multicast(b"1", to={"P1"}).ordered(60)
        second.play(primary=True)  # by the group's placement, before it reads the offer
        first.release()
        thread.join(60)
        assert (first.over, first.error) == (True, None)
        producer.multicast(b"2", to={"P1"}).ordered(60)
        assert system.all("C1") == ["P1:0", "P1:1"]


def test_a_standby_of_a_collector_that_nobody_has_opened_acts_at_once():
    with Small(chain()) as system, system.producer(tickets=False) as producer:
        standby, _ = system.run("K1", standby=True, patience_s=ENDLESS_S)
        producer.multicast(b"1", to={"P1"}).ordered(60)
        assert standby.status()["takeovers"] == 1


def test_a_standby_that_acts_steps_back_once_another_instance_advertises_itself():
    with Small(chain()) as system, system.producer(tickets=False) as producer:
        standby, _ = system.run("K1", page=page(1), standby=True, patience_s=0.2)
        producer.multicast(b"1", to={"P1"}).ordered(60)
        eventually(lambda: standby.status()["acting"], "the takeover")
        primary, _ = system.run("K1", page=page(2))
        eventually(lambda: not standby.status()["acting"], "the step back")
        producer.multicast(b"2", to={"P1"}).ordered(60)
        assert (standby.status()["takeovers"], standby.status()["acting"]) == (1, False)
        primary.stop()
        producer.multicast(b"3", to={"P1"}).ordered(60)
        assert standby.status()["takeovers"] == 2
        eventually(lambda: state_of(system).advertised.pages["K1"] == page(1), "the standby's page")


class LateControl:
    """A view of a log in memory whose readers do not see some statements from `below` on."""

    def __init__(self, log, topic):
        self._log = log
        self._control = collectors_partition(topic)
        self.below = None  # None: they see everything

    def __getattr__(self, name):
        return getattr(self._log, name)

    def read(self, partition, position, records_max):
        if partition == self._control and self.below is not None:
            records_max = min(records_max, self.below - position)
        return self._log.read(partition, position, records_max)

    def end(self):
        return self.last_stable_offsets([self._control])[self._control]


def test_of_two_standbys_whose_claims_come_in_one_read_the_later_one_acts():
    # Init: a primary, and two standbys that see its offer, but not each other's claim.
    plan = chain()
    with Small(plan) as system, system.producer() as producer:
        first, _ = system.run("K1", page=page(1))
        producer.multicast(b"1", to={"P1"}).ordered(60)
        late = LateControl(system.log, plan.topic)
        system.driver = MemoryDriver(late)
        standbys = [
            system.run("K1", page=page(number), standby=True, patience_s=ENDLESS_S)[0]
            for number in (2, 3)
        ]
        offer = late.end()
        late.below = offer + 1
        first.release()
        eventually(lambda: all(node.status()["acting"] for node in standbys), "two takeovers")
        eventually(lambda: late.end() == offer + 3, "two claims")

        # Test: both claims come at once.
        late.below = None

        # Check: the control topic names the one that goes on, and it orders.
        eventually(
            lambda: sum(node.status()["acting"] for node in standbys) == 1, "a step back", 20
        )
        (acting,) = [node for node in standbys if node.status()["acting"]]
        assert state_of(system).advertised.pages["K1"] == page(2 + standbys.index(acting))
        producer.multicast(b"2", to={"P1"}).ordered(60)
        assert [node.status()["acting"] for node in standbys] == [
            node is acting for node in standbys
        ]
        assert system.all("C1") == ["P1:0", "P1:1"]


def test_an_instance_that_is_released_without_a_standby_acts_on():
    with Small(chain()) as system, system.producer() as producer:
        only, _ = system.run("K1")
        producer.multicast(b"1", to={"P1"}).ordered(60)
        only.release()
        for _ in range(3):
            producer.multicast(b"2", to={"P1"}).ordered(60)
        assert not only.over


def test_a_standby_that_is_released_ends_at_once():
    with Small(chain()) as system:
        system.run("K1", page=page(1))
        standby, thread = system.run("K1", page=page(2), standby=True)
        standby.release()
        thread.join(60)
        assert (standby.over, standby.error) == (True, None)


def test_collectors_change_hands_again_and_again_under_load_and_nothing_is_lost():
    with Small(chain()) as system, system.producer() as producer:
        acting, thread = system.run("K1", page=page(1))
        sent = 0
        for number in range(2, 7):
            standby, its_thread = system.run(
                "K1", page=page(number), standby=True, patience_s=ENDLESS_S
            )
            acting.release()
            deadline = time.monotonic() + 60.0
            while thread.is_alive():
                assert time.monotonic() < deadline, "nobody took over"
                producer.multicast(b"", to={"P1"}).ordered(60)
                sent += 1
            acting, thread = standby, its_thread
        producer.multicast(b"", to={"P1"}).ordered(60)
        assert system.all("C1") == [f"P1:{number}" for number in range(sent + 1)]
