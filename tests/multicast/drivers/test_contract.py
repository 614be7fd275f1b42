"""The contract of `multicast.drivers.protocol`, the same for the fake and both real clients."""

import re
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from itertools import product

import pytest

from multicast.drivers.protocol import Appended, AppendFailed, TopicPartition
from multicast.errors import AppendRefused, BufferFull, ClusterUnreachable, Trimmed, UsageError
from tests.helpers.driver_worlds import (
    AS_COLUMNS,
    PATIENCE_S,
    WORLDS,
    append_all,
    read,
    values,
    watch,
)
from tests.helpers.system import until

READ_AS_COLUMNS_TOO = pytest.mark.parametrize("world", [*WORLDS, AS_COLUMNS], indirect=True)


# --- appends ------------------------------------------------------------------------------------


def test_appends_get_consecutive_offsets_in_the_order_they_were_made(world, driver, opened):
    a, b = world.topic(2)
    appender = opened(driver.appender())
    outcomes = {a: [], b: []}
    for number in range(500):
        for partition in (a, b):
            appender.append(partition, b"%d" % number, done=outcomes[partition].append)
    assert appender.flush(PATIENCE_S)
    assert outcomes[a] == outcomes[b] == [Appended(offset) for offset in range(500)]

    reader = opened(driver.reader({a: 0, b: 0}))
    records, positions = read(reader, {a: 500, b: 500})
    assert positions == {a: 500, b: 500}
    for partition in (a, b):
        assert [record.offset for record in records[partition]] == list(range(500))
        assert values(records[partition]) == [b"%d" % number for number in range(500)]


@READ_AS_COLUMNS_TOO
@pytest.mark.parametrize(
    ("value", "key", "headers"),
    [
        (b"v", b"k", [("h", b"1"), ("h", b"2"), ("ü", b"")]),
        (b"", b"", []),
        (None, b"k", []),
        (None, None, [("amcast-epoch", b"\x00\xff")]),
        (None, None, []),
    ],
)
def test_a_record_comes_back_as_it_was_written(world, opened, value, key, headers):
    driver = world.driver
    (partition,) = world.topic()
    before_ms = int(time.time() * 1000)
    append_all(opened(driver.appender()), partition, [value], key=key, headers=headers)
    records, _ = read(opened(driver.reader({partition: 0})), {partition: 1})
    (record,) = records[partition]
    assert (record.offset, record.value, record.key) == (0, value, key)
    assert list(record.headers) == headers
    assert before_ms <= record.timestamp_ms <= time.time() * 1000


@READ_AS_COLUMNS_TOO
def test_a_message_of_five_megabytes_passes(world, driver, opened):
    (partition,) = world.topic()
    large = bytes(range(256)) * (5 * 1024 * 4)
    outcomes = append_all(opened(driver.appender()), partition, [b"before", large, b"after"])
    assert outcomes == [Appended(0), Appended(1), Appended(2)]
    records, _ = read(opened(driver.reader({partition: 0})), {partition: 3})
    assert values(records[partition]) == [b"before", large, b"after"]
    watcher = opened(driver.watcher({partition: 0}))
    assert watch(watcher, {partition: 3}) == {partition: 3}
    append_all(opened(driver.appender()), partition, [large])
    assert watch(watcher, {partition: 4}) == {partition: 4}


def test_a_message_above_the_limit_is_refused_for_good_and_the_next_one_passes(
    world, driver, opened
):
    (partition,) = world.topic()
    outcomes = append_all(opened(driver.appender()), partition, [b"x" * 17_000_000])
    assert isinstance(outcomes[0], AppendFailed)
    assert isinstance(outcomes[0].error, AppendRefused)
    assert outcomes[0].error.definite
    assert append_all(opened(driver.appender()), partition, [b"y"]) == [Appended(0)]


def test_an_append_to_an_unknown_topic_or_partition_is_refused_for_good(world, opened):
    (partition,) = world.topic()
    appender = opened(world.impatient.appender())
    for unknown in (TopicPartition(f"no-{partition.topic}", 0), TopicPartition(partition.topic, 7)):
        (outcome,) = append_all(appender, unknown, [b"x"])
        assert isinstance(outcome, AppendFailed)
        assert isinstance(outcome.error, AppendRefused), outcome
    assert append_all(appender, partition, [b"y"]) == [Appended(0)]


