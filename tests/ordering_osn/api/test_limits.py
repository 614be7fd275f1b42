"""What a server receives of messages that strangers send."""

import asyncio
import gc
from datetime import UTC, datetime

import pytest

from ordering_osn.api.broadcast import serve_bundles, serve_envelopes
from ordering_osn.api.connection_errors import ConnectionLost
from ordering_osn.api.deliver import Deliver
from ordering_osn.api.grpc_server import Server
from ordering_osn.api.metrics import Metrics
from ordering_osn.api.multi.deliver_multi import DeliverMulti
from ordering_osn.api.receipt_request import wait
from ordering_osn.config.channel_config import ChannelConfig
from ordering_osn.wire.multichain_pb2 import BundleResponse
from tests.helpers.small import until
from tests.ordering_osn.helpers import configs
from tests.ordering_osn.helpers.chains import (
    STRANGER,
    SmallChannel,
    SmallChannels,
    gathered,
    served,
    transaction,
)
from tests.ordering_osn.helpers.loops import becomes
from tests.ordering_osn.helpers.served import broadcast, client_of
from tests.ordering_osn.helpers.small import LONE, Nodes, quick

MIB = 1 << 20


def with_absolute(channel, absolute):
    config = configs.changed(
        channel.config, lambda new: configs.set_batch(new, absolute_max_bytes=absolute)
    )
    channel.config = ChannelConfig(channel.name, config)
    return channel


def test_a_raise_above_what_a_running_server_takes_is_warned_of(runner, tmp_path, caplog):
    """gRPC's limit is that of the start; messages up to the least are taken without a restart."""

    async def raised(node, absolute):
        async with client_of(node) as client:
            height = node.get("chain-a").ledger.height
            update = configs.update(
                node.get("chain-a").config,
                lambda new: configs.set_batch(new, absolute_max_bytes=absolute),
            )
            assert await broadcast(client, update) == [200]
            await becomes(lambda: node.get("chain-a").ledger.height > height)
            await becomes(lambda: node._signer_judged_by["chain-a"] is node.get("chain-a").config)

    with Nodes(LONE, tmp_path) as osn:
        node = osn.running("n1", quick(absolute_max_bytes=3 * MIB))
        runner.run(raised(node, 9 * MIB))
        assert "restart it" not in caplog.text
        runner.run(raised(node, 11 * MIB))
        says = (
            "chain-a allows messages of 11534336 bytes, and this node has taken messages of 10551"
        )
        until(lambda: says in caplog.text)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("absolute", "received", "refused"),
    [(2 * MIB, 10 * MIB, 11 * MIB), (12 * MIB, 12 * MIB, 13 * MIB), (2**32 - 1, 99 * MIB, 0)],
)
def test_no_larger_message_is_received_than_a_nodes_channels_can_use(
    runner, tmp_path, absolute, received, refused
):
    channel = with_absolute(SmallChannel(tmp_path), absolute)

    async def ask(size):
        async with served(SmallChannels(channel)) as client:
            return await gathered(client.broadcast([transaction(bytes(size), signer=STRANGER)]))

    ((status, _),) = runner.run(ask(received))
    assert status in (400, 403)  # what it is, is judged only then
    if refused:
        with pytest.raises(ConnectionLost, match="RESOURCE_EXHAUSTED"):
            runner.run(ask(refused))
    channel.store.close()


class Message(bytes):
    held = 0  # those that are in memory

    def __new__(cls):
        cls.held += 1
        return super().__new__(cls, MIB)

    def __del__(self):
        type(self).held -= 1


class Client:
    """Sends a message, then nothing; takes an answer, or none."""

    tls_hash, granted = None, bytes

    def __init__(self, *, takes):
        self.sent, self.takes = [Message()], takes

    async def read(self):
        return self.sent.pop() if self.sent else await asyncio.Event().wait()

    async def write(self, _):
        if not self.takes:
            await asyncio.Event().wait()


class Answering(SmallChannels):
    """It gives each message one status."""

    status = 400

    async def submit(self, _):
        return self.status, ""

    async def submit_bundle(self, _):
        return BundleResponse(status=self.status)


def now():
    return datetime.now(UTC)


SERVED = {
    "Broadcast": serve_envelopes,
    "BroadcastMulti": serve_bundles,
    "Deliver": lambda to, by: Deliver(to, metrics=Metrics(), clock=now).serve(by, None),
    "DeliverMulti": lambda to, by: DeliverMulti(to, clock=now).serve(by, None),
    "Wait": lambda to, by: Server(to)._answer(wait, by),
}


@pytest.mark.parametrize(
    ("takes", "status"), [(False, 400), (True, 400), (True, 200)], ids=["stuck", "ends", "idle"]
)
@pytest.mark.parametrize("method", SERVED)
async def test_no_message_is_held_while_its_client_sends_or_takes_nothing(method, takes, status):
    """Nor when it has left: what only the garbage collector frees was 60 MB of a flood."""
    channels = Answering()
    channels.status = status
    gc.disable()
    try:
        serving = asyncio.create_task(SERVED[method](channels, Client(takes=takes)))
        await becomes(lambda: not Message.held)  # its client holds it first
        serving.cancel()
        await asyncio.wait({serving})
    finally:
        gc.enable()
