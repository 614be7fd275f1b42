"""DeliverMulti streams: the entries of several chains, in one order, to a few readers.

    start     OLDEST: the first record since a plan covers these chains; NEWEST: behind all records
              that are ordered now; a cursor: behind the entry that had it
    cursor    the multicast's cursor behind an entry's record, which means the same at every node
    stop      NEWEST: behind all that the logs held when the stream began; else it has no end

Each stream has a consumer of its own in Kafka, and a block of each chain. Consumer and ledgers are
read in a thread, by calls of bounded length (`_EntryReader.read`). `merge.py` has the rule.

No gRPC here: a stream is a `Stream` of bytes; only its `write` is used.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

from multicast.consuming.consumer import Consumer
from multicast.consuming.cursor import Cursor
from multicast.consuming.subscription import End
from multicast.errors import AmcastError, Trimmed, Truncated, UncoveredInterest, UsageError
from ordering_osn.api.broadcast import Stream
from ordering_osn.api.channels import Channel, Channels, Refused, Status
from ordering_osn.api.multi.ledger_entries import LedgerEntries
from ordering_osn.api.multi.merge import MergedEntry, MergedOrder, OrderedRecord, TornBundle
from ordering_osn.api.multi.signed_request import CheckedRequest, read_signed_request
from ordering_osn.api.seek import ReadAccess, channel_of
from ordering_osn.api.send_window import SendWindow
from ordering_osn.chain.bundles.bundle import CHAINS_MAX
from ordering_osn.config.policies import SignedData
from ordering_osn.ledger.errors import Pruned
from ordering_osn.wire.multichain_pb2 import (
    DeliveredPart,
    DeliverEnd,
    DeliverMultiResponse,
    MultiEntry,
    Place,
)

# Streams at a node, and the threads that read for them. Each has a consumer in Kafka: up to two
# connections for each broker, and 1 MiB for each log.
READERS_MAX = 64
_SHARES = 4  # no client has more than a quarter of them
# A call that reads ends after so long where nothing comes: rights, errors and a stop are looked at
# then. With ten times less, each idle stream turns 40 times a second.
_TURN_S = 0.25
# What is settled changes without a call, at each turn of a chain's loop. With ten times more, a
# record without an entry delays the next one by half a second.
_SETTLED_EVERY_S = 0.05
_TURN_BYTES = 1 << 20  # a call that has read so much gives it: the stream's memory, but for blocks
_END_S = 2.0  # a stop waits so long for the threads; a request to Kafka can take 5 s
_VERSION = b"1:"  # of the cursor's form; the multicast's cursor follows
_CURSOR_BYTES_MAX = 1024  # a collector's name has 249 at most, the four numbers 80
_STARTS = {"oldest": "earliest", "newest": "latest"}
_log = logging.getLogger("amcast.osn.deliver")


class DeliverMulti:
    """All DeliverMulti streams of a node; made, used and closed on one event loop."""

    def __init__(
        self,
        channels: Channels,
        *,
        clock: Callable[[], datetime],
        readers_max: int = READERS_MAX,
    ) -> None:
        self._channels = channels
        self._clock = clock
        self._readers_max = readers_max
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(readers_max, thread_name_prefix="amcast-multi")
        self._send_window = SendWindow()
        self._stopped: asyncio.Future[None] = self._loop.create_future()
        self._readers: Counter[Hashable] = Counter()  # by client
        self._none_left = asyncio.Event()
        self._none_left.set()

    async def serve(self, stream: Stream, tls_hash: bytes | None) -> None:
        """Answer a serialized SignedRequest with entries until its stop, or until a refusal."""
        raw = await stream.read()
        if raw is None:
            return
        try:
            request = read_signed_request(raw, now=self._clock(), tls_hash=tls_hash)
            names, start = _wanted(request)
            access = _Access(self._channels, names, request.signed)
            access.check(self._clock())
            access.client = stream.granted(request.content.creator)
            await self._entries(
                stream, access, start, stops=request.content.deliver.HasField("stop")
            )
            end = DeliverEnd(status=int(Status.SUCCESS))
        except Refused as refused:
            _log.info("several chains: %s %s", Status(refused.status).name, refused)
            end = DeliverEnd(status=refused.status, info=refused.info)
        del raw  # as in `deliver.py`
        await stream.write(DeliverMultiResponse(end=end).SerializeToString())

    def close(self) -> None:
        """End all streams with 503."""
        if not self._stopped.done():
            self._stopped.set_result(None)

    async def ended(self) -> None:
        """Wait until the consumers are closed; `_END_S` at most."""
        try:
            async with asyncio.timeout(_END_S):
                await self._none_left.wait()
        except TimeoutError:
            _log.warning("%d readers of several chains are left behind", self._readers.total())
        self._threads.shutdown(wait=False)

    async def _entries(self, stream: Stream, access: _Access, start: str, *, stops: bool) -> None:
        """Send entries; return behind the stop, if the stream has one."""
        all_readers, mine = self._readers.total(), self._readers[access.client]
        if all_readers >= self._readers_max or mine >= max(1, self._readers_max // _SHARES):
            whose = f"{mine} of them yours" if mine else "none of them yours"
            raise Refused(
                Status.SERVICE_UNAVAILABLE,
                f"this node has {all_readers} readers of several chains, {whose}; of the "
                f"{self._readers_max} at most a quarter may be one client's: ask another node",
            )
        self._readers[access.client] += 1
        self._none_left.clear()
        reader = _EntryReader(
            access.channels, lambda: self._channels.open_order(access.names, start), stops=stops
        )
        work: asyncio.Future[Any] = self._loop.run_in_executor(self._threads, reader.open)
        try:
            await self._result(work, access, start)
            while not reader.at_stop:
                access.check(self._clock())
                work = self._loop.run_in_executor(self._threads, reader.read)
                entries = await self._result(work, access, start)
                if stops and not entries and not reader.at_stop:
                    access.refuse_stalled()  # a stream without a stop waits
                for entry in entries:
                    # The config that an entry brings is in force before the entry can be read.
                    access.check(self._clock())
                    await self._send_window.send(
                        stream, _response(entry), (access.client, *access.names)
                    )
        finally:
            work.add_done_callback(lambda done: self._leave(done, reader, access.client))

    async def _result(self, work: asyncio.Future[Any], access: _Access, start: str) -> Any:
        """Wait for a call in a thread; raises `Refused` where it failed, or the node stops."""
        await asyncio.wait({work, self._stopped}, return_when=asyncio.FIRST_COMPLETED)
        if self._stopped.done():
            raise Refused(Status.SERVICE_UNAVAILABLE, "this node is stopping")
        try:
            return work.result()
        except UncoveredInterest as error:
            # With a cursor it may also be of an epoch that is not there.
            why = _undeclared(access.names) if start in _STARTS.values() else str(error)
            raise Refused(Status.NOT_FOUND, why) from error
        except (AmcastError, OSError, RuntimeError, ValueError, TornBundle) as error:
            raise Refused(_status_of(error, start), str(error)) from error

    def _leave(self, work: asyncio.Future[Any], reader: _EntryReader, client: Hashable) -> None:
        """Close a stream's consumer in a thread, after the stream's last call there."""
        if not work.cancelled():
            work.exception()  # it is reported, or nobody waits for it
        try:
            closed = self._loop.run_in_executor(self._threads, reader.close)
        except RuntimeError:  # the threads have ended; so does the process
            return
        closed.add_done_callback(lambda closed: self._left(closed, client))

    def _left(self, closed: asyncio.Future[None], client: Hashable) -> None:
        self._readers[client] -= 1
        if not self._readers[client]:
            del self._readers[client]
        if not self._readers:
            self._none_left.set()
        if not closed.cancelled() and closed.exception() is not None:
            _log.warning("closing a reader of several chains failed: %s", closed.exception())


class _Access(ReadAccess):
    """The chains of a stream, and whether its reader may read all of them."""

    def __init__(self, channels: Channels, names: Sequence[str], signed: SignedData) -> None:
        super().__init__([channel_of(channels, name) for name in names], signed)
        self.names = names
        self.client: Hashable = None
        self._why_stalled = channels.why_stalled

    def refuse_stalled(self) -> None:
        """Refuse to go on where a chain has records that nobody orders."""
        for name in self.names:
            if why := self._why_stalled(name):
                raise Refused(Status.SERVICE_UNAVAILABLE, f"chain {name}: {why}")

    def check(self, now: datetime) -> None:
        """Raise `Refused`, also where a chain does not follow its log."""
        super().check(now)
        for channel in self.channels:
            if channel.errored:
                raise Refused(
                    Status.SERVICE_UNAVAILABLE,
                    f"chain {channel.name}: {channel.why_errored}",
                )


class _EntryReader:
    """One stream's consumer and ledgers; one call at a time, each in any thread."""

    def __init__(
        self, channels: Sequence[Channel], open_order: Callable[[], Consumer], *, stops: bool
    ) -> None:
        self._channels = channels
        self._open_order = open_order
        self._merge = MergedOrder({channel.name: LedgerEntries(channel) for channel in channels})
        self._changed = threading.Event()
        self._order: Consumer | None = None
        self._stops = stops
        self._end: End | None = None
        self.at_stop = False  # everything up to the stop was given
        self._unwatch: list[Callable[[], None]] = []

    def open(self) -> None:
        """Open the consumer; blocks for requests to Kafka."""
        self._order = self._open_order()
        self._end = self._order.end() if self._stops else None
        self._unwatch = [channel.watch(self._changed.set) for channel in self._channels]

    def read(self) -> list[MergedEntry]:
        """Give the next entries; none where none came within `_TURN_S`."""
        assert self._order is not None, "it is open"
        deadline = time.monotonic() + _TURN_S
        merge = self._merge
        if not merge.waits:
            batches = self._order.poll(_TURN_S)
            merge.take(
                (
                    OrderedRecord(batch.log.name, record.offset, batch.to, str(batch.cursor(index)))
                    for batch in batches
                    for index, record in enumerate(batch.records)
                ),
                self._order.progress(),
            )
        made: list[MergedEntry] = []
        size = 0
        while size < _TURN_BYTES:
            self._changed.clear()
            entry = merge.next()
            if entry is not None:
                made.append(entry)
                size += sum(len(part.envelope) for _, part in entry.parts)
            elif made or not merge.waits or time.monotonic() > deadline:
                break
            else:
                self._changed.wait(_SETTLED_EVERY_S)
        if self._end is not None and not merge.waits:
            self.at_stop = self._order.reached(self._end)
        return made

    def close(self) -> None:
        """Close the consumer, if it was opened."""
        for unwatch in self._unwatch:
            unwatch()
        if self._order is not None:
            self._order.close()