def test_a_full_buffer_refuses_at_once_and_starts_nothing(world, driver, opened):
    (partition,) = world.topic()
    world.hold_appends = True
    for limits in ({"in_flight_max": 10}, {"in_flight_bytes_max": 64 * 1024}):
        appender = opened(driver.appender(**limits))
        outcomes, started = [], 0
        with pytest.raises(BufferFull) as raised:  # noqa: PT012
            for _ in range(100_000):
                appender.append(partition, b"x" * 10_000, done=outcomes.append)
                started += 1
        assert raised.value.definite
        assert raised.value.retriable
        world.release()
        assert appender.flush(PATIENCE_S)
        assert len(outcomes) == started
        assert all(isinstance(outcome, Appended) for outcome in outcomes)


def test_a_closed_appender_takes_nothing(world, driver, opened):
    (partition,) = world.topic()
    appender = opened(driver.appender())
    outcomes = []
    appender.append(partition, b"x", done=outcomes.append)
    appender.close()
    assert outcomes == [Appended(0)]
    with pytest.raises(UsageError):
        appender.append(partition, b"y", done=outcomes.append)


# --- reading ------------------------------------------------------------------------------------


@READ_AS_COLUMNS_TOO
def test_reading_starts_at_the_given_offset_even_inside_a_batch(world, driver, opened):
    (partition,) = world.topic()
    append_all(opened(driver.appender()), partition, [b"%d" % number for number in range(100)])
    records, _ = read(opened(driver.reader({partition: 37})), {partition: 100})
    assert [record.offset for record in records[partition]] == list(range(37, 100))


@READ_AS_COLUMNS_TOO
def test_a_poll_hands_out_no_more_than_asked_and_lets_every_log_have_its_turn(
    world, driver, opened
):
    a, b = world.topic(2)
    appender = opened(driver.appender())
    append_all(appender, a, [b"%d" % number for number in range(1000)])
    append_all(appender, b, [b"%d" % number for number in range(100)])
    reader = opened(driver.reader({a: 0, b: 0}))
    got = {a: [], b: []}
    deadline = time.monotonic() + PATIENCE_S
    while len(got[a]) + len(got[b]) < 1100 and time.monotonic() < deadline:
        fetched = reader.poll(1.0, records_max=7)
        if world.polls_exactly:
            assert sum(len(part.records) for part in fetched) <= 7
        for part in fetched:
            got[part.partition] += part.records
            assert part.position >= part.records[-1].offset + 1
    assert [record.offset for record in got[a]] == list(range(1000))
    assert [record.offset for record in got[b]] == list(range(100))


def test_a_poll_with_nothing_to_read_returns_in_time(world, driver, opened):
    (partition,) = world.topic()
    reader = opened(driver.reader({partition: 0}))
    began = time.monotonic()
    assert reader.poll(0.2) == []
    assert 0.15 < time.monotonic() - began < PATIENCE_S / 2
    idle = opened(driver.reader({}))
    assert idle.poll(0.01) == []


@READ_AS_COLUMNS_TOO
def test_logs_are_added_removed_and_read_anew(world, driver, opened):
    a, b, c = world.topic(3)
    appender = opened(driver.appender())
    for partition in (a, b, c):
        append_all(appender, partition, [b"0", b"1", b"2"])
    reader = opened(driver.reader({a: 1}))
    records, _ = read(reader, {a: 3})
    assert values(records[a]) == [b"1", b"2"]

    reader.add({b: 2, c: 0})
    records, _ = read(reader, {b: 3, c: 3})
    assert values(records[b]) == [b"2"]
    assert values(records[c]) == [b"0", b"1", b"2"]

    reader.remove([b])
    reader.add({a: 0})
    append_all(appender, b, [b"unread"])
    append_all(appender, c, [b"3"])
    records, _ = read(reader, {a: 3, c: 4})
    assert values(records[a]) == [b"0", b"1", b"2"]
    assert values(records[c]) == [b"3"]
    assert b not in records
    assert reader.poll(0.1) == []


