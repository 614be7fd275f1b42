"""Rows of the contract that need a node and clients: maintenance, receivers, a lost log."""

import asyncio
import random
from contextlib import suppress

import pytest

from ordering_osn.api.connection_errors import ConnectionLost
from ordering_osn.api.grpc_client import NodeClient
from ordering_osn.api.seek import ENDLESS, seek_envelope
from ordering_osn.protos import Block, ConsensusType
from tests.helpers.small import until
from tests.ordering_osn.helpers import configs
from tests.ordering_osn.helpers.loops import becomes
from tests.ordering_osn.helpers.served import broadcast, client_of, delivered, served
from tests.ordering_osn.helpers.small import (
    LONE,
    Nodes,
    chains_plan,
    genesis,
    healthy,
    quick,
    transaction,
)

pytestmark = pytest.mark.slow
# etcdraft's `ConfigMetadata` with one consenter (localhost:7050), as configtxgen writes it.
CONSENTERS = b"\x0a\x0e\x0a\x09localhost\x10\x8a\x37"
NORMAL, MAINTENANCE = ConsensusType.STATE_NORMAL, ConsensusType.STATE_MAINTENANCE


def consensus(chain, kind="solo", **named):
    """Make an update of a chain's consensus type; `state` is NORMAL unless given."""
    return configs.update(chain.config, lambda new: configs.set_consensus(new, kind, **named))


# -- S8 -----------------------------------------------------------------------------------------


async def test_s8_a_channel_goes_into_maintenance_and_out_again_over_the_wire(tmp_path, caplog):
    with Nodes(LONE, tmp_path) as osn:
        node = osn.running("n1", quick(timeout="20ms"))
        chain = node.get("chain-a")
        admin = configs.orderer_admin()
        until(lambda: "chain-a has the OrdererType 'solo'" in caplog.text)

        async with client_of(node) as client:
            assert await broadcast(client, transaction()) == [200]
            assert await broadcast(client, consensus(chain, "etcdraft")) == [400]
            assert await broadcast(client, consensus(chain, "etcdraft", state=MAINTENANCE)) == [400]
            assert await broadcast(client, consensus(chain, state=MAINTENANCE)) == [200]
            await becomes(lambda: chain.config.maintenance)
            # No transaction is accepted from anyone, and only the orderers' members may read.
            assert await broadcast(client, transaction()) == [503]
            assert await delivered(client, "chain-a", 0, 0) == [403]
            blocks = await delivered(client, "chain-a", 0, 2, signer=admin)
            assert [block.header.number for block in blocks[:-1]] == [0, 1, 2]
            # In maintenance mode the type may change; outside it may not.
            assert await broadcast(client, consensus(chain, "etcdraft")) == [400]
            moved = consensus(chain, "etcdraft", state=MAINTENANCE, metadata=CONSENTERS)
            assert await broadcast(client, moved) == [200]
            await becomes(lambda: chain.config.sequence == 2)
            assert await broadcast(client, consensus(chain, "solo")) == [400]
            caplog.clear()
            left = consensus(chain, "etcdraft", metadata=CONSENTERS)
            assert await broadcast(client, left) == [200]
            await becomes(lambda: not chain.config.maintenance)
            assert await broadcast(client, transaction()) == [200]
            *blocks, status = await delivered(client, "chain-a", 0, 5)
            assert ([block.header.number for block in blocks], status) == ([*range(6)], 200)
        assert "OrdererType" not in caplog.text  # peers since 3.0 pull its blocks now


async def test_s8_maintenance_ends_the_readers_streams_and_is_left_without_a_change_of_type(
    tmp_path,
):
    with Nodes(LONE, tmp_path) as osn:
        node = osn.running("n1", quick(timeout="20ms"))
        chain = node.get("chain-a")

        async with client_of(node) as client:
            request = seek_envelope(configs.org_user(), "chain-a", 0, ENDLESS)
            stream = client.deliver(request, timeout_s=60.0)
            await anext(stream)
            assert await broadcast(client, consensus(chain, state=MAINTENANCE)) == [200]
            assert [answer async for answer in stream][-1] == 403
            assert await broadcast(client, consensus(chain)) == [200]
            # A config is in force before its block is written, and 404 is what lies beyond.
            await becomes(lambda: chain.ledger.height == 3)
            assert not chain.config.maintenance
            assert await broadcast(client, transaction()) == [200]
            assert (await delivered(client, "chain-a", 3, 3))[-1] == 200


