"""Where `amcast explain` finds the copies of a message."""

from collectors.explain.facts import Copy, lines
from collectors.explain.inspection import explain
from multicast import MessageID
from multicast.control import ControlReader
from multicast.testing import system
from tests.helpers.plans import chain, poster
from tests.multicast.materializing.test_copier import (
    GROUP,
    TARGET,
    copier_of,
    copies,
    copy,
    send,
)


class ListedGroups:
    """What `explain` asks of brokers, of a log in memory."""

    def __init__(self, *groups):
        self._groups = groups

    def groups(self, prefix):
        return {name: "Empty" for name in self._groups if name.startswith(prefix)}


def explained(double, message):
    """Explain a message where C1 has a copier, and a consumer of another topic and its copier."""
    state = ControlReader(double.driver, "A").refresh()
    groups = ListedGroups(GROUP, "amcast.A.C1", "amcast.A.C4@ordered", "amcast.B.C1@ordered")
    return explain(double.driver, groups, state, MessageID.parse(message))


def test_each_copy_is_found_by_halves_or_said_to_be_missing():
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
            assert explained(double, message).copies[0] == Copy("C1", "ordered", offset)
        assert "  C1: not copied to ordered yet" in lines(explained(double, "P1:6"))
        # Retention removes the first copies.
        first, at = rows[0]
        assert f"  C1: copied to ordered at offset {at}" in lines(explained(double, first))
        double.log.trim(TARGET, at + 1)
        assert "whose retention has removed" in "\n".join(lines(explained(double, first)))


def test_a_reader_of_one_log_has_its_copies_found_by_offsets():
    with system(chain()) as double, double.producer() as producer:
        double.log.create(TARGET.topic, 1)
        for _ in range(5):
            producer.multicast(b"x", to={"P4"}).accepted()
        copier, _ = copier_of(double, group="amcast.A.C4@ordered")
        with copier.open("C4", None, "earliest") as consumer:
            copier.copy_all(consumer, until_end=True)
        producer.multicast(b"new", to={"P4"}).accepted()
        for offset in range(5):
            told = explained(double, f"P4:{offset}")
            assert told.copies == (Copy("C4", "ordered", offset),)
        assert explained(double, "P4:5").copies == (Copy("C4", "ordered", None),)
