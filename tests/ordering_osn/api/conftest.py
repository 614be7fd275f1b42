"""A channel of one block, the channels that a server has, and a loop for a file's tests."""

import asyncio

import pytest

from tests.ordering_osn.helpers.chains import SmallChannel, SmallChannels


@pytest.fixture
def channel(tmp_path):
    channel = SmallChannel(tmp_path)
    yield channel
    channel.store.close()


@pytest.fixture
def channels(channel):
    return SmallChannels(channel)


@pytest.fixture(scope="module")
def runner():
    with asyncio.Runner() as runner:
        yield runner
