"""`workers` of both consumers, in memory: threads, processes, tasks, the test double."""

import asyncio
import os
import threading
from collections import Counter
from pathlib import Path

import pytest

from multicast.aio.tasks import LoopTasks
from multicast.control import log_partition
from multicast.drivers.protocol import AppendFailed, TopicPartition
from multicast.errors import AppendRefused, HandlerFailed, TopicMissing, UsageError
from multicast.testing import system
from tests.multicast.aio.worlds import PATIENCE_S, consumer_of, running, until

TO = {"P1", "P2"}
INTERESTS = {"consumers": {"C1": TO, "C2": TO}, "destinations": [TO]}


def accounts(message):
    """Two keys at every third message."""
    return set((message.payload or b"").split())


class Ledger:
    """What was handled, in the order of the ends; fails as often as it is told at a payload."""

    def __init__(self, failures=()):
        self.handled, self.attempts, self.failures = [], Counter(), Counter(failures)

    def __call__(self, message):
        self.attempts[message.payload] += 1
        if self.attempts[message.payload] <= self.failures[message.payload]:
            raise OSError("a full disk")
        self.handled.append(message)

    def follows(self, order):
        """Each message of this order was handled, and those with a common key in it."""
        ids = [message.message_id for message in order]
        first = list(dict.fromkeys(message.message_id for message in self.handled))
        assert sorted(first) == sorted(ids)
        for key in {key for message in order for key in accounts(message)}:
            of_key = [each.message_id for each in order if key in accounts(each)]
            assert [each for each in first if each in set(of_key)] == of_key


@pytest.fixture
def double():
    """Two consumers of the same messages; each message has a payload of its own."""
    with system(INTERESTS, seed=5) as made:
        producer = made.producer()
        for number in range(300):
            keys = b"a%d n%d" % (number % 7, number) if number % 3 else b"a%d b%d n%d" % (
                number % 7, number % 5, number)  # fmt: skip
            producer.multicast(keys, to=[{"P1"}, {"P2"}, TO][number % 3], key=b"k")
        made.settle()
        yield made


def test_in_the_double_a_run_is_repeatable_and_keys_keep_their_order(double):
    runs = []
    for _ in range(2):
        ledger = Ledger()
        double.consumer("C1", group=f"g{len(runs)}").workers(
            ledger, n=8, keys=accounts, until_end=True
        )
        ledger.follows(double.drain(double.consumer("C2")))
        runs.append([message.message_id for message in ledger.handled])
    assert runs[0] == runs[1]
    assert runs[0] != sorted(runs[0]), "nothing ran side by side"


FAILING = b"a1 n50"


@pytest.mark.parametrize("failures", [1, 2])
def test_an_attempt_that_fails_is_repeated_and_later_ones_of_its_keys_wait(double, failures):
    ledger = Ledger({FAILING: failures})
    double.consumer("C1").workers(ledger, n=8, keys=accounts, until_end=True)
    assert ledger.attempts[FAILING] == failures + 1
    ledger.follows(double.drain(double.consumer("C2")))


def test_what_fails_for_good_ends_the_work_by_name_and_a_restart_loses_nothing(double):
    ledger, consumer = Ledger({FAILING: 3}), double.consumer("C1")
    named = next(m for m in double.drain(double.consumer("C2")) if m.payload == FAILING)
    with pytest.raises(HandlerFailed, match="OSError: a full") as caught:
        consumer.workers(ledger, n=8, keys=accounts, until_end=True)
    assert f"at message {named.message_id}:" in str(caught.value)
    assert isinstance(caught.value.__cause__, OSError)
    behind = len(ledger.handled)
    double.crash(consumer)
    consumer = double.restart(consumer)
    start = consumer.position
    order = double.drain(double.consumer("C2", group="again"))
    committed = [message.cursor for message in order].index(start) + 1
    assert {message.message_id for message in order[:committed]} <= {
        message.message_id for message in ledger.handled[:behind]
    }
    assert committed <= [message.payload for message in order].index(FAILING)
    consumer.workers(ledger, n=8, keys=accounts, until_end=True)
    ledger.follows(order)
    again = [each for each, times in ledger.attempts.items() if times > 1 and each != FAILING]
    assert set(again) <= {message.payload for message in order[committed:]}


def test_a_stop_finishes_what_was_begun_and_nothing_comes_twice(double):
    ledger, consumer = Ledger(), double.consumer("C1")
    for count in (50, 120, 10_000):
        enough = partial_stop(ledger, count)
        consumer.workers(ledger, n=8, keys=accounts, until_end=True, stop=enough, open_max=40)
        double.crash(consumer)
        consumer = double.restart(consumer)
    ledger.follows(double.drain(double.consumer("C2")))
    assert set(ledger.attempts.values()) == {1}


def partial_stop(ledger, count):
    return lambda: len(ledger.handled) >= count


