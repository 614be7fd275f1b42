"""What a server receives of messages that strangers send."""

import pytest

from ordering_osn.api.connection_errors import ConnectionLost
from ordering_osn.config.channel_config import ChannelConfig
from tests.ordering_osn.helpers import configs
from tests.ordering_osn.helpers.chains import (
    STRANGER,
    SmallChannel,
    SmallChannels,
    gathered,
    served,
    transaction,
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
