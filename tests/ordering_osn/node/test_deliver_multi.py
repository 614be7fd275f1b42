"""DeliverMulti at real nodes on a log in memory: one order, cursors, rights, privacy, refusals."""

import asyncio
from contextlib import aclosing

import pytest

from ordering_osn.api.grpc_client import NodeClient
from ordering_osn.api.grpc_server import Server
from ordering_osn.api.multi import deliver_multi
from ordering_osn.client import messages
from ordering_osn.client.messages import DeliveredEntry as Entry
from tests.helpers.small import until
from tests.ordering_osn.helpers import configs
from tests.ordering_osn.helpers.bundle_nodes import (
    CHAINS,
    A,
    B,
    C,
    Clients,
    bundle_for,
    quick_chains,
)
from tests.ordering_osn.helpers.served import served
from tests.ordering_osn.helpers.small import Nodes, chains_plan, healthy, ordered, transaction

pytestmark = pytest.mark.slow
THREE = CHAINS[:3]
# The readers' chains are in the plan; the collector of a and b does not order c's transactions.
READ = chains_plan(*THREE, spanning=[(A, B), (B, C), THREE], readers=[(A, B), THREE])


async def answers(
    address, chains, start=messages.OLDEST, *, count, signer=None, stop=messages.NEVER
):
    """Give the first answers of a stream as bytes; fewer where the node ends it."""
    request = messages.deliver_request(signer or configs.org_user(), chains, start, stop=stop)
    got = []
    async with asyncio.timeout(60), NodeClient(address) as client:
        stream = client.exchange(messages.DELIVER_MULTI, [request])
        async with aclosing(stream):
            async for raw in stream:
                got.append(raw)
                if len(got) == count:
                    break
    return got


def entries(node, chains, start=messages.OLDEST, *, count, **options):
    async def read():
        async with served(node) as address:
            return await answers(address, chains, start, count=count, **options)

    return [messages.read_delivered(raw) for raw in asyncio.run(read())]


def ended(node, chains, start=messages.OLDEST, **options):
    """Give the status and the reason with which a node ends a stream at once."""
    (end,) = entries(node, chains, start, count=1, **options)
    return end.status, end.info


def fill(clients, node, *, rounds=3):
    """Order transactions of one chain and bundles; gives the bundles."""
    made = []
    for _ in range(rounds):
        made += [bundle_for(A, B), bundle_for(*THREE), bundle_for(B, C)]
        clients.accepted(node, *made[-3:])
        clients.broadcast(node, *map(transaction, THREE))
    clients.committed(node, *made)
    for chain, count in ((A, 3), (B, 4), (C, 3)):
        until(lambda chain=chain, count=count: len(ordered(node, chain)) == rounds * count)
    return made


def test_one_order_everything_once_and_the_rest_behind_each_cursor_at_another_node(tmp_path):
    with Nodes(READ, tmp_path) as osn, Clients() as clients:
        raws = quick_chains(*THREE)
        n1, n2 = osn.start("n1", *raws), osn.start("n2", *raws)
        healthy(n1, n2)
        made = fill(clients, n1)
        whole = entries(n1, THREE, count=18)
        assert {each.bundle_id for each in whole} - {b""} == {each.id for each in made}
        for chain in THREE:  # each chain's entries are its ledger
            parts = [part for each in whole for part in each.parts if part.place.chain == chain]
            assert [part.envelope for part in parts] == ordered(n1, chain)
        for each in whole:
            assert {part.place.chain for part in each.parts} == set(each.chains)
        for number in range(17):
            rest = entries(n2, THREE, whole[number].cursor, count=17 - number)
            assert rest == whole[number + 1 :]
        # M12: a reader of two of the chains has what is common in the same order.
        two = entries(n2, (A, B), count=15)
        assert [parts_in(each, (A, B)) for each in whole if parts_in(each, (A, B))] == [
            parts_in(each, (A, B)) for each in two
        ]


def parts_in(entry, chains):
    return [part for part in entry.parts if part.place.chain in chains]


def test_newest_gives_what_comes_from_now_on_after_restarts_too(tmp_path):
    with Nodes(READ, tmp_path) as osn, Clients() as clients:
        osn.start("n1", *quick_chains(*THREE))
        healthy(osn.nodes["n1"])
        fill(clients, osn.nodes["n1"], rounds=1)
        osn.stop("n1")
        node = osn.running("n1")

        async def follow():
            async with served(node) as address:
                reading = asyncio.create_task(answers(address, (A, B), messages.NEWEST, count=1))
                sent = []
                while not reading.done():  # until one comes behind the start
                    sent.append(transaction(B))
                    await node.submit(sent[-1])
                    await asyncio.wait({reading}, timeout=0.2)
                return sent, messages.read_delivered(reading.result()[0])

        sent, entry = asyncio.run(follow())
        assert [part.envelope in sent for part in entry.parts] == [True]


