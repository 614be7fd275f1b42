"""`Client`: submit bundles to any of several nodes, follow their fate, read several chains.

    node       one of the addresses; the client stays with the one that answered last
    busy       a 503, a lost connection or a time-out: the next node is asked

The same bundle may be sent to any node any number of times: its ID makes the rule count it once.
So the client sends it again, unchanged, whenever it does not know what a node did with it.
All waits are bounded; only `deliver` without a time-out waits as long as its nodes can be reached.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from typing import Self, TypeVar

from multicast.errors import AmcastError, TimedOut, UsageError
from ordering_osn.api.channels import Status
from ordering_osn.api.connection_errors import ConnectionLost
from ordering_osn.api.grpc_client import ANSWER_S, NodeClient, host_and_port
from ordering_osn.api.tls_files import TlsFiles
from ordering_osn.chain.bundles.bundle import Bundle, encode_bundle, make_bundle
from ordering_osn.chain.envelopes import Signer
from ordering_osn.client import messages
from ordering_osn.client.messages import (
    NEVER,
    OLDEST,
    BundleIsVoid,
    BundleRefused,
    CommittedBundle,
    DeliveredEntry,
    DeliverEnded,
    ReportedFate,
    RequestRefused,
    Submitted,
)
from ordering_osn.client.node_turns import PAUSE_MAX_S, PAUSE_S, NodeTurns

# A node that restarts, or a partition that gets another leader, is back within this time.
RETRY_S = 60.0
# How long a node is asked to wait for a final fate at once. If another node than the one that took
# the bundle in is asked, and knows nothing, the bundle is submitted again after this time.
_WAIT_S = 5.0
_Answer = TypeVar("_Answer")
_BUSY = (ConnectionLost, TimedOut)


class Client:
    """A client of the nodes at `addresses` (HOST:PORT): `async with Client([…], signer) as client`.

    `signer` signs bundles and requests (`identity.SigningIdentity.load`). `tls` and `name` are as
    of `NodeClient`. `retry_s`: how long, in seconds, the nodes are asked in turn while
    all are busy; each is asked once at least, and each answer may take `answer_s`. For one event
    loop; calls may overlap.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        signer: Signer,
        *,
        tls: TlsFiles | None = None,
        name: str = "",
        retry_s: float = RETRY_S,
        answer_s: float = ANSWER_S,
    ) -> None:
        if isinstance(addresses, str) or not addresses:
            raise UsageError("a client needs a list of the addresses of nodes, HOST:PORT each")
        for address in addresses:
            host_and_port(address)
        self._addresses, self._signer, self._tls = tuple(addresses), signer, tls
        self._name, self._retry_s, self._answer_s = name, retry_s, answer_s
        self._tls_hash = tls.tls_hash if tls else b""
        self._nodes: dict[int, NodeClient] = {}
        self._place = 0  # of the node that answered last

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        for node in self._nodes.values():
            await node.__aexit__(*error)
        self._nodes.clear()

    def bundle(
        self, parts: Mapping[str, bytes], *, signer: Signer | None = None, expiry: int = 0
    ) -> Bundle:
        """Make and sign a bundle of serialized envelopes by chain; raises `BadBundle`.

        `signer`: another submitter than the client's. `expiry`: the last offset of the set's log at
        which the bundle may count (`expiry` below gives one); 0: none.
        """
        return make_bundle(parts, signer=signer or self._signer, expiry=expiry)

    async def log_end(self, chains: Iterable[str]) -> int:
        """Ask a node for the end of the log of a set: the offset behind its last record.

        Raises `RequestRefused` (404 where the set is not declared), or as `submit`.
        """
        names = tuple(chains)

        async def ask(node: NodeClient) -> tuple[int, str, int]:
            request = messages.log_end_request(self._signer, names, tls_hash=self._tls_hash)
            return messages.read_log_end(await self._answer(node, messages.LOG_END, request))

        return await self._granted(ask, f"the request for the log of {'+'.join(names)}")

    async def expiry(self, chains: Iterable[str], expires_in: int) -> int:
        """Give the expiry for a bundle that may count in the next `expires_in` records of its log.

        Records are bundles, void ones among them, and the chains' config markers. Raises
        `UsageError` where `expires_in` is less than 1, or as `log_end`.
        """
        if expires_in < 1:
            raise UsageError(f"a bundle expires in at least 1 record, not in {expires_in}")
        return await self.log_end(chains) + expires_in - 1

    async def submit(self, bundle: Bundle) -> Submitted:
        """Send a bundle to one node, and to the next while nodes are busy; returns the answer.

        The answer is 503 where each node was busy to the end. Raises `ConnectionLost` or `TimedOut`
        where the last node did not answer. After these two the bundle may count all the same.
        """

        async def send(node: NodeClient) -> Submitted:
            raw = await self._answer(node, messages.BROADCAST_MULTI, encode_bundle(bundle))
            return messages.read_submitted(raw, bundle.id)

        return await self._ask(send, lambda answer: answer.status)

    async def status(self, bundle_id: bytes, *, wait_s: float = 0.0) -> ReportedFate:
        """Ask a node for a bundle's fate; the node waits for a final one, for `wait_s` at most.

        Raises `RequestRefused`, or as `submit`.
        """

        async def ask(node: NodeClient) -> tuple[int, str, ReportedFate]:
            request = messages.status_request(
                self._signer, bundle_id, wait_s, tls_hash=self._tls_hash
            )
            raw = await self._answer(node, messages.STATUS, request, wait_s=wait_s)
            return messages.read_fate(raw)

        return await self._granted(ask, f"the request for the fate of {bundle_id.hex()}")

    async def wait(self, bundle_id: bytes, timeout_s: float) -> CommittedBundle:
        """Wait until a bundle's parts are in blocks of all chains that a node runs.

        Raises `BundleIsVoid` where it does not count, `TimedOut` where its fate is not known within
        `timeout_s` (it may still count), or as `status`.
        """
        return await self._followed(bundle_id, timeout_s, None)

    async def submit_and_wait(self, bundle: Bundle, timeout_s: float) -> CommittedBundle:
        """Submit a bundle and wait for its fate; raises `BundleRefused`, or as `submit` and `wait`.

        Submits it again while the asked node does not know it: the node that took it in may be
        gone.
        """
        return await self._followed(bundle.id, timeout_s, bundle)

    async def _accepted(self, bundle: Bundle) -> None:
        answer = await self.submit(bundle)
        if not answer.accepted:
            raise BundleRefused(answer)

    async def _followed(
        self, bundle_id: bytes, timeout_s: float, again: Bundle | None
    ) -> CommittedBundle:
        """Ask for a fate until it is final; submit `again` first, and where a node knows none."""
        pause_s = PAUSE_S
        try:
            async with asyncio.timeout(timeout_s) as limit:
                if again is not None:
                    await self._accepted(again)
                while True:
                    left_s = (limit.when() or 0.0) - asyncio.get_running_loop().time()
                    fate = await self.status(bundle_id, wait_s=max(0.0, min(left_s, _WAIT_S)))
                    if fate.kind == "committed":
                        return CommittedBundle(bundle_id, fate.places, fate.chains_not_covered)
                    if fate.kind == "void" and not fate.duplicate:
                        raise BundleIsVoid(bundle_id, fate)
                    if fate.kind == "unknown" and again is not None:
                        await self._accepted(again)
                    # For a node that answers at once although it was asked to wait.
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, PAUSE_MAX_S)
        except TimeoutError as error:
            raise TimedOut(
                f"the fate of bundle {bundle_id.hex()} was not known within {timeout_s:g} s; it "
                "may still count: ask again, or send the same bundle again"
            ) from error

    async def deliver(
        self,
        chains: Sequence[str],
        start: str | bytes = OLDEST,
        *,
        stop: str = NEVER,
        timeout_s: float | None = None,
    ) -> AsyncGenerator[DeliveredEntry]:
        """Yield the entries of several chains, in an order that agrees with every other reader's.

        `start`: "oldest", "newest", or the cursor of an entry of the same chains. `stop`: "newest"
        ends behind everything that the logs held when the stream began, "never" waits for more.
        Continues behind the last entry at the next node where a connection is lost; while no entry
        came yet, a stream from "newest" begins at the newest again. Raises `RequestRefused`,
        `ConnectionLost`, or `TimedOut` where an entry takes longer than `timeout_s`; None waits
        without limit. Close the iterator (`contextlib.aclosing`) to end the stream early.
        """
        turns = NodeTurns(len(self._addresses), self._place, self._retry_s)
        failed: AmcastError | None = None
        while (place := await turns.next(failed)) is not None:
            node = await self._node(place)
            request = messages.deliver_request(
                self._signer, chains, start, stop=stop, tls_hash=self._tls_hash
            )
            failed = ConnectionLost("the node ended the stream without a status")
            call = node.exchange(
                messages.DELIVER_MULTI, [request], timeout_s=timeout_s, connected=turns.connected
            )
            try:
                async with contextlib.aclosing(call) as answers:
                    async for raw in answers:
                        entry = messages.read_delivered(raw)
                        if isinstance(entry, DeliverEnded):
                            if entry.status == Status.SUCCESS:
                                return
                            failed = RequestRefused(
                                "the request for entries", entry.status, entry.info
                            )
                            break
                        turns.worked(place)
                        self._place, start = place, entry.cursor
                        yield entry
            except ConnectionLost as error:
                failed = error
            if isinstance(failed, RequestRefused) and not failed.retriable:
                raise failed
            turns.lost(busy=isinstance(failed, RequestRefused))
        assert failed is not None
        raise failed

    # -- the nodes ---------------------------------------------------------------------------------

    async def _node(self, place: int) -> NodeClient:
        if place not in self._nodes:
            client = NodeClient(self._addresses[place], tls=self._tls, name=self._name)
            self._nodes[place] = await client.__aenter__()
        return self._nodes[place]

    async def _answer(
        self, node: NodeClient, method: str, request: bytes, *, wait_s: float = 0.0
    ) -> bytes:
        """Send one message to a method that gives one answer."""
        call = node.exchange(method, [request], timeout_s=wait_s + self._answer_s)
        async with contextlib.aclosing(call) as answers:
            async for raw in answers:
                return raw
        raise ConnectionLost("the node ended the call without an answer")

    async def _granted(
        self, call: Callable[[NodeClient], Awaitable[tuple[int, str, _Answer]]], what: str
    ) -> _Answer:
        """Ask the nodes in turn; returns the answer, or raises `RequestRefused`, which names it."""
        status, info, answer = await self._ask(call, lambda answer: answer[0])
        if status != Status.SUCCESS:
            raise RequestRefused(what, status, info)
        return answer

    async def _ask(
        self, call: Callable[[NodeClient], Awaitable[_Answer]], status: Callable[[_Answer], int]
    ) -> _Answer:
        """Call the nodes in turn until one is not busy; returns the last answer, or raises."""
        turns = NodeTurns(len(self._addresses), self._place, self._retry_s)
        failed: AmcastError | None = None
        last: _Answer | None = None
        while (place := await turns.next(failed)) is not None:
            try:
                last, failed = await call(await self._node(place)), None
            except _BUSY as error:
                last, failed = None, error
                continue
            if status(last) != Status.SERVICE_UNAVAILABLE:
                self._place = place
                return last
        if failed is not None:
            raise failed
        assert last is not None
        return last
