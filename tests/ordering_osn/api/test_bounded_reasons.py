"""The reason that ends a Deliver stream reaches the client, however long the name or text in it."""

import asyncio

from ordering_osn.api.seek import seek_envelope
from tests.ordering_osn.helpers.chains import (
    USER,
    SmallChannels,
    asking,
    gathered,
    served,
)


class UnreadableLedger:
    """A ledger whose blocks cannot be read, for a reason of 20,000 characters."""

    base, height = 0, 1

    def read(self, number):
        raise OSError(f"block {number}: " + "ä" * 20_000)


def answer_to(channel, request):
    async def ask():
        async with served(SmallChannels(channel)) as client:
            (answer,) = await gathered(client.deliver(request))
            return answer

    return asyncio.run(ask())


def test_an_unknown_channel_of_a_long_name_is_not_found_and_not_quoted_whole(channel):
    answer = answer_to(channel, asking(b"", channel="\0" * 60_000))
    assert answer == 404
    assert answer.info.startswith("this node has no channel")
    assert answer.info.endswith("(60000 characters)")


def test_a_reason_longer_than_trailers_may_be_is_cut(channel):
    channel.ledger = UnreadableLedger()
    answer = answer_to(channel, seek_envelope(USER, "chain-a", 0, 0))
    assert answer == 503
    assert answer.info.startswith("block 0: ää")
    assert len(answer.info.encode()) < 1100