@READ_AS_COLUMNS_TOO
def test_a_paused_log_hands_out_nothing_and_loses_nothing(world, driver, opened):
    a, b = world.topic(2)
    appender = opened(driver.appender())
    append_all(appender, a, [b"0"])
    reader = opened(driver.reader({a: 0, b: 0}))
    read(reader, {a: 1})
    reader.pause([a])
    append_all(appender, a, [b"1", b"2"])
    append_all(appender, b, [b"0"])
    records, _ = read(reader, {b: 1})
    assert a not in records
    assert reader.poll(0.2) == []
    reader.resume([a])
    records, _ = read(reader, {a: 3})
    assert values(records[a]) == [b"1", b"2"]


@READ_AS_COLUMNS_TOO
def test_a_pause_with_data_on_its_way_loses_nothing(world, driver, opened):
    (partition,) = world.topic()
    append_all(opened(driver.appender()), partition, [b"%d" % number for number in range(300)])
    reader = opened(driver.reader({partition: 0}))
    got = []
    deadline = time.monotonic() + PATIENCE_S
    while len(got) < 300 and time.monotonic() < deadline:
        for part in reader.poll(1.0, records_max=10):
            got += part.records
        reader.pause([partition])
        assert reader.poll(0.0) == []
        reader.resume([partition])
    assert [record.offset for record in got] == list(range(300))


def test_waking_ends_a_poll_early(world, driver, opened):
    (partition,) = world.topic()
    watcher = opened(driver.watcher({partition: 0}))
    assert watcher.poll(PATIENCE_S) == {partition: 0}  # it first reports the ends as they are
    for polls in (opened(driver.reader({partition: 0})), watcher):
        timer = threading.Timer(0.1, polls.wake)
        timer.start()
        began = time.monotonic()
        assert not polls.poll(PATIENCE_S)
        assert time.monotonic() - began < PATIENCE_S / 2
        timer.join()


@READ_AS_COLUMNS_TOO
def test_a_trimmed_offset_raises_and_says_where_the_log_begins(world, driver, opened):
    a, b = world.topic(2)
    appender = opened(driver.appender())
    append_all(appender, a, [b"%d" % number for number in range(10)])
    append_all(appender, b, [b"0"])
    world.trim(a, 6)
    reader = opened(driver.reader({a: 3}))
    with pytest.raises(Trimmed, match=rf"{a.topic}/0.* 3: .* 6 to 10"):
        read(reader, {a: 10})
    reader.add({a: 3, b: 0})
    with pytest.raises(Trimmed):  # noqa: PT012 - though no poll waits, and another log has records
        for _ in range(1000):
            append_all(appender, b, [b"0"])
            reader.poll(0)
    reader.add({a: 6, b: 0})
    records, _ = read(reader, {a: 10, b: 1})
    assert values(records[a]) == [b"6", b"7", b"8", b"9"]


@READ_AS_COLUMNS_TOO
def test_an_offset_above_the_end_raises(world, driver, opened):
    (partition,) = world.topic()
    append_all(opened(driver.appender()), partition, [b"0"])
    reader = opened(driver.reader({partition: 5}))
    with pytest.raises(Trimmed):
        read(reader, {partition: 6})


@READ_AS_COLUMNS_TOO
def test_reading_or_watching_an_unknown_topic_says_so(world):
    (partition,) = world.topic()

    def wait(unknown, open_one):
        deadline = time.monotonic() + PATIENCE_S
        text = ""
        while not text and time.monotonic() < deadline:
            with suppress(ClusterUnreachable), ExitStack() as stack:  # the machine may be busy
                with pytest.raises(UsageError) as raised:  # noqa: PT012
                    stack.callback((polls := open_one({unknown: 0})).close)
                    while time.monotonic() < deadline:
                        polls.poll(0.1)
                text = str(raised.value)
        assert re.search(f"{unknown.topic}.* does not exist", text)

    unknown = (TopicPartition(f"no-{partition.topic}", 0), TopicPartition(partition.topic, 7))
    ways = (world.impatient.reader, world.impatient.watcher)
    with ThreadPoolExecutor(4) as pool:  # each waits for a topic that may have been made just now
        list(pool.map(wait, *zip(*product(unknown, ways), strict=True)))


