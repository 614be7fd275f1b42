"""Calls of a consumer that fail, are cut off, or come from the wrong thread, lose no message."""

import sys
import threading
from pathlib import Path

import pytest

import multicast.consuming.consumer
from multicast.errors import ClusterUnreachable, UsageError
from tests.helpers.small import values

INTERESTS = {"consumers": {"C1": {"P1", "P2"}, "C2": {"P2"}}, "destinations": [{"P1", "P2"}]}
ROOT = Path(multicast.consuming.consumer.__file__).parent
# Where an exception out of a signal handler is tried: what belongs to a consumer.
CUT = {
    str(ROOT / name)
    for name in ("consumer.py", "consuming/readers.py", "control/reader.py", "group_positions.py")
}


@pytest.fixture
def sent(double):
    """Ten messages to P1, in their order."""
    producer = double.producer()
    payloads = [b"%d" % number for number in range(10)]
    producer.multicast_all(payloads, to={"P1"})
    double.settle()
    return payloads


@pytest.mark.usefixtures("sent")
def test_a_restarted_consumer_goes_on_at_its_commit_and_seeks(double):
    with double.consumer("C1") as consumer:
        for message in consumer:
            if message.payload == b"4":
                consumer.commit()
                break
    with double.consumer("C1") as consumer:
        assert next(iter(consumer)).payload == b"5"
        for place, payload in (("earliest", b"0"), (message.cursor, b"5")):
            consumer.seek(place)
            assert next(iter(consumer)).payload == payload


def away(*_):
    raise ClusterUnreachable("no broker answered")


def test_a_seek_that_fails_changes_nothing(double, sent, monkeypatch):
    consumer = double.consumer("C1")
    received = []
    for message in consumer:
        received.append(message.payload)
        if len(received) == 3:
            before = consumer.position
            with monkeypatch.context() as patch:
                patch.setattr(multicast.consuming.consumer, "refuse_changed_topics", away)
                with pytest.raises(ClusterUnreachable):
                    consumer.seek("earliest")
            assert consumer.position == before
            consumer.commit()
        if len(received) == 10:
            break
    assert received == sent


def test_a_seek_that_fails_in_the_middle_is_undone_by_the_next_poll(double, sent, monkeypatch):
    consumer = double.consumer("C1")
    assert values(consumer.poll(messages_max=4)) == sent[:4]
    before = consumer.position
    with monkeypatch.context() as patch:
        patch.setattr(consumer._readers, "begin", away)
        with pytest.raises(ClusterUnreachable):
            consumer.seek("earliest")
    assert consumer.position == before
    assert values(consumer.poll()) == sent[4:]


def test_the_time_that_the_application_takes_is_no_silence(double, sent, monkeypatch):
    monkeypatch.setattr(multicast.consuming.consumer, "_MESSAGES_MAX", 4)  # so there are 3 polls
    received = []
    for batch in double.consumer("C1").until_end(timeout=30.0):
        received += values([batch])
        double.run(31)
    assert received == sent


def test_a_seek_inside_until_end_drops_the_rest_of_the_poll(double):
    producer, consumer = double.producer(), double.consumer("C1")
    for number in range(6):
        producer.multicast(b"%d" % number, to={"P1"} if number % 2 else {"P1", "P2"})
    double.settle()
    everything = values(double.consumer("C1", committed=False).until_end())
    received, first = [], None
    for batch in consumer.until_end():
        received += values([batch])
        if first is None:
            first = values([batch])
            consumer.seek("earliest")
    assert len(first) < 6, "the poll has more than one batch"
    assert received == first + everything


@pytest.mark.parametrize("leave", ["messages", "batches", "until_end"])
def test_what_an_iterator_that_was_left_had_not_handed_out_comes_next(double, leave):
    producer, consumer = double.producer(), double.consumer("C1")
    for number in range(6):
        producer.multicast(b"%d" % number, to={"P1"} if number % 2 else {"P1", "P2"})
    double.settle()
    everything = values(double.consumer("C1", committed=False).until_end())
    if leave == "messages":
        iterator = iter(consumer)
        received = [next(iterator).payload]
    else:
        iterator = consumer.batches() if leave == "batches" else consumer.until_end()
        received = values([next(iterator)])
    position = consumer.position
    received += values(consumer.poll(messages_max=1))
    assert position != consumer.position
    if leave == "messages":  # it goes on, too: behind what the poll has given
        received.append(next(iterator).payload)
    received += values(consumer.until_end())
    assert received == everything


class CutOff(BaseException):
    """As Ctrl-C: raised wherever the program is."""


class Cut:
    """Raises `CutOff` once, at the n-th line that a consumer runs."""

    def __init__(self, line):
        self.left = line

    def __call__(self, frame, event, _):
        if frame.f_code.co_filename not in CUT:
            return None
        if event == "line":
            self.left -= 1
            if self.left <= 0 and not _hands_over(frame):
                sys.settrace(None)
                raise CutOff
        return self


