"""The send window: bounded, first come first served, and no stalled reader holds it."""

import asyncio

from ordering_osn.api import send_window
from ordering_osn.api.send_window import SendWindow
from tests.ordering_osn.helpers.loops import on_a_loop


class Held:
    """A stream whose client takes a message when the test releases it."""

    def __init__(self, log):
        self.taken = asyncio.Event()
        self._log = log

    async def write(self, message):
        self._log.append(message)
        await self.taken.wait()


def sending(place, count, size):
    """Streams that get `size` bytes each, and the log of the writes that have begun."""
    log = []
    streams = [Held(log) for _ in range(count)]
    tasks = [
        asyncio.create_task(place.send(stream, bytes([number]) * size))
        for number, stream in enumerate(streams)
    ]
    return log, streams, tasks


async def rest():
    """Run the event loop until nothing more is ready."""
    for _ in range(10):
        await asyncio.sleep(0)


@on_a_loop
async def test_no_more_is_being_sent_than_there_is_room_for_and_turns_are_kept():
    log, streams, tasks = sending(SendWindow(bytes_max=30), 10, 10)
    await rest()
    assert [message[0] for message in log] == [0, 1, 2]
    streams[1].taken.set()
    await rest()
    assert [message[0] for message in log] == [0, 1, 2, 3]
    for stream in streams:
        stream.taken.set()
    await asyncio.wait_for(asyncio.gather(*tasks), 60)
    assert [message[0] for message in log] == list(range(10))


@on_a_loop
async def test_what_is_larger_than_all_the_room_is_sent_alone():
    log, streams, tasks = sending(SendWindow(bytes_max=30), 3, 100)
    for number, stream in enumerate(streams):
        await rest()
        assert [message[0] for message in log] == list(range(number + 1))
        stream.taken.set()
    await asyncio.wait_for(asyncio.gather(*tasks), 60)


@on_a_loop
async def test_who_leaves_while_it_waits_or_is_sent_to_gives_its_room_back():
    log, streams, tasks = sending(SendWindow(bytes_max=10), 4, 10)
    await rest()
    for task in tasks[:3]:
        task.cancel()
    await rest()
    assert [message[0] for message in log] == [0, 3]
    streams[3].taken.set()
    await asyncio.wait_for(tasks[3], 60)


@on_a_loop
async def test_who_stands_still_does_not_hold_up_the_others(monkeypatch):
    monkeypatch.setattr(send_window, "STALLED_READER_S", 0.02)
    place = SendWindow(bytes_max=30)
    log, streams, still = sending(place, 3, 10)
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