def _wanted(request: CheckedRequest) -> tuple[tuple[str, ...], str]:
    """Give the chains that a request names, sorted, and its start; raises `Refused`."""
    content = request.content
    if content.WhichOneof("request") != "deliver":
        raise Refused(Status.BAD_REQUEST, "the request does not ask for the entries of chains")
    names = tuple(sorted(content.deliver.chains))
    if not 1 <= len(names) <= CHAINS_MAX:
        raise Refused(
            Status.BAD_REQUEST, f"the request names {len(names)} chains, not 1 to {CHAINS_MAX}"
        )
    if len(set(names)) < len(names):
        raise Refused(Status.BAD_REQUEST, "the request names a chain twice")
    start = content.deliver.WhichOneof("start")
    if start is None:
        raise Refused(
            Status.BAD_REQUEST, "the request has no start: oldest, newest, or an entry's cursor"
        )
    return names, _STARTS.get(start) or _cursor(content.deliver.cursor)


def _cursor(raw: bytes) -> str:
    text = raw.removeprefix(_VERSION).decode(errors="replace")
    try:
        cursor = str(Cursor.parse(text)) if len(raw) <= _CURSOR_BYTES_MAX else ""
    except UsageError:
        cursor = ""
    if not cursor or not raw.startswith(_VERSION):
        raise Refused(
            Status.BAD_REQUEST,
            "the cursor is none that DeliverMulti gave: send back the bytes of an entry's cursor",
        )
    return cursor


