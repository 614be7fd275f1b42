"""The nemesis' proxy: its frames, and what it does to the requests of one connection."""

import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.nemesis.frames import (
    Action,
    Api,
    Frames,
    RequestFault,
    number_of_answer,
    read_request,
)
from tests.helpers.proxied import proxied_broker

ANSWER_S = 60.0


def framed(body):
    return struct.pack(">i", len(body)) + body


def request(number, *, api=Api.API_VERSIONS, client=b"raw"):
    """Write a request without a body; with `API_VERSIONS` the oldest form that brokers take."""
    return framed(struct.pack(">hhih", api, 0, number, len(client)) + client)


# -- frames ---------------------------------------------------------------------------------------


@given(st.lists(st.binary(min_size=4, max_size=50), max_size=20), st.data())
def test_any_cut_of_the_bytes_gives_the_same_frames(bodies, data):
    frames = [framed(body) for body in bodies]
    stream = b"".join(frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=20)))
    reader, found = Frames(), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += reader.feed(stream[start:end])
    assert found == frames


@given(
    st.integers(0, 99), st.integers(0, 20), st.integers(0, 2**31 - 1), st.text(max_size=9),
    st.binary(max_size=20),
)  # fmt: skip
def test_a_head_is_read_as_it_was_written(api, version, number, client, body):
    name = client.encode()
    frame = framed(struct.pack(">hhih", api, version, number, len(name)) + name + body)
    found = read_request(frame, broker=3)
    assert (found.broker, found.api, found.version, found.number) == (3, api, version, number)
    assert (found.client_id, found.frame) == (client, frame)
    assert number_of_answer(framed(struct.pack(">i", number) + body)) == number


# -- one connection, raw, to a real broker ------------------------------------------------------


@pytest.fixture(scope="module")
def behind():
    with proxied_broker() as (cluster, proxy, sightings):
        yield cluster, proxy, sightings


@pytest.fixture
def proxy(behind):
    yield behind[1]
    behind[1].disarm()


class Raw:
    """A client's raw connection."""

    def __init__(self, proxy):
        self.socket = socket.create_connection(proxy.address(1), timeout=ANSWER_S)
        self._frames = Frames()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def numbers(self, count):
        """Read `count` answers; None means the end of the connection."""
        numbers = []
        while len(numbers) < count:
            try:
                piece = self.socket.recv(65536)
            except ConnectionResetError:
                piece = b""
            if not piece:
                return [*numbers, None]
            numbers += [number_of_answer(frame) for frame in self._frames.feed(piece)]
        return numbers


def second(action, **more):
    return RequestFault(api=Api.API_VERSIONS, action=action, client_id="raw", nth=2, **more)


@pytest.mark.kafka
def test_a_held_request_waits_with_those_behind_it_and_no_other_connection_does(proxy):
    armed = proxy.arm(second(Action.DELAY))
    with Raw(proxy) as held, Raw(proxy) as free:
        held.socket.sendall(b"".join(request(number) for number in range(3)))
        assert held.numbers(1) == [0]
        assert armed.fired.wait(ANSWER_S)
        free.socket.sendall(request(7))
        assert free.numbers(1) == [7]
        assert not armed.answered.is_set()
        armed.release()
        assert held.numbers(2) == [1, 2]
        assert armed.answered.wait(ANSWER_S)
