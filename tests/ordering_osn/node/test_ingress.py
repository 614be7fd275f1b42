"""Answers to envelopes that no client library makes, from a node served over gRPC."""

import asyncio
import threading
from datetime import UTC, datetime
from functools import partial

import pytest

from ordering_osn.api.channels import HEAVY_BYTES
from ordering_osn.chain.envelopes import canonical
from ordering_osn.chain.transactions import transaction_id
from ordering_osn.protos import Envelope, HeaderType
from tests.ordering_osn.helpers import configs
from tests.ordering_osn.helpers.loops import becomes
from tests.ordering_osn.helpers.served import broadcast, client_of
from tests.ordering_osn.helpers.small import (
    LONE,
    Nodes,
    counted,
    log_of,
    quick,
    transaction,
    until_ordered,
)

pytestmark = pytest.mark.slow
NAMELESS = (7, 8, 9, 99, -1, 2**31 - 1, -(2**31))


def unsigned(raw):
    return canonical(Envelope(payload=Envelope.FromString(raw).payload))


async def test_header_types_without_a_name_are_ordered_where_signed_and_else_forbidden(tmp_path):
    assert not set(NAMELESS) & set(HeaderType.values())
    with Nodes(LONE, tmp_path) as osn:
        node = osn.running("n1", quick(timeout="30ms"))
        sent = [transaction(kind=kind) for kind in NAMELESS]
        async with client_of(node) as client:
            assert await broadcast(client, *sent) == [200] * len(sent)
            for kind in NAMELESS:
                assert await broadcast(client, unsigned(transaction(kind=kind))) == [403]
        assert until_ordered(node, len(sent)) == sent
        # However many types clients make up, their numbers make no more series of metrics.
        counts = [
            counted(node, "broadcast_processed_count", "chain-a", "UNKNOWN", status)
            for status in ("SUCCESS", "FORBIDDEN")
        ]
        assert counts == [len(sent)] * 2


def swapped(raw):
    """The same envelope with its signature in front of its payload: libraries read it alike."""
    signature = canonical(Envelope(signature=Envelope.FromString(raw).signature))
    return signature + raw[: len(raw) - len(signature)]


async def test_an_envelope_in_another_encoding_stands_in_the_block_as_peers_demand_it(tmp_path):
    """Fabric's peers refuse a block for ever with an envelope that an encoder does not give so."""
    sent = [transaction() for _ in range(3)]
    odd = [swapped(sent[0]), *sent[1:]]
    assert Envelope.FromString(odd[0]) == Envelope.FromString(sent[0])

    with Nodes(LONE, tmp_path) as osn:
        node = osn.running("n1", quick(timeout="30ms"))
        async with client_of(node) as client:
            assert await broadcast(client, *odd) == [200] * 3
        assert until_ordered(node, 3) == sent


def test_a_large_update_is_judged_beside_the_loop_and_nothing_behind_a_refused_one(tmp_path):
    judged, on_the_loop = threading.Event(), threading.current_thread()

    def clock():
        if threading.current_thread() is not on_the_loop:
            judged.wait(60)
        return datetime.now(UTC)

    async def ask(node):
        signers = [configs.org_user()] * 20
        change = partial(configs.set_batch, max_message_count=4)
        small, large = (
            configs.update(
                node.get("chain-a").config, change, signers=by, sender=configs.org_user()
            )
            for by in (signers[:1], signers)
        )
        assert len(small) <= HEAVY_BYTES < len(large)
        async with client_of(node) as client:
            assert await broadcast(client, small, transaction()) == [400]
            judging = asyncio.create_task(broadcast(client, large, transaction()))
            assert await broadcast(client, *sent) == [200, 200]
            await becomes(lambda: node.get("chain-a").knows(transaction_id(sent[1])))
            assert not judging.done()
            judged.set()
            assert await judging == [400]

    sent = [transaction() for _ in range(2)]
    with Nodes(LONE, tmp_path) as osn:
        node = osn.running("n1", quick(timeout="30ms"), clock=clock)
        asyncio.run(ask(node))
        assert until_ordered(node, 2) == sent


def padded(raw, size):
    """The same envelope behind a field that nobody knows, and nobody signed."""
    return canonical(Envelope(payload=b"\0" * size)).replace(b"\x0a", b"\xa2\6", 1) + raw


async def test_neither_padding_nor_repetition_lets_anybody_fill_the_log(tmp_path):
    """What an envelope has beside payload and signature is in no limit and signed by nobody."""

    known, fresh = transaction(), transaction()
    assert Envelope.FromString(padded(known, 9)).payload == Envelope.FromString(known).payload
    with Nodes(LONE, tmp_path) as osn:
        node, log = osn.running("n1", quick(timeout="1m")), log_of(osn)
        async with client_of(node) as client:
            assert await broadcast(client, known) == [200]
            await becomes(lambda: node.get("chain-a").knows(transaction_id(known)))
            behind = osn.small.log.last_stable_offsets([log])[log]
            for raw in (known, fresh):
                assert await broadcast(client, padded(raw, 900_000)) == [400]
            assert await broadcast(client, *[known, swapped(known)] * 50) == [200] * 100
            assert osn.small.log.last_stable_offsets([log])[log] == behind
            assert await broadcast(client, fresh) == [200]
