"""Ctrl-C inside kafka-python's event loop reaches the caller, and the next call works."""

import gc
import sys
from contextlib import closing
from pathlib import Path

import kafka
import pytest

import multicast.drivers.kafka
from bench.nemesis.frames import Action, Api, RequestFault
from bench.nemesis.proxy import Proxy
from multicast.drivers import open_driver
from multicast.drivers.kafka.connection import Connection
from multicast.errors import ClusterUnreachable
from tests.helpers.driver_worlds import PATIENCE_S, RealWorld

pytestmark = [
    pytest.mark.kafka,
    # Ctrl-C may come between the making of a coroutine and its start.
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
]
# Where Ctrl-C is tried: what runs inside the loop.
INSIDE = (
    str(Path(kafka.__file__).parent),
    str(Path(multicast.drivers.kafka.__file__).parent / "quiet.py"),
)
# A Ctrl-C between its lines leaves a lock taken; another one ends that wait (docs/hazards.md).
NOT_HERE = str(Path(kafka.__file__).parent / "future.py")
CUTS = 60  # of the thousands of lines that a request runs


class CtrlC:
    """Raises KeyboardInterrupt once, at the n-th line inside the loop; counts the lines."""

    def __init__(self, line):
        self.lines = 0
        self._line = line

    def __call__(self, frame, event, _):
        name = frame.f_code.co_filename
        if name == NOT_HERE or not name.startswith(INSIDE):
            return None
        if event == "line":
            self.lines += 1
            if self.lines == self._line:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self

    def during(self, call):
        """Whether the call was interrupted; a time-out is no interrupt, but an end all the same."""
        sys.settrace(self)
        try:
            call()
        except KeyboardInterrupt:
            return True
        except ClusterUnreachable:
            assert self.lines >= self._line > 0
        finally:
            sys.settrace(None)
        return False


@pytest.fixture
def partition(kafka_cluster):
    world = RealWorld("kafka-python", kafka_cluster.bootstrap)
    yield world.topic()[0]
    world.close()


def open_sockets():
    links = Path("/proc/self/fd").iterdir()
    return {str(link.readlink()) for link in links if link.is_socket()}


@pytest.fixture(autouse=True)
def nothing_is_left_open(caplog):
    """Once a driver is closed, no socket of its loops is open, whatever was interrupted."""
    gc.collect()
    before = open_sockets()
    yield
    for when in ("setup", "call", "teardown"):  # log lines hold the frames that were interrupted
        caplog.get_records(when).clear()
    gc.collect()
    assert open_sockets() <= before


@pytest.fixture
def driver(kafka_cluster, partition):
    with open_driver("kafka-python", kafka_cluster.bootstrap, request_timeout_s=5.0) as opened:
        opened.log_start_offsets([partition])
        yield opened


def lose_loop(connection):
    """Interrupt the loop inside a task: the next call needs another one."""

    async def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        connection.run(interrupted)
    assert connection.net.interrupted


def lines_of(call):
    counted = CtrlC(0)
    assert not counted.during(call)
    return counted.lines


# Ctrl-C may come between the making of a socket and its first use: only the collector of garbage
# closes that one. Or in a coroutine that is thrown away.
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.filterwarnings("ignore:Exception ignored in. <coroutine")
@pytest.mark.parametrize("connected", [True, False], ids=["a request", "a new loop"])
def test_after_ctrl_c_in_a_request_the_next_one_is_answered(driver, partition, connected):
    def ask(timeout_s=None):
        starts = driver.log_start_offsets([partition], timeout_s=timeout_s)
        assert starts == {partition: 0}

    def lose():
        if not connected:
            lose_loop(driver._connection)

    lose()
    lines = lines_of(ask)
    raised = 0
    for number in range(CUTS):
        lose()
        raised += CtrlC(1 + lines * number // CUTS).during(ask)
        ask(PATIENCE_S)
    # A few lines of the package swallow whatever comes: that call ends by its time-out. And not all
    # runs take the same lines.
    assert raised > CUTS // 2


def test_ctrl_c_while_a_reader_takes_an_answer_reaches_the_caller(driver, partition):
    def interrupted(*_):
        raise KeyboardInterrupt

    reader = driver.reader({partition: 0})
    reader.fetched = interrupted
    with closing(reader), pytest.raises(KeyboardInterrupt):
        reader.poll(PATIENCE_S)  # without it: ClusterUnreachable


def test_a_driver_closes_after_ctrl_c(driver, partition):
    assert CtrlC(100).during(lambda: driver.log_start_offsets([partition]))
    driver.close()


@pytest.mark.parametrize("action", [Action.HOLD_ANSWER, Action.CUT], ids=["held", "cut"])
def test_what_a_call_asks_does_not_begin_after_its_time_out(kafka_cluster, action):
    # Init: a new loop has to find the brokers again, and none of them answers.
    began = []

    async def begin(name):
        began.append(name)

    host, _, port = kafka_cluster.bootstrap.split(",")[0].rpartition(":")
    with (
        Proxy({1: (host, int(port))}) as proxy,
        closing(Connection(proxy.bootstrap, {}, timeout_s=PATIENCE_S)) as connection,
    ):
        lose_loop(connection)
        fault = proxy.arm(RequestFault(api=Api.METADATA, action=action, nth=None))
        with pytest.raises(ClusterUnreachable):
            connection.run(begin, "late", timeout_s=0.5)
        assert fault.fired.is_set()

        # Test.
        fault.release()
        connection.run(begin, "next")

        # Check.
        assert began == ["next"]
