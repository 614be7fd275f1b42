"""What each driver says of leader epochs: the same for the fake and both real clients."""

from multicast.drivers.memory.driver import MemoryDriver, MemoryLog
from multicast.drivers.protocol import LeaderEnd, TopicPartition
from tests.helpers.driver_worlds import append_all, read


def test_an_end_comes_with_the_epoch_that_the_records_have(world, driver, opened):
    a, b = world.topic(2)
    append_all(opened(driver.appender()), a, [b"0", b"1"])
    records, _ = read(opened(driver.reader({a: 0})), {a: 2})
    epoch = records[a][0].leader_epoch
    ends = driver.leader_ends([b, a], timeout_s=30.0)
    assert list(ends) == [b, a]
    assert ends == {a: LeaderEnd(2, epoch), b: LeaderEnd(0, ends[b].leader_epoch)}
    assert ends[b].leader_epoch >= 0
    assert driver.leader_ends([]) == {}


def test_the_records_of_the_present_epoch_end_where_the_log_does(world, driver, opened):
    a, b = world.topic(2)
    append_all(opened(driver.appender()), a, [b"0", b"1"])
    epoch = driver.leader_ends([a])[a].leader_epoch
    assert driver.epoch_ends({b: 0, a: epoch}, timeout_s=30.0) == {b: 0, a: 2}
    assert driver.epoch_ends({}) == {}


def test_a_later_epoch_is_not_known(world, driver):
    (a,) = world.topic()
    epoch = driver.leader_ends([a])[a].leader_epoch
    assert driver.epoch_ends({a: epoch + 1}) == {a: -1}


AT = TopicPartition("t", 0)


def test_an_earlier_epoch_ends_where_the_next_leader_began_and_below_what_was_lost():
    log = MemoryLog({"t": 1})
    driver = MemoryDriver(log)
    for _ in range(10):
        log.write(AT, b"")
    log.lose(AT, 10)  # another leader, and nothing is lost
    log.write(AT, b"")
    assert driver.leader_ends([AT]) == {AT: LeaderEnd(11, 1)}
    assert [driver.epoch_ends({AT: epoch})[AT] for epoch in range(3)] == [10, 11, -1]
    log.lose(AT, 7)
    for _ in range(5):
        log.write(AT, b"")
    assert driver.leader_ends([AT]) == {AT: LeaderEnd(12, 2)}
    assert [driver.epoch_ends({AT: epoch})[AT] for epoch in range(3)] == [7, 7, 12]
    log.trim(AT, 9)
    assert driver.epoch_ends({AT: 0}) == {AT: 9}