def _hands_over(frame):
    """Whether the line hands to the caller what the line before has noted as handed out.

    Python looks for signals at calls and at jumps back; there is neither between the two.
    """
    lines = Path(frame.f_code.co_filename).read_text(encoding="utf-8").splitlines()
    place = frame.f_code.co_name, lines[frame.f_lineno - 1].strip()
    return place in {("poll", "return batches"), ("__iter__", "yield message")}


@pytest.mark.parametrize(
    ("interest", "way"),
    [
        pytest.param({"P1", "P2"}, "poll", id="by a collector-poll"),
        pytest.param({"P1"}, "messages", id="a single log-messages"),
        pytest.param(
            {"P1", "P2"}, "messages", id="by a collector-messages", marks=pytest.mark.campaign
        ),
        pytest.param({"P1"}, "poll", id="a single log-poll", marks=pytest.mark.campaign),
    ],
)
def test_an_exception_out_of_a_signal_handler_loses_and_doubles_nothing(
    double, sent, way, interest
):
    def read(consumer, received):
        if way == "poll":
            while len(received) < len(sent):
                received += values(consumer.poll(0.1, messages_max=4))
        elif len(received) < len(sent):
            for message in consumer:
                received.append(message.payload)
                if len(received) == len(sent):
                    break

    cuts, line = 0, 1
    while True:
        consumer, received, cut = (
            double.consumer(None, interest=interest, committed=False),
            [],
            False,
        )
        tracer = Cut(line)
        sys.settrace(tracer)
        try:
            read(consumer, received)
        except CutOff:
            cut = True
        finally:
            sys.settrace(None)
        if not cut:
            break
        read(consumer, received)
        assert received == sent, f"cut off at line {line}"
        consumer.close()
        cuts, line = cuts + 1, line + 1
    assert cuts > 50


def test_a_reader_that_was_cut_off_and_does_not_close_is_replaced_all_the_same(double, sent):
    def cut_off(*_):
        raise CutOff

    def close():
        raise RuntimeError("a task is not done yet")

    consumer = double.consumer("C1")
    assert values(consumer.poll(messages_max=3)) == sent[:3]
    consumer._deliver = cut_off
    consumer._clients.callback(close)
    with pytest.raises(CutOff):
        consumer.poll()
    del consumer._deliver
    assert values(consumer.poll()) == sent[3:]


def test_before_the_first_message_is_handed_out_the_position_is_the_start(double, sent):
    consumer = double.consumer("C1")
    start, seen, deliver = consumer.position, [], consumer._deliver

    def looked_at(messages_max):
        batches = deliver(messages_max)
        thread = threading.Thread(target=lambda: seen.append(consumer.position))
        thread.start()
        thread.join()
        return batches

    consumer._deliver = looked_at
    assert next(iter(consumer)).payload == sent[0]
    assert set(seen) == {start}


def test_during_a_seek_another_thread_commits_what_was_handed_out(double, sent, monkeypatch):
    consumer = double.consumer("C1")
    assert next(iter(consumer)).payload == sent[0]
    before, seen, look = consumer.position, [], multicast.consuming.consumer.refuse_changed_topics

    def looked_at(*arguments):
        seen.append(consumer.position)
        look(*arguments)

    monkeypatch.setattr(multicast.consuming.consumer, "refuse_changed_topics", looked_at)
    consumer.seek("latest")
    assert seen == [before]


def test_a_second_thread_is_refused_and_the_first_goes_on(double, sent):
    consumer = double.consumer("C1")
    read, errors = consumer._readers.read, []

    def call(make):
        try:
            make()
        except UsageError as error:
            errors.append(str(error))

    def busy(*arguments):
        for make in (consumer.poll, lambda: consumer.seek("latest")):
            thread = threading.Thread(target=call, args=(make,))
            thread.start()
            thread.join()
        return read(*arguments)

    consumer._readers.read = busy
    assert values(consumer.poll()) == sent
    assert len(errors) % 2 == 0
    (error,) = set(errors)
    assert error.startswith("another thread is in a call of this consumer; use it from one thread")


def test_a_close_ends_the_call_of_another_thread(double):
    consumer = double.consumer("C1")
    read, closing = consumer._readers.read, threading.Thread(target=consumer.close)

    def busy(*arguments):
        if closing.ident is None:
            wake, woken = consumer._readers.wake, threading.Event()
            consumer._readers.wake = lambda: (wake(), woken.set())
            closing.start()
            assert woken.wait(30)
        return read(*arguments)

    consumer._readers.read = busy
    with pytest.raises(UsageError, match="this consumer is closed; open another one"):
        for _ in consumer:
            pass
    closing.join(30)
    assert not closing.is_alive()
    assert consumer.counts().closed
    consumer.close()
