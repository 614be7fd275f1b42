"""`SyncClient`: the calls of `Client`, for threads.

All calls run on the event loop of one thread, which the client starts and ends.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import Any, Self, TypeVar

from ordering_osn.api.grpc_server import ANSWER_S
from ordering_osn.api.tls_files import TlsFiles
from ordering_osn.chain.bundles.bundle import Bundle
from ordering_osn.chain.envelopes import Signer
from ordering_osn.client.client import IN_FLIGHT_MAX, RETRY_S, Client
from ordering_osn.client.messages import (
    NEVER,
    OLDEST,
    CommittedBundle,
    DeliveredEntry,
    ReportedFate,
    Submitted,
)

_Result = TypeVar("_Result")
_Item = TypeVar("_Item")


class SyncClient:
    """A blocking `Client`: `with SyncClient([…], signer) as client`. Safe for several threads.

    Arguments, results and errors are those of `Client`. Each call blocks its thread until it has
    its result.
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
        self._client = Client(
            addresses, signer, tls=tls, name=name, retry_s=retry_s, answer_s=answer_s
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._run(self._client.__aexit__(*error))
        self._run(self._loop.shutdown_asyncgens())
        self._run(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def bundle(
        self, parts: Mapping[str, bytes], *, signer: Signer | None = None, expiry: int = 0
    ) -> Bundle:
        """Make and sign a bundle, as `Client.bundle`."""
        return self._client.bundle(parts, signer=signer, expiry=expiry)

    def log_end(self, chains: Iterable[str]) -> int:
        """Ask for the end of a set's log, as `Client.log_end`."""
        return self._run(self._client.log_end(chains))

    def expiry(self, chains: Iterable[str], expires_in: int) -> int:
        """Give an expiry for `bundle`, as `Client.expiry`."""
        return self._run(self._client.expiry(chains, expires_in))

    def submit(self, bundle: Bundle) -> Submitted:
        """Send a bundle, as `Client.submit`."""
        return self._run(self._client.submit(bundle))

    def submit_many(
        self, bundles: Iterable[Bundle], *, in_flight_max: int = IN_FLIGHT_MAX
    ) -> Iterator[Submitted]:
        """Send bundles, as `Client.submit_many`; `bundles` may block: it is read elsewhere."""
        source = _read_elsewhere(iter(bundles))
        return self._pulled(self._client.submit_many(source, in_flight_max=in_flight_max))

    def status(self, bundle_id: bytes, *, wait_s: float = 0.0) -> ReportedFate:
        """Ask for a bundle's fate, as `Client.status`."""
        return self._run(self._client.status(bundle_id, wait_s=wait_s))

    def wait(self, bundle_id: bytes, timeout_s: float) -> CommittedBundle:
        """Wait for a bundle's fate, as `Client.wait`."""
        return self._run(self._client.wait(bundle_id, timeout_s))

    def submit_and_wait(self, bundle: Bundle, timeout_s: float) -> CommittedBundle:
        """Submit a bundle and wait for its fate, as `Client.submit_and_wait`."""
        return self._run(self._client.submit_and_wait(bundle, timeout_s))

    def deliver(
        self,
        chains: Sequence[str],
        start: str | bytes = OLDEST,
        *,
        stop: str = NEVER,
        timeout_s: float | None = None,
    ) -> Iterator[DeliveredEntry]:
        """Yield the entries of several chains, as `Client.deliver`; close the iterator to end."""
        return self._pulled(self._client.deliver(chains, start, stop=stop, timeout_s=timeout_s))

    def _run(self, call: Coroutine[Any, Any, _Result]) -> _Result:
        """Run a call on the loop; when this thread is interrupted, the call is, too."""
        future = asyncio.run_coroutine_threadsafe(call, self._loop)
        try:
            return future.result()
        finally:
            future.cancel()

    def _pulled(self, items: AsyncGenerator[_Item]) -> Generator[_Item]:
        """Yield what an asynchronous generator yields."""
        # Ctrl-C cancels a step, which ends a little later; until then the generator is not closed.
        busy = asyncio.Lock()

        async def taken() -> _Item | None:
            async with busy:
                return await anext(items, None)

        async def closed() -> None:
            async with busy:
                await items.aclose()

        try:
            while (item := self._run(taken())) is not None:
                yield item
        finally:
            self._run(closed())


async def _read_elsewhere(bundles: Iterator[Bundle]) -> AsyncIterator[Bundle]:
    """Read an iterator that may block in other threads, one step at a time."""
    while (bundle := await asyncio.to_thread(next, bundles, None)) is not None:
        yield bundle
