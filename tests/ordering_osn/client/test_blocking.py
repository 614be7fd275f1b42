"""`SyncClient`: the calls of `Client`, from threads."""

import threading
from contextlib import contextmanager

import pytest

from ordering_osn.client import BundleIsVoid, SyncClient
from tests.ordering_osn.helpers.chains import USER, transaction
from tests.ordering_osn.helpers.multi import (
    AB,
    ScriptedNode,
    World,
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
