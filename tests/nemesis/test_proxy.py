"""The nemesis' proxy: the frames that it reads; `test_proxy_system` spoils requests with it."""

import struct

from hypothesis import given
from hypothesis import strategies as st

from bench.nemesis.frames import Frames, number_of_answer, read_request


def framed(body):
    return struct.pack(">i", len(body)) + body


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
