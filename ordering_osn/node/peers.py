"""The other nodes, asked over the wire for blocks that this node lost (`catch_up.Peers`).

Goes in: their addresses, this node's identity. Comes out: serialized blocks, which nobody has
verified yet. The asking runs on the node's event loop; who asks is a chain's thread, and waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import TimeoutError as NotInTime

from multicast.errors import AmcastError
from ordering_osn.api.channels import Status
from ordering_osn.api.grpc_server import NodeClient, TlsFiles
from ordering_osn.api.seek import seek_envelope
from ordering_osn.chain.blocks import Signer
from ordering_osn.node.catch_up import NoPeer

_ROUND_BYTES = 32 << 20
_ANSWER_S = 10.0
_ROUND_S = 60.0


class PeerNodes:
    """Other nodes by their addresses, "host:port". The first that has the blocks serves."""

    def __init__(
        self,
        addresses: Sequence[str],
        signer: Signer,
        loop: asyncio.AbstractEventLoop,
        *,
        tls: TlsFiles | None = None,
        name: str = "",
    ) -> None:
        """`name`: what the peers' certificates say, where that is not their host's name."""
        self._addresses = list(addresses)
        self._signer = signer
        self._loop = loop
        self._tls = tls
        self._name = name

    def blocks(self, channel: str, start: int) -> Iterator[bytes]:
        """Give a chain's blocks from `start` to the newest that a peer has."""
        said = []
        for address in self._addresses:
            try:
                first = self._round(address, channel, start)
            except AmcastError as error:
                said.append(str(error))
                continue
            if not first:
                said.append(f"{address} has no block {start} of {channel}")
                continue
            found = first
            while found:
                yield from found
                start += len(found)
                found = self._round(address, channel, start)
            return
        raise NoPeer(
            f"no peer gave block {start} of {channel}, which the log no longer holds: "
            + ("; ".join(said) or "none is named (--peer HOST:PORT)")
        )

    def _round(self, address: str, channel: str, start: int) -> list[bytes]:
        """Get as many blocks as fit into one round; none where the peer has no more."""
        asked = asyncio.run_coroutine_threadsafe(self._ask(address, channel, start), self._loop)
        try:
            return asked.result(_ROUND_S)
        except NotInTime:
            asked.cancel()
            raise NoPeer(f"{address} gave no blocks of {channel} within {_ROUND_S:g} s") from None

    async def _ask(self, address: str, channel: str, start: int) -> list[bytes]:
        # Best effort: a peer whose log is away has blocks all the same.
        request = seek_envelope(
            self._signer,
            channel,
            start,
            block_until_ready=False,
            best_effort=True,
            tls_hash=self._tls.tls_hash if self._tls else b"",
        )
        found: list[bytes] = []
        size = 0
        async with NodeClient(address, tls=self._tls, name=self._name) as client:
            async for answer in client.deliver(request, timeout_s=_ANSWER_S):
                if isinstance(answer, int):
                    if answer not in (Status.SUCCESS, Status.NOT_FOUND):
                        raise NoPeer(f"{address} answers {answer} for blocks of {channel}")
                    break
                found.append(answer)
                size += len(answer)
                if size >= _ROUND_BYTES:
                    break
        return found
