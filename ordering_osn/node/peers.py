"""Fetches blocks from other nodes over gRPC; nobody has verified them yet (`catch_up.py` does).

A chain's thread calls and waits; the requests run on the node's event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import TimeoutError as NotInTime

from multicast.errors import AmcastError
from ordering_osn.api.channels import Status
from ordering_osn.api.grpc_client import NodeClient
from ordering_osn.api.seek import seek_envelope
from ordering_osn.api.tls_files import TlsFiles
from ordering_osn.chain.envelopes import Signer

# The blocks of one round are held in memory. Below this a round costs one more request for every
# few blocks; ten times more would be a third of a gigabyte for each chain that catches up. At least
# one block comes in a round, however large it is (100 MiB at most, `api/services.py`).
_ROUND_BYTES = 32 << 20
# A peer that has the next block sends it at once; one that is silent for this long is passed over.
_ANSWER_S = 10.0
# 32 MiB in 60 s is 0.5 MiB/s: a slower peer is given up for now.
_ROUND_S = 60.0


class NoPeer(AmcastError):
    """A peer does not say which blocks it has; a later attempt may succeed."""

    retriable = True
    exit_code = 4


class PeerNodes:
    """Other nodes by their `names`, the addresses "host:port".

    `signer` and `tls` may be replaced at any time: the next request uses them.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        signer: Signer,
        loop: asyncio.AbstractEventLoop,
        *,
        tls: TlsFiles | None = None,
        name: str = "",
    ) -> None:
        """`name`: the name in the peers' certificates, where that is not their host's name."""
        self.names = tuple(addresses)
        self.signer = signer
        self._loop = loop
        self.tls = tls
        self._name = name

    def blocks(self, peer: str, channel: str, start: int) -> Iterator[bytes]:
        """Give a peer's serialized blocks of a chain from number `start` to its newest, if any.

        The calling thread waits, for a bounded time. Raises `NoPeer` where the peer does not say.
        """
        while blocks := self._round(peer, channel, start):
            yield from blocks
            start += len(blocks)

    def _round(self, address: str, channel: str, start: int) -> list[bytes]:
        """Get as many blocks as fit into one round; none where the peer has no more."""
        try:
            request = asyncio.run_coroutine_threadsafe(
                self._request(address, channel, start), self._loop
            )
            return request.result(_ROUND_S)
        except NotInTime:
            request.cancel()
            raise NoPeer(f"{address} gave no blocks of {channel} within {_ROUND_S:g} s") from None
        except NoPeer:
            raise
        except Exception as error:  # nothing that a peer sends ends a chain's loop
            raise NoPeer(f"{address} does not say which blocks it has: {error}") from error

    async def _request(self, address: str, channel: str, start: int) -> list[bytes]:
        # Best effort: a peer that cannot reach its log still has blocks.
        tls = self.tls
        request = seek_envelope(
            self.signer,
            channel,
            start,
            block_until_ready=False,
            best_effort=True,
            tls_hash=tls.tls_hash if tls else b"",
        )
        blocks: list[bytes] = []
        size = 0
        async with NodeClient(address, tls=tls, name=self._name) as client:
            async for answer in client.deliver(request, timeout_s=_ANSWER_S):
                if isinstance(answer, int):
                    if answer not in (Status.SUCCESS, Status.NOT_FOUND):
                        raise NoPeer(f"{address} answers {answer} for blocks of {channel}")
                    break
                blocks.append(answer)
                size += len(answer)
                if size >= _ROUND_BYTES:
                    break
            else:
                raise NoPeer(f"{address} ends its answer without saying whether it has more blocks")
        return blocks
