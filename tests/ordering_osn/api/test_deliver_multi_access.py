"""Who may read several chains, and for how long: judged again while a stream runs."""

import asyncio
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from ordering_osn.api.multi import deliver_multi
from ordering_osn.api.multi.deliver_multi import DeliverMulti
from ordering_osn.client import messages
from ordering_osn.identity import expires_at
from tests.ordering_osn.helpers.chains import USER, NoReaders, SmallChannel, SmallChannels

AB = ("chain-a", "chain-b")
ENDED = RuntimeError("the script has ended")


class World(SmallChannels):
    """Two chains whose order holds no record. `events`: what happens at one poll after another."""

    def __init__(self, folder):
        self.opened = [SmallChannel(folder, name) for name in AB]
        super().__init__(*self.opened)
        self.now = datetime.now(UTC)
        self.events = []
        self.starts = []

    def open_order(self, chains, start):
        assert tuple(chains) == AB
        self.starts.append(start)
        return SimpleNamespace(poll=self.poll, progress=dict, close=lambda: None)

    def poll(self, _timeout):
        if not self.events:
            raise ENDED
        self.events.pop(0)()
        return []

    async def read(self, chains=AB, start=messages.OLDEST):
        """Give the status and the reason with which a stream ends."""
        written = []

        async def write(raw):
            written.append(messages.read_delivered(raw))

        async def first():
            return messages.deliver_request(USER, chains, start)

        deliver = DeliverMulti(self, clock=lambda: self.now)
        stream = SimpleNamespace(read=first, write=write, granted=bytes)
        await asyncio.wait_for(deliver.serve(stream, None), 60.0)
        deliver.close()
        await deliver.ended()
        (end,) = written
        return end.status, end.info


@pytest.fixture
def world(tmp_path, monkeypatch):
    monkeypatch.setattr(deliver_multi, "_TURN_S", 0.0)
    world = World(tmp_path)
    yield world
    for channel in world.opened:
        channel.store.close()


def read(world, **request):
    return asyncio.run(world.read(**request))


def test_a_stream_goes_on_while_nothing_changes(world):
    world.events = [lambda: None] * 3
    assert read(world) == (503, str(ENDED))
    assert world.events == []


@pytest.mark.parametrize("number", [0, 1])
def test_the_reader_needs_the_rights_of_each_chain(world, number):
    world.opened[number].config = NoReaders(1)
    status, info = read(world)
    assert (status, AB[number] in info) == (403, True)
    assert world.starts == []  # nothing was read


@pytest.mark.parametrize("number", [0, 1])
def test_a_right_that_a_new_config_revokes_ends_the_stream(world, number):
    channel = world.opened[number]

    def revoke():
        channel.config = NoReaders(channel.config.sequence + 1)

    world.events = [lambda: None, revoke]
    status, info = read(world)
    assert status == 403
    assert info.startswith(f"the identity does not satisfy the Readers of channel {AB[number]}: ")


def test_an_identity_that_expires_ends_the_stream(world):
    def expire():
        world.now = expires_at(USER.creator) + timedelta(seconds=1)

    world.events = [lambda: None, expire]
    assert read(world) == (403, "the identity has expired")


@pytest.mark.parametrize("number", [0, 1])
def test_a_chain_that_no_longer_follows_its_log_ends_the_stream(world, number):
    def fail():
        world.opened[number].errored = True

    world.events = [lambda: None, fail]
    status, info = read(world)
    assert (status, AB[number] in info) == (503, True)


@pytest.mark.parametrize(
    "cursor",
    [b"", b"1/K1/3/0/3", b"2:1/K1/3/0/3", b"1:1:1/K1/3/0/3", b"1:", b"1:\xff", b"1:" + b"9" * 2000],
)
def test_a_cursor_that_deliver_multi_did_not_give_is_refused(world, cursor):
    assert read(world, start=cursor)[0] == 400
    assert world.starts == []


def test_a_cursor_that_deliver_multi_gave_is_the_multicast_s(world):
    read(world, start=b"1:1/K1/3/0/3")
    assert world.starts == ["1/K1/3/0/3"]