async def test_s8_a_system_channel_in_maintenance_makes_no_channel(tmp_path):
    with Nodes(chains_plan("system", "new-channel"), tmp_path) as osn:
        system = configs.system_channel()
        node = osn.running("n1", genesis(system.config, "system"))
        chain = node.get("system")

        async with client_of(node) as client:
            assert await broadcast(client, consensus(chain, state=MAINTENANCE)) == [200]
            await becomes(lambda: chain.config.maintenance)
            assert await broadcast(client, configs.creation()) == [503]
            assert await broadcast(client, consensus(chain)) == [200]
            await becomes(lambda: not chain.config.maintenance)
            assert await broadcast(client, configs.creation()) == [200]
            await becomes(lambda: node.names() == ["new-channel", "system"])


# -- D13, K22, K33 with a whole node -------------------------------------------------------------


async def test_d13_k22_k33_a_log_that_goes_away_ends_strict_streams_and_no_others(tmp_path):
    with Nodes(LONE, tmp_path) as osn:
        driver = osn.faulty()
        node = osn.running("n1", quick(timeout="20ms"), driver=driver)
        reader = configs.org_user()

        async with client_of(node) as client:
            strict = client.deliver(seek_envelope(reader, "chain-a", 0), timeout_s=60.0)
            patient = client.deliver(
                seek_envelope(reader, "chain-a", 0, 1, best_effort=True), timeout_s=60.0
            )
            for stream in (strict, patient):
                await anext(stream)
            driver.away = True
            assert [answer async for answer in strict] == [503]
            await becomes(lambda: "no broker answered" in str(node.health()))
            assert await delivered(client, "chain-a", 0, 0) == [503]
            assert await broadcast(client, transaction()) == [503]
            driver.away = False
            await asyncio.to_thread(healthy, node)
            assert await broadcast(client, transaction()) == [200]
            found = [answer async for answer in patient]
            assert (len(found), found[-1]) == (2, 200)


# -- S9 -----------------------------------------------------------------------------------------


NAMES = ("n1", "n2", "n3")
ROUNDS = 3


class Parties:
    """Three nodes that come and go, each served over gRPC, each with a receiver of its own."""

    def __init__(self, osn):
        self.osn = osn
        self.addresses = {}
        self.received = {name: [] for name in NAMES}
        self._ends = {}

    async def come(self, name, *raw):
        node = await asyncio.to_thread(self.osn.start, name, *raw)
        await asyncio.to_thread(healthy, node)
        self._ends[name] = context = served(node)
        self.addresses[name] = await context.__aenter__()

    async def go(self, name):
        del self.addresses[name]
        await self._ends.pop(name).__aexit__(None, None, None)
        await asyncio.to_thread(self.osn.stop, name)

    def transactions(self, name):
        return [data for block in self.received[name][1:] for data in block.data.data]

    async def receive(self, name, count):
        """Read from a node whenever it is there, each time behind the last block that came."""
        received = self.received[name]
        while len(self.transactions(name)) < count:
            if name not in self.addresses:
                await asyncio.sleep(0.01)
                continue
            request = seek_envelope(configs.org_user(), "chain-a", len(received), ENDLESS)
            with suppress(ConnectionLost):
                async with NodeClient(self.addresses[name]) as client:
                    async for answer in client.deliver(request, timeout_s=60.0):
                        if isinstance(answer, bytes):
                            received.append(Block.FromString(answer))
                        if len(self.transactions(name)) >= count:
                            break

    async def send(self, name, some):
        async with NodeClient(self.addresses[name]) as client:
            assert await broadcast(client, *some) == [200] * len(some)


@pytest.mark.parametrize("seed", [None, 5], ids=["in turn", "at random"])
def test_s9_every_receiver_gets_every_transaction_once_though_nodes_come_and_go(tmp_path, seed):
    chance = random.Random(seed)
    leaving = list(NAMES) * (ROUNDS // 3) if seed is None else chance.choices(NAMES, k=ROUNDS)
    sent = [[transaction() for _ in range(7)] for _ in range(3 * ROUNDS)]
    everything = [one for some in sent for one in some]

    async def go(osn):
        parties = Parties(osn)
        for name in NAMES:
            await parties.come(name, quick(timeout="20ms", max_message_count=4))
        async with asyncio.timeout(240), asyncio.TaskGroup() as tasks:
            for name in NAMES:
                tasks.create_task(parties.receive(name, len(everything)))
            waiting = iter(sent)
            for name in leaving:
                for each in NAMES:
                    await parties.send(each, next(waiting))
                await parties.go(name)
                await parties.come(name)
        for name in NAMES:
            await parties.go(name)
        return parties

    with Nodes(LONE, tmp_path) as osn:
        parties = asyncio.run(go(osn))
    for name in NAMES:
        assert parties.transactions(name) == everything
        assert [block.header.number for block in parties.received[name]] == [
            *range(len(parties.received[name]))
        ]
    first, *others = [[block.header for block in parties.received[name]] for name in NAMES]
    for headers in others:
        assert headers == first