def test_a_reader_of_one_chain_gets_the_same_and_no_part_of_another(tmp_path):
    with Nodes(READ, tmp_path) as osn, Clients() as clients:
        node = osn.running("n1", *quick_chains(*THREE))
        made = fill(clients, node, rounds=1)

        async def read():
            async with served(node) as address:
                return (
                    await answers(address, (B,), count=4),
                    await answers(address, (A, B), count=5),
                )

        of_one, of_two = asyncio.run(read())
        got = [messages.read_delivered(raw) for raw in of_one]
        assert [part.envelope for each in got for part in each.parts] == ordered(node, B)
        secret = [part.envelope for each in made for part in each.parts if part.chain == C]
        assert len(secret) == 2
        assert not [raw for raw in of_one + of_two for envelope in secret if envelope in raw]


def test_refusals_name_the_chain_and_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(deliver_multi, "CHAINS_MAX", 3)
    with Nodes(READ, tmp_path) as osn:
        node = osn.running("n1", *quick_chains(A, B))
        assert ended(node, (A, "chain-x")) == (404, "this node has no channel 'chain-x'")
        assert ended(node, ()) == (400, "the request names 0 chains, not 1 to 3")
        assert ended(node, (*THREE, "d"))[0] == 400
        assert ended(node, (A, A)) == (400, "the request names a chain twice")
        assert ended(node, (A, B), b"1:\xff")[1].startswith("the cursor is none tha")
        assert ended(node, (A, B), b"1:1/K99/0/0/0")[0] == 400
        status, info = ended(node, (A, B), b"1:9/K2/0/0/0")
        assert (status, info.startswith("topic chains has no plan of epoch 9")) == (404, True)
        stranger = configs.Member(configs.root().issue("x", units=["client"]), "Org1MSP")
        status, info = ended(node, (A, B), signer=stranger)
        assert status == 403
        assert info.startswith(f"the identity does not satisfy the Readers of channel {A}: ")


def test_what_may_be_pruned_is_refused_and_what_is_behind_it_is_given(tmp_path):
    with Nodes(READ, tmp_path) as osn, Clients() as clients:
        node = osn.running("n1", *quick_chains(A, B, count=1))
        for number in range(1, 7):  # a block each
            clients.broadcast(node, transaction(A))
            until(lambda number=number: len(ordered(node, A)) == number)
        whole = entries(node, (A, B), count=6)
        node.get(A).ledger.prune(4)
        assert node.get(A).ledger.base == 4
        for start in (messages.OLDEST, whole[0].cursor):
            status, info = ended(node, (A, B), start)
            assert status == 404
            assert f"entries of {A} behind this start may be in blocks below 4" in info
        for number in (3, 4):
            rest = entries(node, (A, B), whole[number].cursor, count=5 - number)
            assert rest == whole[number + 1 :]


@pytest.mark.parametrize(("most", "others"), [(1, 503), (4, None)])
def test_a_node_and_a_client_have_so_many_readers_and_end_with_the_node(
    tmp_path, monkeypatch, most, others
):
    """A quarter of them is one client's; `others`: what another client gets."""
    monkeypatch.setattr(
        deliver_multi.DeliverMulti.__init__, "__kwdefaults__", {"readers_max": most}
    )
    with Nodes(READ, tmp_path) as osn:
        node = osn.running("n1", *quick_chains(A, B))

        async def both():
            server = Server(node, metrics=node.metrics)
            await server.start()
            address = f"127.0.0.1:{server.port}"
            assert (await node.submit(transaction(A)))[0] == 200
            request = messages.deliver_request(configs.org_user(), (A, B), messages.OLDEST)
            async with asyncio.timeout(60), NodeClient(address) as client:
                first = client.exchange(messages.DELIVER_MULTI, [request])
                assert isinstance(messages.read_delivered(await anext(first)), Entry)
                (refused,) = await answers(address, (A, B), count=1)
                request = messages.deliver_request(configs.orderer(), (A, B), messages.OLDEST)
                second = client.exchange(messages.DELIVER_MULTI, [request])
                other = messages.read_delivered(await anext(second))
                await server.stop(1.0)
                last = messages.read_delivered(await anext(first))
                return messages.read_delivered(refused), other, last

        refused, other, stopped = asyncio.run(both())
        assert refused.status == 503
        assert refused.info.startswith("this node has 1 readers of several chains, 1 of them yours")
        assert getattr(other, "status", None) == others
        assert (stopped.status, stopped.info) == (503, "this node is stopping")
