"""The send window: bounded, first come first served, and no stalled reader holds it."""

import asyncio

import pytest

from ordering_osn.api import send_window
from ordering_osn.api.channels import Refused
from ordering_osn.api.send_window import SendWindow
from tests.ordering_osn.helpers.loops import becomes


class Held:
    """A stream whose client takes a message when the test releases it."""

    def __init__(self, log):
        self.taken = asyncio.Event()
        self._log = log

    async def write(self, message):
        self._log.append(message)
        await self.taken.wait()


def sending(place, count, size, party="reader"):
    """Streams that get `size` bytes each, and the log of the writes that have begun."""
    log = []
    streams = [Held(log) for _ in range(count)]
    tasks = [
        asyncio.create_task(place.send(stream, bytes([number]) * size, party))
        for number, stream in enumerate(streams)
    ]
    return log, streams, tasks


async def rest():
    """Run the event loop until nothing more is ready."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_no_more_is_being_sent_than_there_is_room_for_and_turns_are_kept():
    log, streams, tasks = sending(SendWindow(bytes_max=30, share_max=30), 10, 10)
    await rest()
    assert [message[0] for message in log] == [0, 1, 2]
    streams[1].taken.set()
    await rest()
    assert [message[0] for message in log] == [0, 1, 2, 3]
    for stream in streams:
        stream.taken.set()
    await asyncio.wait_for(asyncio.gather(*tasks), 60)
    assert [message[0] for message in log] == list(range(10))


async def test_what_is_larger_than_all_the_room_is_sent_alone():
    log, streams, tasks = sending(SendWindow(bytes_max=30, share_max=30), 3, 100)
    for number, stream in enumerate(streams):
        await rest()
        assert [message[0] for message in log] == list(range(number + 1))
        stream.taken.set()
    await asyncio.wait_for(asyncio.gather(*tasks), 60)


async def test_who_leaves_while_it_waits_or_is_sent_to_gives_its_room_back():
    log, streams, tasks = sending(SendWindow(bytes_max=10, share_max=10), 4, 10)
    await rest()
    for task in tasks[:3]:
        task.cancel()
    await rest()
    assert [message[0] for message in log] == [0, 3]
    streams[3].taken.set()
    await asyncio.wait_for(tasks[3], 60)


async def test_who_stands_still_does_not_hold_up_the_others(monkeypatch):
    monkeypatch.setattr(send_window, "STALLED_READER_S", 0.02)
    place = SendWindow(bytes_max=30, share_max=30)
    log, streams, still = sending(place, 3, 10, "stalled")
    await rest()
    assert len(log) == 3
    log, streams, tasks = sending(place, 9, 10)
    for stream in streams:
        stream.taken.set()
    await asyncio.wait_for(asyncio.gather(*tasks), 60)
    assert len(log) == 9
    assert not any(task.done() for task in still)
    for task in still:
        task.cancel()
    await rest()
    # What they gave back once they do not give back again.
    log, streams, tasks = sending(place, 9, 10)
    await rest()
    assert len(log) == 3
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_party_s_stalled_readers_leave_a_share_and_turns_to_the_others():
    place = SendWindow(bytes_max=40, share_max=20)
    stalled, _, still = sending(place, 50, 10, "chain-a")
    await rest()
    assert len(stalled) == 2
    other, streams, tasks = sending(place, 3, 10, "chain-b")
    late, late_streams, late_tasks = sending(place, 1, 10, "chain-c")
    await rest()
    assert (len(other), len(late)) == (2, 0)
    streams[0].taken.set()
    await rest()
    assert (len(other), len(late)) == (3, 0)
    for stream in (*streams, *late_streams):
        stream.taken.set()
    await asyncio.wait_for(asyncio.gather(*tasks, *late_tasks), 60)
    assert (len(stalled), len(late)) == (2, 1)
    for task in still:
        task.cancel()
    await asyncio.gather(*still, return_exceptions=True)
    assert not place._shares
    assert not place._waiting


async def test_a_party_whose_readers_have_stalled_gets_no_more_until_they_leave(monkeypatch):
    """gRPC keeps the copies: beyond a share, or `stalled_max` of all, no more are made."""
    monkeypatch.setattr(send_window, "STALLED_READER_S", 0.02)
    place = SendWindow(bytes_max=20, share_max=20, stalled_max=25)
    log, streams, tasks = sending(place, 9, 10, "chain-a")
    async with asyncio.timeout(60):
        await asyncio.wait(tasks[4:])
    assert len(log) in (2, 3, 4)  # those that were in the window when the share was full
    for task in tasks[4:]:
        with pytest.raises(Refused, match="stopped reading"):
            task.result()
    with pytest.raises(Refused):
        await place.send(streams[0], b"x", "chain-a")
    other, other_streams, other_tasks = sending(place, 1, 10, "chain-b")
    await rest()
    assert len(other) == 1
    await becomes(lambda: place._stalled["chain-b"])
    with pytest.raises(Refused):  # it has one that stands, and all have `stalled_max`
        await place.send(other_streams[0], b"x", "chain-b")
    for stream in (*streams, *other_streams):
        stream.taken.set()
    await asyncio.gather(*tasks, *other_tasks, return_exceptions=True)
    await place.send(streams[0], b"x", "chain-a")
    assert not place._stalled
    assert not place._shares
    assert place._bytes == 0
