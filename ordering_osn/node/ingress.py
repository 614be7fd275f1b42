"""What a node does with a client's envelope: look at it, and put it into the log.

Goes in: serialized envelopes, from Broadcast. Comes out: Fabric's status for each, and a sentence
where it is not 200. On the event loop; what looks at an envelope does not wait, so envelopes are
judged and posted in the order in which they came.

    200   all in-sync replicas hold the record
    503   the chain does not take envelopes now, or Kafka said nothing in time
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from multicast.drivers.protocol import AppendFailed
from multicast.errors import AmcastError, UsageError
from ordering_osn.api.channels import Status
from ordering_osn.api.metrics import Metrics
from ordering_osn.chain.blocks import Signer
from ordering_osn.chain.records import Regular, RegularKind, encode
from ordering_osn.chain.transactions import channel_header
from ordering_osn.node.chain_node import ChainNode
from ordering_osn.node.filters import (
    EnvelopeClass,
    Refusal,
    admit_creation,
    admit_normal,
    admit_update,
    route,
)
from ordering_osn.node.outbox import Posts, explained
from ordering_osn.protos import HeaderType
from topology.tree import Plan

READY_S = 30.0
_HEADER_TYPES = frozenset(HeaderType.values())
_UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, slots=True)
class _Admitted:
    """A record that passed the filters, and the chain that it goes to."""

    record: bytes
    chain: ChainNode
    creates: str | None = None  # the channel that it makes


class Ingress:
    """The way of envelopes into the log."""

    def __init__(
        self,
        chains: Mapping[str, ChainNode],
        posts: Posts,
        *,
        signer: Signer,
        metrics: Metrics,
        clock: Callable[[], datetime],
        plan: Callable[[], Plan],
        closed: Mapping[str, str],
        ready_s: float = READY_S,
    ) -> None:
        self._chains = chains
        self._closed = closed  # chains of this node that could not be opened, and why
        self._posts = posts
        self._signer = signer
        self._metrics = metrics
        self._clock = clock
        self._plan = plan
        self._ready_s = ready_s
        # By chain: clients' envelopes are posted in the order in which they came.
        self._posting: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def submit(self, envelope: bytes) -> tuple[int, str]:
        """Do what Broadcast does with one envelope; its status, and why where it is not 200."""
        channel, kind = "", _UNKNOWN
        status, info = Status.SUCCESS, ""
        began = time.monotonic()
        judged_s = None
        try:
            found, channel = route(envelope)
            kind = _type_name(channel_header(envelope).type)
            admitted = self._admit(found, channel, envelope)
            judged_s = time.monotonic() - began
            await self._post(admitted)
        except Refusal as refusal:
            status, info = Status(refusal.status), refusal.info
        labels = (channel if channel in self._chains else "", kind, status.name)
        ended = time.monotonic()
        told_s = ended - began if judged_s is None else judged_s
        self._metrics.broadcast_validate_duration.labels(*labels).observe(told_s)
        if judged_s is not None:
            posting_s = ended - began - judged_s
            self._metrics.broadcast_enqueue_duration.labels(*labels).observe(posting_s)
        self._metrics.broadcast_processed_count.add(*labels)
        return int(status), info

    # -- judging: nothing here waits ----------------------------------------------------------

    def _admit(self, found: EnvelopeClass, name: str, envelope: bytes) -> _Admitted:
        if found is EnvelopeClass.CONFIG_UPDATE:
            return self._admit_update(name, envelope)
        chain = self._chain(name)
        sequence = admit_normal(chain.config, envelope, now=self._clock())
        return _Admitted(encode(Regular(envelope, sequence, RegularKind.NORMAL)), chain)

    def _admit_update(self, name: str, envelope: bytes) -> _Admitted:
        chain = self._chains.get(name)
        now = self._clock()
        if chain is None:
            self._refuse_closed(name)
            chain = self._system_chain(name)
            made, sequence = admit_creation(
                chain.config, envelope, now=now, signer=self._signer, channels=len(self._chains)
            )
            return _Admitted(
                encode(Regular(made, sequence, RegularKind.CONFIG)), chain, creates=name
            )
        made, sequence = admit_update(chain.config, envelope, now=now, signer=self._signer)
        return _Admitted(encode(Regular(made, sequence, RegularKind.CONFIG)), chain)

    def _chain(self, name: str) -> ChainNode:
        chain = self._chains.get(name)
        if chain is None:
            self._refuse_closed(name)
            raise Refusal(Status.NOT_FOUND, f"this node has no channel {name!r}")
        return chain

    def _refuse_closed(self, name: str) -> None:
        if name in self._closed:
            raise Refusal(Status.SERVICE_UNAVAILABLE, self._closed[name])

    def _system_chain(self, name: str) -> ChainNode:
        for chain in list(self._chains.values()):
            if chain.config.is_system:
                return chain
        raise Refusal(
            Status.NOT_FOUND, f"this node has no channel {name!r}, and no system channel to make it"
        )

    # -- posting: in the order of the calls ---------------------------------------------------

    async def _post(self, admitted: _Admitted) -> None:
        chain = admitted.chain
        async with self._posting[chain.name]:
            await self._ready(chain)
            if admitted.creates is not None:
                await self._refuse_undeclared(admitted.creates)
            try:
                stored = await self._posts.start(admitted.record, (chain.name,))
            except UsageError as error:  # no log holds messages to this chain
                raise Refusal(Status.NOT_FOUND, str(error)) from error
            except AmcastError as error:
                raise Refusal(Status.SERVICE_UNAVAILABLE, str(error)) from error
        outcome = await stored
        if isinstance(outcome, AppendFailed):
            raise Refusal(Status.SERVICE_UNAVAILABLE, explained(outcome))
        chain.order.stored(outcome.offset)

    async def _refuse_undeclared(self, name: str) -> None:
        """Raise `Refusal` where there is no partition for a new channel."""
        try:
            plan = await asyncio.to_thread(self._plan)
        except AmcastError as error:
            raise Refusal(Status.SERVICE_UNAVAILABLE, str(error)) from error
        if name not in plan.partitions:
            raise Refusal(
                Status.BAD_REQUEST,
                f"channel {name!r} cannot be made: topic {plan.topic} has no partition of that "
                f"name; add it to the interest file, then run 'amcast topology plan' and "
                f"'amcast topology apply'",
            )

    async def _ready(self, chain: ChainNode) -> None:
        """Return when the chain takes envelopes; raises `Refusal` where it does not in time."""
        if await chain.status.ready(self._ready_s):
            return
        why = chain.status.trouble() or "a config update is judged again, and takes long"
        raise Refusal(Status.SERVICE_UNAVAILABLE, f"channel {chain.name}: {why}")


def _type_name(number: int) -> str:
    """Name a header type for the metrics; clients may send any number, so others share a name."""
    return HeaderType.Name(number) if number in _HEADER_TYPES else _UNKNOWN
