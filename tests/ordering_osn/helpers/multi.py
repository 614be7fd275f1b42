"""Nodes of `amcast.osn.MultiChain` over real gRPC that do what a test's script says.

They share a `World`: which bundles were taken in, their fates, and the entries of the stream.
"""

import asyncio
import threading
from collections import deque
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field

import grpc
from grpc import aio

from ordering_osn.api.multi.signed_request import SIGNED_FIRST
from ordering_osn.chain.bundles.bundle import read_bundle
from ordering_osn.client import Client
from ordering_osn.identity import verify_as
from ordering_osn.wire import multichain_pb2 as wire
from tests.ordering_osn.helpers.bundles import bundle
from tests.ordering_osn.helpers.chains import USER

AB = ("chain-a", "chain-b")


def fresh(chains=AB, **more):
    return bundle(chains, signer=USER, **more)


def committed(*chains, block=7):
    places = [{"chain": chain, "block": block, "index": 1} for chain in chains]
    return {"committed": {"places": places}}


def void(reason, chain=""):
    return {"void": {"reason": getattr(wire, f"VOID_REASON_{reason}"), "chain": chain}}


@dataclass
class World:
    fates: dict = field(default_factory=dict)  # by bundle ID; a list is told in order
    fate: dict = field(default_factory=lambda: committed(*AB))  # of each bundle taken in
    taken: list = field(default_factory=list)  # IDs, in the order of the logs
    entries: list = field(default_factory=list)  # `MultiEntry`s without a cursor
    log_ends: dict = field(default_factory=lambda: {AB: 40})  # by set
    delivers: bool = False  # whether a bundle taken in becomes an entry

    def take(self, made):
        if made.id not in self.taken:
            self.taken.append(made.id)
            self.fates.setdefault(made.id, self.fate)
            if self.delivers:
                self.entries.append(entry_of(made))


class ScriptedNode:
    """`script`: what it does with the next bundles; `statuses`, `streams`: with other calls.

    A bundle: take, busy, refuse, break (off without taking it), take and break, silent, other.
    A request for a fate: "" (answer), break, forbid. A stream: how many entries it sends before
    what it does then: end, break, busy, forbid, silent.
    """

    SERVICE = "amcast.osn.MultiChain"

    def __init__(self, world, script=(), *, statuses=(), streams=()):
        self.world = world
        self.script, self.statuses, self.streams = deque(script), deque(statuses), deque(streams)
        self.received = []
        self.requests = []
        self.address = ""

    async def start(self):
        self.server = aio.server()
        handlers = {
            "BroadcastMulti": grpc.stream_stream_rpc_method_handler(self.broadcast),
            "Status": grpc.unary_unary_rpc_method_handler(self.status),
            "LogEnd": grpc.unary_unary_rpc_method_handler(self.log_end),
            "DeliverMulti": grpc.unary_stream_rpc_method_handler(self.deliver),
        }
        generic = grpc.method_handlers_generic_handler(self.SERVICE, handlers)
        self.server.add_generic_rpc_handlers((generic,))
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        await self.server.start()

    async def broadcast(self, messages, context):
        async for raw in messages:
            made = read_bundle(raw)
            self.received.append(made.id)
            what = self.script.popleft() if self.script else "take"
            if what.startswith("take"):
                self.world.take(made)
            if what.endswith("break"):
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the node stops")
            if what == "silent":
                await asyncio.Event().wait()
            response = wire.BundleResponse(status=200, bundle_id=made.id)
            if what == "busy":
                response = wire.BundleResponse(status=503, info="wait", bundle_id=made.id)
            elif what == "refuse":
                response = wire.BundleResponse(
                    status=403, info="no writer", bundle_id=made.id, chain="chain-b"
                )
            elif what == "other":
                response = wire.BundleResponse(status=200, bundle_id=bytes(32))
            yield response.SerializeToString()

    def request(self, raw):
        signed = wire.SignedRequest.FromString(raw)
        content = wire.RequestContent.FromString(signed.content)
        verify_as(content.creator, SIGNED_FIRST + signed.content, signed.signature)
        assert content.time_ms > 0
        assert len(content.nonce) >= 16
        self.requests.append(content)
        return content

    async def status(self, raw, context):
        request = self.request(raw).status
        what = self.statuses.popleft() if self.statuses else ""
        if what == "break":
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the node stops")
        if what == "forbid":
            return wire.StatusResponse(status=403, info="no reader").SerializeToString()
        fate = self.world.fates.get(request.bundle_id, {"unknown": {}})
        if isinstance(fate, list):
            fate = fate.pop(0) if len(fate) > 1 else fate[0]
        return wire.StatusResponse(status=200, **fate).SerializeToString()

    async def log_end(self, raw, context):
        chains = tuple(self.request(raw).log_end.chains)
        what = self.statuses.popleft() if self.statuses else ""
        if what == "break":
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the node stops")
        if chains not in self.world.log_ends:
            return wire.LogEndResponse(status=404, info="not declared").SerializeToString()
        end = self.world.log_ends[chains]
        return wire.LogEndResponse(status=200, offset_next=end).SerializeToString()

    async def deliver(self, raw, context):
        request = self.request(raw).deliver
        start = request.WhichOneof("start")
        first = {"oldest": 0, "newest": len(self.world.entries) - 1}.get(start)
        if first is None:
            first = int(request.cursor) + 1
        count, then = self.streams.popleft() if self.streams else (None, "end")
        for number, entry in list(enumerate(self.world.entries))[first:][:count]:
            entry.cursor = b"%d" % number
            yield wire.DeliverMultiResponse(entry=entry).SerializeToString()
        if then == "break":
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the node stops")
        if then == "silent":
            await asyncio.Event().wait()
        status = {"end": 200, "busy": 503, "forbid": 403}[then]
        yield wire.DeliverMultiResponse(end={"status": status, "info": then}).SerializeToString()


@asynccontextmanager
async def scripted(*nodes):
    """Serve the nodes; give their addresses."""
    async with AsyncExitStack() as stack:
        for node in nodes:
            await node.start()
            stack.push_async_callback(node.server.stop, 0)
        yield [node.address for node in nodes]


@contextmanager
def scripted_elsewhere(*nodes):
    """Serve the nodes on an event loop of their own thread; give their addresses."""
    ready, over = threading.Event(), asyncio.Event()
    addresses, loops = [], []

    async def serve():
        async with scripted(*nodes) as where:
            addresses.extend(where)
            loops.append(asyncio.get_running_loop())
            ready.set()
            await over.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(60)
        yield addresses
    finally:
        loops[0].call_soon_threadsafe(over.set)
        thread.join(60)
        assert not thread.is_alive()


@asynccontextmanager
async def client_of(*nodes, **options):
    """A client of the nodes, which gives up soon."""
    async with (
        scripted(*nodes) as addresses,
        Client(addresses, USER, **{"retry_s": 0.3, "answer_s": 30.0, **options}) as client,
    ):
        yield client


def alone(chain, data=b"x"):
    """An entry of the stream: a transaction of one chain."""
    return wire.MultiEntry(
        chains=[chain], parts=[{"place": {"chain": chain, "block": 1}, "envelope": data}]
    )


def entry_of(made, block=3):
    """An entry of the stream: a bundle."""
    parts = [
        {"place": {"chain": part.chain, "block": block}, "envelope": part.envelope}
        for part in made.parts
    ]
    return wire.MultiEntry(bundle_id=made.id, chains=made.chains, parts=parts)
