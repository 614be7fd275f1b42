"""Streams of a `Client` while its nodes lose connections."""

import asyncio
from contextlib import suppress

import pytest

from ordering_osn.api.connection_errors import ConnectionLost
from ordering_osn.client import Client, node_turns
from tests.ordering_osn.helpers.chains import USER, gathered

LOSSES = 6


class LosingClient(Client):
    """A client whose nodes lose each connection after 20 ms, before any answer."""

    losses = 0

    def __init__(self, count, *, connects=True):
        super().__init__(["127.0.0.1:1"] * count, USER, retry_s=0.01)
        self._connects = connects
        self.lost_often = asyncio.Event()

    async def _node(self, _):
        return self

    async def exchange(self, *_, timeout_s=None, connected):
        del timeout_s
        if self._connects:
            connected()
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 0.02)
        self.losses += 1
        if self.losses == LOSSES:
            self.lost_often.set()
        raise ConnectionLost("the node stops")
        yield b""


@pytest.fixture(params=[1, 2])
def nodes(request, monkeypatch):
    monkeypatch.setattr(node_turns, "_WORKED_S", 0.01)
    monkeypatch.setattr(node_turns, "PAUSE_S", 0.01)
    return request.param


@pytest.mark.parametrize("connects", [True, False])
async def test_a_stream_of_entries_goes_on_while_connections_stand_and_are_lost(nodes, connects):
    losing = LosingClient(nodes, connects=connects)
    reading = asyncio.create_task(gathered(losing.deliver(["chain-a"])))
    often = asyncio.create_task(losing.lost_often.wait())
    await asyncio.wait({reading, often}, timeout=60, return_when=asyncio.FIRST_COMPLETED)
    going_on = not reading.done()
    for task in (reading, often):
        task.cancel()
    await asyncio.gather(reading, often, return_exceptions=True)
    assert going_on is connects