def test_dead_letters_are_stored_with_their_id_and_the_work_goes_on(double):
    double.log.create("dead", 1)
    ledger = Ledger({FAILING: 9})
    double.consumer("C1").workers(
        ledger, n=8, keys=accounts, until_end=True, attempts=2, dead_letters="dead"
    )
    (letter,) = double.log.read(TopicPartition("dead", 0), 0, 10).records
    (named,) = (m for m in double.drain(double.consumer("C2")) if m.payload == FAILING)
    assert (letter.value, letter.key) == (FAILING, b"k")
    assert dict(letter.headers) == {
        "amcast.id": str(named.message_id).encode(),
        "amcast.to": ",".join(named.to).encode(),
        "amcast.error": b"OSError: a full disk",
    }
    assert ledger.attempts[FAILING] == 2
    assert len(ledger.handled) == 299


class Refusing:
    """An appender to which nothing can be appended."""

    def append(self, *_, done, **__):
        done(AppendFailed(AppendRefused("it is too large")))

    def flush(self, _):
        return True

    def close(self):
        pass


def test_a_letter_that_is_refused_ends_the_work_by_name(double, monkeypatch):
    double.log.create("dead", 1)
    consumer = double.consumer("C1")
    monkeypatch.setattr(double.driver, "appender", Refusing)
    with pytest.raises(HandlerFailed, match=r"P\d.*:\d+ cannot be stored .*: it is too large"):
        consumer.workers(
            Ledger({FAILING: 9}), n=8, keys=accounts, until_end=True, dead_letters="dead"
        )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"n": 0}, "n is 0"),
        ({"n": 1, "attempts": True}, "attempts is True"),
        ({"n": 1, "open_max": 1.5}, "open_max is 1.5"),
        ({"n": 1, "dead_letters": "A"}, "A holds messages"),
    ],
)
def test_wrong_options_are_refused(double, options, text):
    with pytest.raises(UsageError, match=text):
        double.consumer("C1").workers(print, **options)


def test_a_topic_that_is_not_there_and_a_coroutine_function_are_refused(double):
    async def handler(_):
        pass

    consumer = double.consumer("C1")
    with pytest.raises(UsageError, match="AsyncConsumer"):
        consumer.workers(handler, n=1)
    with pytest.raises(TopicMissing):
        consumer.workers(print, n=1, dead_letters="nowhere")


@pytest.mark.parametrize("keys", [lambda m: m.key, lambda m: m.nothing, lambda m: [[m]]])
def test_keys_that_are_none_end_the_work_before_the_message(double, keys):
    consumer, ledger = double.consumer("C1"), Ledger()
    start = consumer.position
    with pytest.raises(HandlerFailed, match=r"message P\d:0 has no keys|P1\+P2:0 has no keys"):
        consumer.workers(ledger, n=8, keys=keys, until_end=True)
    assert consumer.position == start
    assert ledger.handled == []


@pytest.mark.parametrize("place", [0, 1, 99, 250])
def test_after_ctrl_c_the_same_consumer_loses_nothing(double, place):
    consumer, ledger, asked = double.consumer("C1"), Ledger(), []

    def interrupted(message):
        asked.append(message)
        if len(asked) == place + 1:
            raise KeyboardInterrupt
        return accounts(message)

    with pytest.raises(KeyboardInterrupt):
        consumer.workers(ledger, n=8, keys=interrupted, until_end=True)
    consumer.workers(ledger, n=8, keys=accounts, until_end=True)
    ledger.follows(double.drain(double.consumer("C2")))


# -- threads, processes and tasks ------------------------------------------------------------------


@pytest.fixture(scope="module")
def small():
    """Messages to P1 and P2, with real threads."""
    with running() as made:
        for number in range(600):
            name = ("P1", "P2")[number % 2]
            payload = b"a%d b%d n%d" % (number % 7, number % 5, number)
            made.log.write(log_partition(made.plan.log(name)), payload)
        yield made


def ordered(small):
    with small.consumer("C1", committed=False) as consumer:
        return [batch.alone(record) for batch in consumer.until_end() for record in batch.records]


def test_threads_run_side_by_side_and_keys_keep_their_order(small):
    ledger, most, running_now, lock = Ledger(), [], set(), threading.Lock()

    def handler(message):
        with lock:
            assert not any(accounts(message) & accounts(other) for other in running_now)
            running_now.add(message)
            most.append(len(running_now))
        os.sched_yield()
        with lock:
            running_now.remove(message)
            ledger(message)

    with small.consumer("C1", group="threads") as consumer:
        consumer.workers(handler, n=6, keys=accounts, until_end=True)
        last = consumer.position
    ledger.follows(ordered(small))
    assert max(most) <= 6
    with small.consumer("C1", group="threads") as consumer:
        assert consumer.position == last


def store(message):
    """In a process: append to the file that the environment names."""
    with Path(os.environ["STORED"]).open("ab", buffering=0) as file:
        file.write(b"%d %s\n" % (os.getpid(), message.payload))
    if message.payload.endswith(b" n599"):
        raise KeyError("never read again", message)  # what cannot be pickled as it is


