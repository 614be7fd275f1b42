"""`Client.submit_many` while its nodes lose connections, with and without bundles that wait."""

import asyncio
from contextlib import suppress

import pytest

from ordering_osn.api.connection_errors import ConnectionLost
from ordering_osn.client import Client, client
from tests.ordering_osn.helpers.chains import USER, gathered
from tests.ordering_osn.helpers.multi import fresh

LOSSES = 6


class LosingClient(Client):
    """A client whose nodes lose each connection after 20 ms, before any answer."""

    losses = 0

    def __init__(self, count):
        super().__init__(["127.0.0.1:1"] * count, USER, retry_s=0.01)
        self.lost_often = asyncio.Event()

    async def _node(self, _):
        return self

    async def exchange(self, _, sent):
        sending = asyncio.create_task(gathered(sent))
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 0.02)
        sending.cancel()
        self.losses += 1
        if self.losses == LOSSES:
            self.lost_often.set()
        raise ConnectionLost("the node stops")
        yield b""


@pytest.fixture(params=[1, 2])
def nodes(request, monkeypatch):
    monkeypatch.setattr(client, "_WORKED_S", 0.01)
    return request.param


def test_connections_that_were_idle_for_long_may_be_lost_again_and_again(nodes):
    async def submit():
        losing = LosingClient(nodes)

        async def none():
            await losing.lost_often.wait()
            raise LookupError("no more")
            yield

        await gathered(losing.submit_many(none()))

    with pytest.raises(LookupError):
        asyncio.run(submit())


def test_nodes_that_hold_connections_for_long_and_answer_nothing_end_the_stream(nodes):
    async def submit():
        await gathered(LosingClient(nodes).submit_many([fresh()]))

    with pytest.raises(ConnectionLost):
        asyncio.run(asyncio.wait_for(submit(), 60))
