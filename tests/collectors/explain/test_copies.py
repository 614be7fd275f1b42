"""Where `amcast explain` finds the copies of a message."""

from collectors.explain.facts import Copy, lines
from collectors.explain.inspection import explain
from multicast import MessageID
from multicast.control import ControlReader
from multicast.testing import system
from tests.helpers.plans import poster
from tests.multicast.materializing.test_copier import GROUP, TARGET, copies, copy, send


class ListedGroups:
    """What `explain` asks of brokers, of a log in memory."""

    def __init__(self, *groups):
        self._groups = groups

    def groups(self, prefix):
        return {name: "Empty" for name in self._groups if name.startswith(prefix)}


def explained(double, message):
    """Explain a message where C1 has a copier; the others are not of what C1 reads."""
    state = ControlReader(double.driver, "A").refresh()
    others = "amcast.A.C1", "amcast.A.P5@ordered", "amcast.B.C1@ordered"
    return explain(double.driver, ListedGroups(GROUP, *others), state, MessageID.parse(message))


def test_each_copy_is_found_near_its_time_or_said_to_be_missing():
    with system(poster()) as double:
        double.log.create(TARGET.topic, 1)
        # Init.
        for _ in range(3):
            send(double, *(b"%d" % n for n in range(8)))
            copy(double)
        send(double, b"new")
        # Test, check: each one that was copied, and the last, which was not.
        rows = [(dict(row.headers)["amcast.id"].decode(), row.offset) for row in copies(double)]
        assert len(rows) == 18
        for message, offset in rows:
            told = explained(double, message)
            assert told.copies == (Copy("C1", "ordered", offset),)
            assert f"  C1: copied to ordered at offset {offset}" in lines(told)
        assert "  C1: not in ordered near its time" in "\n".join(lines(explained(double, "P1:6")))
