"""What each driver says of leader epochs: the same for the fake and both real clients."""

import pytest

from multicast.drivers.protocol import LeaderEnd, TopicPartition
from multicast.errors import UsageError
from tests.helpers.driver_worlds import REAL, append_all, read, watch


@pytest.fixture(params=["memory", *REAL])
def world(request, world_named):
    return world_named(request.param)


@pytest.fixture
def driver(world):
    return world.driver


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


def test_an_open_transaction_holds_back_the_end_with_the_epoch_too(world, driver, opened):
    (a,) = world.topic()
    append_all(opened(driver.appender()), a, [b"0"])
    transaction = world.transaction()
    transaction.append(a, b"1")
    assert driver.leader_ends([a])[a].end == 1
    transaction.commit()  # the marker, 2, is written soon after
    watch(opened(driver.watcher({a: 0})), {a: 3})
    assert driver.leader_ends([a])[a].end == 3


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


def test_a_question_about_an_unknown_topic_says_so(world):
    unknown = TopicPartition(f"no-{world.topic()[0].topic}", 0)
    with pytest.raises(UsageError, match="does not exist"):
        world.impatient.leader_ends([unknown])
    with pytest.raises(UsageError, match="does not exist"):
        world.impatient.epoch_ends({unknown: 0})