def _status_of(error: Exception, start: str) -> Status:
    match error:
        case Trimmed() | Pruned():  # records or blocks are gone
            return Status.NOT_FOUND
        case UsageError():  # the plan lacks a chain; or the cursor is one of other chains
            return Status.NOT_FOUND if start in _STARTS.values() else Status.BAD_REQUEST
        case ValueError() | TornBundle():  # a block that cannot be understood
            return Status.INTERNAL_SERVER_ERROR
        case Truncated():  # what was ordered is lost: an operator must act
            return Status.SERVICE_UNAVAILABLE
        case AmcastError():
            again = error.retriable
            return Status.SERVICE_UNAVAILABLE if again else Status.INTERNAL_SERVER_ERROR
        case _:
            return Status.SERVICE_UNAVAILABLE


def _undeclared(names: Sequence[str]) -> str:
    listed = ", ".join(f'"{name}"' for name in names)
    return (
        f"no collector orders all of {', '.join(names)}; add [{listed}] to 'readers' in the chain "
        "file, or a consumer of them to the interest file, then run "
        "'amcast topology plan --from-cluster' and 'amcast topology apply'"
    )


def _response(entry: MergedEntry) -> bytes:
    (first_chain, first), *_ = entry.parts
    bundle = first.bundle
    response: bytes = DeliverMultiResponse(
        entry=MultiEntry(
            cursor=_VERSION + entry.cursor.encode(),
            bundle_id=bundle.bundle_id if bundle else b"",
            chains=bundle.chains if bundle else (first_chain,),
            parts=[
                DeliveredPart(
                    place=Place(chain=chain, block=part.block, index=part.number),
                    envelope=part.envelope,
                )
                for chain, part in entry.parts
            ],
        )
    ).SerializeToString()
    return response