# --- transactions -------------------------------------------------------------------------------


@READ_AS_COLUMNS_TOO
def test_the_position_passes_markers_and_aborted_records(world, driver, opened):
    (partition,) = world.topic()
    appender = opened(driver.appender())
    append_all(appender, partition, [b"0"])
    committed = world.transaction()
    assert committed.append(partition, b"1") == 1
    committed.commit()
    # A broker answers before its marker, 2, is in the log.
    until(lambda: driver.last_stable_offsets([partition]) == {partition: 3}, "the marker")
    aborted = world.transaction()
    assert aborted.append(partition, b"aborted") == 3
    aborted.abort()  # the marker is 4
    reader = opened(driver.reader({partition: 0}))
    records, positions = read(reader, {partition: 5})
    assert values(records[partition]) == [b"0", b"1"]
    assert positions == {partition: 5}

    again = world.transaction()
    again.append(partition, b"aborted, too")
    again.abort()
    records, positions = read(reader, {partition: 7})
    assert not records[partition]
    assert positions == {partition: 7}

    append_all(appender, partition, [b"7"])
    records, _ = read(reader, {partition: 8})
    assert [(record.offset, record.value) for record in records[partition]] == [(7, b"7")]
    records, _ = read(opened(driver.reader({partition: 3})), {partition: 8})
    assert values(records[partition]) == [b"7"]


@READ_AS_COLUMNS_TOO
def test_an_open_transaction_holds_everything_back_and_releases_it(world, driver, opened):
    (partition,) = world.topic()
    appender = opened(driver.appender())
    append_all(appender, partition, [b"0"])
    reader, watcher = opened(driver.reader({partition: 0})), opened(driver.watcher({partition: 0}))
    read(reader, {partition: 1})
    watch(watcher, {partition: 1})
    transaction = world.transaction()
    transaction.append(partition, b"1")
    assert append_all(appender, partition, [b"2"]) == [Appended(2)]
    assert driver.last_stable_offsets([partition]) == {partition: 1}
    assert reader.poll(0.2) == []
    assert not watcher.poll(0.2)
    transaction.commit()  # the marker is 3
    records, positions = read(reader, {partition: 4})
    assert values(records[partition]) == [b"1", b"2"]
    assert positions == {partition: 4}
    assert watch(watcher, {partition: 4}) == {partition: 4}
    assert driver.last_stable_offsets([partition]) == {partition: 4}


# --- requests -----------------------------------------------------------------------------------


def test_begins_ends_and_offsets_by_time(world, driver, opened):
    a, b = world.topic(2)
    appender = opened(driver.appender())
    append_all(appender, a, [b"0", b"1"])
    before_ms = int(time.time() * 1000)
    while (between_ms := int(time.time() * 1000)) < before_ms + 2:
        pass  # the next record is of a later millisecond
    append_all(appender, a, [b"2"])
    assert driver.log_start_offsets([a, b]) == {a: 0, b: 0}
    assert driver.last_stable_offsets([a, b]) == {a: 3, b: 0}
    assert driver.offsets_at([a, b], 0) == {a: 0, b: 0}
    assert driver.offsets_at([a, b], between_ms) == {a: 2, b: 0}
    assert driver.offsets_at([a, b], between_ms + 3_600_000) == {a: 3, b: 0}
    world.trim(a, 1)
    assert driver.log_start_offsets([a]) == {a: 1}
    assert driver.last_stable_offsets([]) == {}


def test_the_next_offset_counts_what_an_open_transaction_holds_back(world, driver, opened):
    a, b = world.topic(2)
    append_all(opened(driver.appender()), a, [b"0"])
    assert driver.high_watermarks([a, b]) == {a: 1, b: 0}
    transaction = world.transaction()
    transaction.append(a, b"1")
    assert driver.high_watermarks([a, b], timeout_s=9.0) == {a: 2, b: 0}
    assert driver.last_stable_offsets([a]) == {a: 1}
    assert driver.leader_ends([a])[a].end == 1
    transaction.abort()  # the marker, 2, is written soon after
    watch(opened(driver.watcher({a: 0})), {a: 3})
    assert driver.high_watermarks([a]) == {a: 3}
    assert driver.high_watermarks([]) == {}