def test_processes_handle_all_and_an_error_of_theirs_is_told(small, tmp_path, monkeypatch):
    monkeypatch.setenv("STORED", str(tmp_path / "stored"))
    with (
        small.consumer("C1", group="processes") as consumer,
        pytest.raises(HandlerFailed, match="KeyError"),
    ):
        consumer.workers(store, n=2, keys=accounts, processes=True, attempts=1, until_end=True)
    lines = [line.split() for line in (tmp_path / "stored").read_bytes().splitlines()]
    assert len({line[0] for line in lines} - {b"%d" % os.getpid()}) in (1, 2)
    payloads = [b" ".join(line[1:]) for line in lines]
    order = [message.payload for message in ordered(small)]
    assert order[-1] in payloads or order[-2] in payloads  # one of them is the one that fails
    for key in {key for payload in order for key in payload.split()}:
        own = [payload for payload in order if key in payload.split()]
        handled = [payload for payload in payloads if key in payload.split()]
        assert handled == own[: len(handled)]


def end_hard(_):
    """In a process: as if it were killed."""
    os._exit(1)


@pytest.mark.parametrize(
    ("handler", "text"),
    [(end_hard, "BrokenProcessPool"), (lambda _: None, "no worker could begin")],
    ids=["a process that dies", "a handler that no process can be given"],
)
def test_where_no_process_works_the_work_ends_and_nothing_is_committed(small, handler, text):
    with small.consumer("C1", group="dying") as consumer:
        start = consumer.position
        with pytest.raises(HandlerFailed, match=text):
            consumer.workers(handler, n=2, processes=True, until_end=True)
        assert consumer.position == start


async def in_tasks(small, group, **options):
    """Handle all in tasks; gives the ledger, and how many ran at a time at most."""
    ledger, running_now, most = Ledger(), set(), 0

    async def handler(message):
        nonlocal most
        assert not any(accounts(message) & accounts(other) for other in running_now)
        running_now.add(message)
        most = max(most, len(running_now))
        await asyncio.sleep(0)
        running_now.remove(message)
        ledger(message)

    async with consumer_of(small, "C1", group=group) as consumer:
        if group == "ahead":
            async with asyncio.timeout(PATIENCE_S):
                first = await anext(aiter(consumer))  # the rest is read ahead
            ledger(first)
        await consumer.workers(handler, n=6, keys=accounts, until_end=True, **options)
        assert [batch async for batch in consumer.until_end()] == []
        await consumer.commit()
    return ledger, most


@pytest.mark.parametrize("group", ["tasks", "ahead"])
def test_tasks_run_side_by_side_and_keys_keep_their_order(small, group):
    ledger, most = asyncio.run(in_tasks(small, group))
    ledger.follows(ordered(small))
    assert set(ledger.attempts.values()) == {1}
    assert 1 < most <= 6


async def test_cancelled_workers_end_what_they_began_and_commit_it(small):
    handled, free = [], asyncio.Event()

    async def handler(message):
        if len(handled) >= 30:
            await free.wait()
        handled.append(message.payload)

    async with consumer_of(small, "C1", group="cancelled") as consumer:
        work = asyncio.create_task(consumer.workers(handler, n=4, keys=accounts))
        await until(lambda: len(handled) >= 30)
        work.cancel()
        await asyncio.sleep(0)
        free.set()
        with pytest.raises(asyncio.CancelledError):
            await work
        rest = [message async for batch in consumer.until_end() for message in batch.records]
        handled.extend(record.value for record in rest)
    assert sorted(handled) == sorted(message.payload for message in ordered(small))


def test_a_failing_task_ends_the_work_and_closing_ends_it_too(small):
    async def failing(_):
        raise OSError("a full disk")

    async def forever(_):
        pass

    async def run():
        async with consumer_of(small, "C1", group="failing") as consumer:
            with pytest.raises(UsageError, match="processes=True"):
                await consumer.workers(forever, n=4, processes=True)
            with pytest.raises(HandlerFailed, match="a full disk"):
                await consumer.workers(failing, n=4, attempts=1)
            work = asyncio.create_task(consumer.workers(forever, n=4))
            await asyncio.sleep(0)
            with pytest.raises(UsageError, match="are at work"):
                await consumer.workers(forever, n=4)
        await asyncio.wait([work])
        return work

    assert asyncio.run(run()).done()


def test_no_attempt_in_tasks_is_forgotten_and_one_that_is_cancelled_is_told():
    done, ends, running_now, most = [], threading.Semaphore(0), 0, 0

    def note(error):
        done.append(error)
        ends.release()

    async def handler(number):
        nonlocal most, running_now
        running_now += 1
        most = max(most, running_now)
        await asyncio.sleep(0.0001 * (number % 3))
        running_now -= 1
        if number % 500 == 7:
            asyncio.current_task().cancel()
            await asyncio.sleep(1)

    async def run():
        tasks = LoopTasks(handler, asyncio.get_running_loop(), 3)

        def start():
            for number in range(3000):
                tasks.start(number, note)
                for _ in range(5 if number % 5 == 4 else 0):  # then none is left
                    assert ends.acquire(timeout=PATIENCE_S)

        await asyncio.to_thread(start)

    asyncio.run(run())
    assert (most, sum(error is not None for error in done)) == (3, 6)
