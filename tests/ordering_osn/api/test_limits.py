"""What a server holds of messages that strangers send, whole or by halves."""

import asyncio
from contextlib import asynccontextmanager

import grpc
import pytest
from grpc import aio

from ordering_osn.api.connection_errors import ConnectionLost
from ordering_osn.api.streams import ClientStreams
from ordering_osn.config.channel_config import ChannelConfig
from tests.ordering_osn.api.test_streams import METHODS
from tests.ordering_osn.helpers import configs
from tests.ordering_osn.helpers.chains import (
    STRANGER,
    SmallChannel,
    SmallChannels,
    gathered,
    served,
    serving,
    transaction,
    until,
)

MIB = 1 << 20


def with_absolute(channel, absolute):
    config = configs.changed(
        channel.config, lambda new: configs.set_batch(new, absolute_max_bytes=absolute)
    )
    channel.config = ChannelConfig(channel.name, config)
    return channel


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


@asynccontextmanager
async def that_holds_back(port, passes, held):
    """Listen before a server; of each connection only the first bytes pass. Gives the port."""

    async def pump(reader, writer, most=2**62):
        while raw := await reader.read(1 << 16):
            writer.write(raw[:most])
            await writer.drain()
            most -= len(raw)
            if most <= 0:
                held.append(most)
                await asyncio.Event().wait()

    async def connect(reader, writer):
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", port)
        writers.extend((writer, server_writer))
        tasks.append(asyncio.create_task(pump(reader, server_writer, passes)))
        tasks.append(asyncio.create_task(pump(server_reader, writer)))

    writers, tasks = [], []
    async with await asyncio.start_server(connect, "127.0.0.1", 0) as listening:
        yield listening.sockets[0].getsockname()[1]
    for task in tasks:
        task.cancel()
    for writer in writers:
        writer.close()
    closings = [writer.wait_closed() for writer in writers]
    await asyncio.gather(*tasks, *closings, return_exceptions=True)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_half_a_message_of_a_stranger_is_held_for_a_bounded_time(runner, tmp_path, method):
    """Also where its client declares a single request, which gRPC alone would await for ever."""
    channel, held = SmallChannel(tmp_path), []

    async def ask():
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with (
            serving(SmallChannels(channel), streams=ClientStreams(first_s=1.0)) as server,
            that_holds_back(server.port, 1 << 20, held) as port,
            aio.insecure_channel(f"127.0.0.1:{port}", options) as stranger,
        ):
            call = stranger.stream_stream(method)()
            writing = asyncio.create_task(call.write(bytes(8 << 20)))
            await until(lambda: held)
            try:
                async with asyncio.timeout(60):
                    return await call.code()
            finally:
                writing.cancel()

    assert runner.run(ask()) is grpc.StatusCode.RESOURCE_EXHAUSTED
    channel.store.close()
