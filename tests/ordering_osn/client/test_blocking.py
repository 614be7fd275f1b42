"""`SyncClient`: the calls of `Client`, from threads."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import pytest

from ordering_osn.client import BundleIsVoid, SyncClient
from tests.ordering_osn.helpers.chains import USER, transaction
from tests.ordering_osn.helpers.multi import (
    AB,
    ScriptedNode,
    World,
    alone,
    entry_of,
    fresh,
    scripted_elsewhere,
    void,
)


@contextmanager
def served(*nodes):
    """A client of these nodes."""
    with (
        scripted_elsewhere(*nodes) as addresses,
        SyncClient(addresses, USER, retry_s=60.0) as client,
    ):
        yield client


def test_the_calls_give_what_the_clients_calls_give():
    world = World()
    with served(ScriptedNode(world)) as client:
        made = client.bundle({chain: transaction(chain=chain) for chain in AB})
        assert client.submit(made).accepted
        assert client.status(made.id).kind == "committed"
        assert [place.chain for place in client.wait(made.id, 60.0).places] == list(AB)
        assert client.submit_and_wait(fresh(), 60.0).places
        world.fate = void("EXPIRED")
        with pytest.raises(BundleIsVoid):
            client.submit_and_wait(fresh(), 60.0)


def test_many_bundles_of_an_iterator_that_blocks():
    """The next bundle is made only after the answer to the one before."""
    answered = threading.Event()

    def source():
        yield fresh()
        assert answered.wait(60)
        yield fresh()

    statuses = []
    with served(ScriptedNode(World())) as client:
        for answer in client.submit_many(source()):
            statuses.append(answer.status)
            answered.set()
    assert statuses == [200, 200]


def test_many_threads_share_a_client():
    world = World()
    bundles = [fresh() for _ in range(60)]
    node = ScriptedNode(world, ["take", "busy", "break"])
    with served(node) as client, ThreadPoolExecutor(6) as threads:
        answers = list(threads.map(client.submit, bundles))
    assert {answer.bundle_id for answer in answers} == {made.id for made in bundles}
    assert sorted(world.taken) == sorted(made.id for made in bundles)


def test_a_stream_of_entries_breaks_goes_on_and_may_be_left_early():
    made = fresh()
    world = World(entries=[alone("chain-a"), entry_of(made), alone("chain-b")])
    node = ScriptedNode(world, streams=[(1, "break"), (1, "silent"), (None, "end")])
    with served(node) as client:
        with closing(client.deliver(AB)) as stream:
            assert next(stream).chains == ("chain-a",)
            assert next(stream).bundle_id == made.id
        assert len(list(client.deliver(AB))) == 3
