"""Leader epochs of the log in memory, which loses ends as replicas without power do."""

from multicast.drivers.memory.driver import MemoryDriver, MemoryLog
from multicast.drivers.protocol import LeaderEnd, TopicPartition

AT = TopicPartition("t", 0)


def test_an_earlier_epoch_ends_where_the_next_leader_began():
    log = MemoryLog({"t": 1})
    driver = MemoryDriver(log)
    for _ in range(10):
        log.write(AT, b"")
    log.lose(AT, 10)  # another leader, and nothing is lost
    log.write(AT, b"")
    assert driver.leader_ends([AT]) == {AT: LeaderEnd(11, 1)}
    assert [driver.epoch_ends({AT: epoch})[AT] for epoch in range(3)] == [10, 11, -1]


def test_an_earlier_epoch_ends_below_what_was_lost():
    log = MemoryLog({"t": 1})
    driver = MemoryDriver(log)
    for _ in range(10):
        log.write(AT, b"")
    log.lose(AT, 10)
    log.write(AT, b"")
    log.lose(AT, 7)
    for _ in range(5):
        log.write(AT, b"")
    assert driver.leader_ends([AT]) == {AT: LeaderEnd(12, 2)}
    assert [driver.epoch_ends({AT: epoch})[AT] for epoch in range(3)] == [7, 7, 12]
    log.trim(AT, 9)
    assert driver.epoch_ends({AT: 0}) == {AT: 9}
