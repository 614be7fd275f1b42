"""What goes beside records holds nobody up, and does not pile up where it cannot be written."""

import socket
import struct

import pytest

from multicast.drivers.appender.dispatcher import Dispatcher, Limits
from multicast.drivers.appender.entries import prepared
from multicast.drivers.appender.record_batch import ProducerIdentity
from multicast.drivers.kafka.appender.link import SocketLink
from multicast.drivers.protocol import Appended, JointRecord, TopicPartition
from multicast.errors import AppendNotStored

LOG, ORDER = TopicPartition("A", 0), TopicPartition("A.Msg-TO", 0)
BROKER = 1


class Sender:
    """A dispatcher with one broker: it leads the log, and what `lead` names.

    Each request carries one record for the order partition.
    """

    def __init__(self):
        limits = Limits(10.0, 30.0, 2, 2**20, 2**20)
        nothing = {"codec": None, "wake": bool, "need": bool, "why": print}
        self.dispatcher = Dispatcher(limits, self._beside, **nothing)
        ours, self._broker = socket.socketpair()
        ours.setblocking(False)
        self.link = self.dispatcher.links[BROKER] = SocketLink(BROKER, ours, b"")
        self.dispatcher.identity = ProducerIdentity(7, 0)
        self.lead(LOG)
        self.outcomes = []  # of what went beside
        self._requests = 0

    def _beside(self, started):
        assert started == {LOG: 1}
        return [JointRecord(ORDER, b"ticket", self.outcomes.append)]

    def lead(self, partition):
        appends = self.dispatcher.appends(partition)
        appends.leader = BROKER
        self.dispatcher.leaderless.pop(appends, None)
        self.dispatcher.mark(appends)

    def multicast(self, now):
        """Append one message, which the broker stores at once; give its outcome."""
        accepted = []
        (entry,) = prepared([JointRecord(LOG, b"message", accepted.append)])
        self.dispatcher.add(*entry, now)
        self._broker.recv(65536)
        self._requests += 1
        part = struct.pack(">i", 1) + struct.pack(">ihqqq", 0, 0, self._requests, -1, 0)
        body = struct.pack(">ii", self._requests, 1) + struct.pack(">h", 1) + b"A" + part
        self._broker.sendall(struct.pack(">i", len(body)) + body)
        self.dispatcher.receive(self.link)
        self.report()
        return accepted

    def report(self):
        outcomes, self.dispatcher.outcomes = self.dispatcher.outcomes, []
        for entry, outcome in outcomes:
            entry.done(outcome)
        self.dispatcher.reported(outcomes)

    def close(self):
        self.link.close()
        self._broker.close()


@pytest.fixture
def sender():
    made = Sender()
    yield made
    made.close()


def test_while_the_order_partition_has_no_leader_nothing_is_unsettled_that_somebody_waits_for(
    sender,
):
    assert sender.multicast(now=0.0) == [Appended(1)]
    assert (sender.dispatcher.unsettled, sender.dispatcher.unsettled_bytes) == (0, 0)
    assert sender.dispatcher.beside == 1


def test_tickets_for_a_partition_without_a_leader_stay_below_a_bound_for_hours(sender):
    order = sender.dispatcher.appends(ORDER)
    for second in range(3600):
        sender.multicast(now=float(second))
        sender.dispatcher.enforce_limits(float(second))
        sender.report()
        assert len(order.queue) <= 31
    for _ in range(3000):
        sender.multicast(now=float(second))
    assert len(order.queue) == sender.dispatcher.beside == 1000
    assert len(sender.outcomes) == 3600 + 3000 - 1000
    assert {type(failed.error) for failed in sender.outcomes} == {AppendNotStored}


def test_tickets_go_out_once_their_partition_has_a_leader(sender):
    sender.multicast(now=0.0)
    sender.lead(ORDER)
    sender.dispatcher.send_all(1.0)
    assert not sender.dispatcher.appends(ORDER).queue
