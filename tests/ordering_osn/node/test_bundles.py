"""Bundles at real nodes on a log in memory: in the blocks of all chains, and their fates."""

import asyncio
import threading

import pytest

from ordering_osn.api.channels import FateKind
from ordering_osn.chain.bundles.bundle import encode_bundle, make_bundle
from ordering_osn.chain.bundles.rule import VoidReason
from tests.ordering_osn.helpers import configs
from tests.ordering_osn.helpers.small import (
    LONE,
    TWO,
    Nodes,
    batch_of,
    chain_of,
    counted,
    healthy,
    ordered,
    quick,
    transaction,
    until_alike,
)

pytestmark = pytest.mark.slow
AB = ("chain-a", "chain-b")


_LOOP = asyncio.new_event_loop()


@pytest.fixture(scope="module", autouse=True)
def running_loop():
    """One event loop for all calls of a node, as its server has: its reposts outlive a call."""
    thread = threading.Thread(target=_LOOP.run_forever, daemon=True)
    thread.start()
    yield
    _LOOP.call_soon_threadsafe(_LOOP.stop)
    thread.join(60)


def on_loop(coroutine):
    return asyncio.run_coroutine_threadsafe(coroutine, _LOOP).result(120)


def fresh(*, expiry=0):
    parts = {chain: transaction(chain) for chain in AB}
    return make_bundle(parts, signer=configs.org_user(), expiry=expiry)


def send(node, *made, wait_s=60.0):
    """Submit bundles at once; give the answers, and the fates once they are final."""

    async def both():
        answers = await asyncio.gather(*[node.submit_bundle(encode_bundle(each)) for each in made])
        accepted = [
            each for each, answer in zip(made, answers, strict=True) if answer.status == 200
        ]
        fates = await asyncio.gather(*[node.bundle_status(each.id, wait_s) for each in accepted])
        return answers, fates

    return on_loop(both())


def assert_committed(node, made, fate):
    assert fate.kind is FateKind.COMMITTED, fate
    assert set(fate.places) == set(AB)
    for part in made.parts:
        assert ordered(node, part.chain).count(part.envelope) == 1


def started(osn, name):
    node = osn.start(name, *(quick(chain, timeout="30ms") for chain in AB))
    healthy(node)
    return node


def test_bundles_are_in_all_chains_blocks_and_known_elsewhere_and_after_a_restart(tmp_path):
    with Nodes(TWO, tmp_path) as osn:
        first, second = started(osn, "n1"), started(osn, "n2")
        made = [fresh() for _ in range(10)]
        answers, fates = send(first, *made)
        assert [answer.status for answer in answers] == [200] * 10
        for each, fate in zip(made, fates, strict=True):
            assert_committed(first, each, fate)
        # The other node answers at once, and a client that sends again learns the same.
        again, elsewhere = send(second, *made)
        assert [answer.status for answer in again] == [200] * 10
        assert [fate.places for fate in elsewhere] == [fate.places for fate in fates]
        for chain in AB:
            until_alike(first, second, chain=chain)
        blocks = {chain: chain_of(first, chain) for chain in AB}
        osn.stop("n1")
        reborn = started(osn, "n1")
        after, known = send(reborn, *made)
        assert [answer.status for answer in after] == [200] * 10
        assert [fate.places for fate in known] == [fate.places for fate in fates]
        assert {chain: chain_of(reborn, chain) for chain in AB} == blocks


def test_a_config_in_between_leaves_bundles_whole(tmp_path):
    with Nodes(TWO, tmp_path) as osn:
        node = started(osn, "n1")
        for count in (20, 30):
            made = [fresh() for _ in range(5)]
            update = batch_of(node.get("chain-a").config, count)
            accepted = on_loop(node.submit(update))
            assert accepted[0] == 200
            answers, fates = send(node, *made)
            assert [answer.status for answer in answers] == [200] * 5
            for each, fate in zip(made, fates, strict=True):
                assert_committed(node, each, fate)
        assert counted(node, "bundles_counted", "chain-a") == 10
        assert counted(node, "bundles_processed", "SUCCESS") == 10


def test_an_expired_bundle_stands_in_no_block(tmp_path):
    with Nodes(TWO, tmp_path) as osn:
        node = started(osn, "n1")
        send(node, fresh())
        made = fresh(expiry=1)
        (answer,), (fate,) = send(node, made)
        assert answer.status == 200
        assert (fate.kind, fate.reason) == (FateKind.VOID, VoidReason.EXPIRED)
        for part in made.parts:
            assert part.envelope not in ordered(node, part.chain)


def test_a_set_without_a_log_is_refused(tmp_path):
    with Nodes(LONE, tmp_path) as osn:
        node = osn.start("n1", quick(timeout="30ms"))
        healthy(node)
        ((answer,), _) = send(node, fresh())
        assert (answer.status, answer.bundle_id != b"") == (404, True)
        assert "not declared" in answer.info