def test_a_topic_keeps_its_id_until_it_is_made_again(world, driver, opened):
    (a,), (b,) = world.topic(), world.topic()
    append_all(opened(driver.appender()), a, [b"0", b"1"])
    before = driver.topic_ids([a.topic, f"no-{a.topic}", b.topic])
    assert list(before) == [a.topic, b.topic]
    assert all(str(uuid.UUID(part)) == part for part in before.values())
    assert driver.topic_ids([a.topic, b.topic]) == before
    world.recreate(a.topic)
    after = driver.topic_ids([a.topic, b.topic])
    assert after[a.topic] != before[a.topic]
    assert after[b.topic] == before[b.topic]
    assert driver.last_stable_offsets([a]) == {a: 0}
    assert driver.topic_ids([]) == {}


def test_a_question_about_an_unknown_topic_says_so(world):
    (partition,) = world.topic()
    for unknown in (TopicPartition(f"no-{partition.topic}", 0), TopicPartition(partition.topic, 7)):
        asked = world.impatient
        for ask in (asked.last_stable_offsets, asked.leader_ends, asked.epoch_ends):
            says = f"{unknown.topic}/{unknown.partition} does not exist"
            with pytest.raises(UsageError, match=says):
                ask({unknown: 0})


def test_committed_offsets_and_texts_come_back(world, driver):
    a, b = world.topic(2)
    group = f"g-{uuid.uuid4().hex[:8]}"
    assert driver.committed(group, [a, b]) == {}
    driver.commit(group, {a: (3, "K1 e1 3.0")})
    assert driver.committed(group, [a, b]) == {a: (3, "K1 e1 3.0")}
    driver.commit(group, {a: (4, ""), b: (0, "ü")})
    assert driver.committed(group, [b, a]) == {a: (4, ""), b: (0, "ü")}
    assert driver.committed(f"other-{group}", [a]) == {}


def test_questions_may_be_asked_from_many_threads(world, driver):
    (partition,) = world.topic()
    answers = []

    def ask():
        for _ in range(20):
            answers.append(driver.last_stable_offsets([partition]))  # noqa: PERF401 - a list would be made at once

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert answers == [{partition: 0}] * 80


# --- watching -----------------------------------------------------------------------------------


def test_a_watcher_first_tells_the_ends_as_they_are_and_then_what_moved(world, driver, opened):
    a, b = world.topic(2)
    appender = opened(driver.appender())
    append_all(appender, a, [b"0", b"1"])
    watcher = opened(driver.watcher({a: 0, b: 0}))
    assert watch(watcher, {a: 2, b: 0}) == {a: 2, b: 0}
    assert not watcher.poll(0.1)
    append_all(appender, b, [b"0"])
    assert watch(watcher, {b: 1}) == {b: 1}
    for number in range(20):
        append_all(appender, a, [b"x"])
        assert watch(watcher, {a: 3 + number}) == {a: 3 + number}
    world.trim(a, 22)
    append_all(appender, a, [b"x"])
    assert watch(watcher, {a: 23}) == {a: 23}


def test_a_watcher_does_without_bells_that_do_not_exist(world, driver, opened):
    (partition,) = world.topic()
    watcher = opened(driver.watcher({partition: 0}, sentinel_topic=f"no-{partition.topic}"))
    assert watcher.spacing_s == 0
    assert watch(watcher, {partition: 0}) == {partition: 0}
    append_all(opened(driver.appender()), partition, [b"0"])
    assert watch(watcher, {partition: 1}) == {partition: 1}


def test_an_append_ends_the_long_poll_of_a_watcher(world, driver, opened):
    (partition,) = world.topic()
    appender, watcher = opened(driver.appender()), opened(driver.watcher({partition: 0}))
    watcher._wait_s = 10 * PATIENCE_S  # of a real one: who waits for its end comes too late
    watch(watcher, {partition: 0})
    for number in range(15):
        thread = threading.Timer(0.02, append_all, [appender, partition, [b"x"]])
        thread.start()
        watch(watcher, {partition: number + 1})
        thread.join()
