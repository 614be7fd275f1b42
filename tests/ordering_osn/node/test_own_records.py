"""A chain's config markers: each in the log of its set, and again while it fails and is needed."""

import pytest

from multicast.drivers.protocol import Appended, AppendFailed
from multicast.errors import AppendUnknown
from ordering_osn.api.metrics import Metrics
from ordering_osn.chain.bundles.log_records import ConfigMarker, read_config_marker
from ordering_osn.node.order_watch import OrderWatch
from ordering_osn.node.own_records import OwnRecords

AB, ABC = ("chain-a", "chain-b"), ("chain-a", "chain-b", "chain-c")
MARKER = ConfigMarker("chain-a", 7, 2)
LATER_S = 1000.0  # longer than an outbox waits


class Logs:
    """The logs that the records go to; each answers when the test says so."""

    def __init__(self):
        self.posted = []
        self.order = OrderWatch("chain-a")
        self.metrics = Metrics()
        self.records = OwnRecords("chain-a", self.post, order=self.order, metrics=self.metrics)

    def post(self, raw, chains, on_outcome):
        self.posted.append((chains, raw))
        self.answer = on_outcome

    def turn(self, now):
        """Post what is due; give the logs that got a record since the last turn."""
        before = len(self.posted)
        self.records.post_due(now)
        return [chains for chains, _ in self.posted[before:]]


@pytest.fixture
def logs():
    return Logs()


def always():
    return True


def test_a_marker_goes_to_the_log_of_its_set_alone(logs):
    logs.records.config_marker(AB, MARKER, needed=always)
    logs.records.config_marker(ABC, MARKER, needed=always)
    assert logs.turn(0.0) == [AB, ABC]
    assert [read_config_marker(raw) for _, raw in logs.posted] == [MARKER, MARKER]


def test_a_marker_is_posted_again_until_it_is_stored(logs):
    logs.records.config_marker(AB, MARKER, needed=always)
    assert logs.turn(0.0) == [AB]
    assert logs.turn(LATER_S) == []  # it is on its way
    logs.answer(AppendFailed(AppendUnknown("nobody answered.")))
    assert logs.records.post_due(LATER_S) > LATER_S
    assert logs.turn(2 * LATER_S) == [AB]
    logs.answer(Appended(5))
    assert logs.turn(3 * LATER_S) == []
    assert logs.metrics.markers_posted.value("chain-a") == 2


def test_a_marker_that_stands_before_it_is_posted_is_not_posted(logs):
    lacks = [True]
    logs.records.config_marker(AB, MARKER, needed=lambda: lacks[0])
    assert logs.turn(0.0) == [AB]
    logs.answer(AppendFailed(AppendUnknown("nobody answered.")))
    lacks[0] = False  # another node's copy was read
    assert logs.turn(LATER_S) == []
    logs.records.config_marker(ABC, MARKER, needed=lambda: lacks[0])
    assert logs.turn(LATER_S) == []


def test_nothing_waits_for_a_marker_and_a_rebuilt_core_posts_its_own(logs):
    logs.records.config_marker(AB, MARKER, needed=always)
    assert not logs.records.reposts_pending
    logs.records.reset()
    assert logs.turn(0.0) == []
    logs.records.config_marker(AB, MARKER, needed=always)
    assert logs.turn(0.0) == [AB]


def test_a_stored_marker_does_not_say_how_far_the_chain_s_own_log_is_ordered(logs):
    logs.order.look({"chain-a": 0}, 0.0, by_collector=True)
    logs.order.probe_stored(0)
    logs.order.look({"chain-a": 1}, 0.0, by_collector=True)
    assert logs.order.trouble is None
    logs.records.config_marker(AB, MARKER, needed=always)
    logs.turn(0.0)
    logs.answer(Appended(99))  # an offset in the set's log
    logs.turn(1.0)
    for now in (1.0, LATER_S):
        logs.order.look({"chain-a": 1}, now, by_collector=True)
    assert not logs.order.stalled
