"""Peers that send anything but their blocks, over gRPC: nothing of it ends a chain's loop."""

import asyncio
import contextlib
import threading

import grpc
import pytest
from grpc import aio

from ordering_osn.api.responses import block_answer, status_answer
from ordering_osn.node.peers import PeerNodes
from ordering_osn.protos import Block
from tests.helpers.small import until
from tests.ordering_osn.helpers import configs
from tests.ordering_osn.helpers.served import served
from tests.ordering_osn.helpers.small import LONE, Nodes, quick, until_alike
from tests.ordering_osn.node.test_troubles import behind_retention

pytestmark = pytest.mark.slow


def forged(ledger, change):
    """All blocks, changed."""
    blocks = [Block.FromString(ledger.read(number)) for number in range(1, ledger.height)]
    for block in blocks:
        change(block)
    return [*(block_answer(block.SerializeToString()) for block in blocks), status_answer(404)]


def unsigned(block):
    block.metadata.metadata[0] = b""


def of_other_data(block):
    block.data.data[0] = b"forged"


# What a peer sends, of the blocks behind the genesis, for its first request and for later ones.
PEERS = {
    "half an answer": lambda _: [[b"\x12\x05abc"]],
    "half a status": lambda _: [[b"\x08"]],
    "no protobuf": lambda _: [[b"\xff" * 100]],
    "a block that cannot be decoded": lambda _: [[block_answer(b"\xff")]],
    "a status of nobody": lambda _: [[status_answer(99)]],
    "an empty answer": lambda _: [[b""]],
    "no answer": lambda _: [[]],
    "blocks that nobody signed": lambda ledger: [forged(ledger, unsigned)],
    "blocks of other data": lambda ledger: [forged(ledger, of_other_data)],
    "a block, and is gone then": lambda ledger: [
        [block_answer(ledger.read(1)), status_answer(404)],
        [None],
    ],
}


@contextlib.asynccontextmanager
async def peer_that_sends(turns):
    """Serve Deliver with these answers, the last ones again and again; give the address."""

    async def deliver(_, context):
        await context.read()
        for answer in turns.pop(0) if len(turns) > 1 else turns[0]:
            if answer is None:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "gone")
            await context.write(answer)

    server = aio.server()
    method = {"Deliver": grpc.stream_stream_rpc_method_handler(deliver)}
    service = grpc.method_handlers_generic_handler("orderer.AtomicBroadcast", method)
    server.add_generic_rpc_handlers((service,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


@pytest.fixture(scope="module")
def loop():
    running = asyncio.new_event_loop()
    thread = threading.Thread(target=running.run_forever, daemon=True)
    thread.start()
    yield running
    running.call_soon_threadsafe(running.stop)
    thread.join(10)
    running.close()


@pytest.fixture(scope="module")
def osn(tmp_path_factory):
    with Nodes(LONE, tmp_path_factory.mktemp("peers")) as nodes:
        behind_retention(nodes)
        yield nodes


@pytest.mark.parametrize("sends", PEERS)
def test_what_a_peer_sends_ends_no_loop_and_the_next_one_is_asked(osn, loop, sends):
    def on_the_loop(coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(60)

    async def opened(stack):
        turns = PEERS[sends](osn.nodes["n1"].get("chain-a").ledger)
        return [
            await stack.enter_async_context(peer)
            for peer in (peer_that_sends(turns), served(osn.nodes["n1"]))
        ]

    stack = contextlib.AsyncExitStack()
    name = f"of {sends}".replace(" ", "-")
    try:
        wrong, honest = on_the_loop(opened(stack))
        peers = PeerNodes([wrong, honest], configs.orderer(), loop)
        node = osn.start(name, quick(timeout="30ms"), peers=peers)
        until_alike(osn.nodes["n1"], node)
        until(lambda: "so no block is cut until it says" in str(node.health()))
        osn.stop(name)
        running = osn.running(name, peers=PeerNodes([honest], configs.orderer(), loop))
        until_alike(osn.nodes["n1"], running)
    finally:
        if name in osn.nodes:
            osn.stop(name)
        on_the_loop(stack.aclose())
