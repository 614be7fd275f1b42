"""Takes clients' envelopes from Broadcast: applies the filters, and appends them to the log.

Each envelope is decoded once, and handed on to the filters in that form; only a config update is
read again where it is applied (`configtx.py`). Each gets one of Fabric's statuses, with a sentence
where that is not 200:

    200   all in-sync replicas hold the record, or an earlier one of the same transaction
    503   the chain does not take envelopes now, or Kafka did not answer in time

Runs on the event loop. Filtering never waits, so the envelopes of a chain are filtered and posted
in the order in which they came; only a large config update is judged in a thread.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from multicast.errors import AmcastError
from ordering_osn.api.channels import HEAVY_BYTES, Refused, Status
from ordering_osn.api.metrics import Metrics
from ordering_osn.api.seek import no_such_channel
from ordering_osn.chain.envelopes import ParsedEnvelope, Signer
from ordering_osn.chain.records import Regular, RegularKind, encode
from ordering_osn.chain.transactions import facts_of
from ordering_osn.node.chain_node import ChainNode
from ordering_osn.node.filters import (
    EnvelopeClass,
    admit_creation,
    admit_normal,
    admit_update,
    route,
)
from ordering_osn.node.outbox import Posts, started, stored
from ordering_osn.protos import HeaderType
from ordering_osn.quoting import quoted
from topology.tree import Plan

# How long an envelope waits while a reposted config is on its way through the log: a moment as a
# rule. Where a chain is in trouble nobody waits. Ten times less would answer 503 after a slow
# append.
READY_S = 30.0
_HEADER_TYPES = frozenset(HeaderType.values())
_UNKNOWN = "UNKNOWN"
_IN_DOUBT = "It may be ordered all the same; sent again, it is ordered once."


@dataclass(frozen=True, slots=True)
class _Admitted:
    """A record that passed the filters, and the chain to whose log it goes."""

    record: bytes
    chain: ChainNode
    creates: str | None = None  # the channel that it creates
    transaction: str = ""  # its ID; no config needs it


class Ingress:
    """Filters and posts the envelopes for the chains of one node."""

    def __init__(
        self,
        chains: Mapping[str, ChainNode],
        posts: Posts,
        *,
        signer: Callable[[], Signer],
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
        self._judging = asyncio.Lock()  # one large update at a time: they share one interpreter
        # By chain: clients' envelopes are posted in the order in which they came.
        self._posting: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def submit(self, raw: bytes) -> tuple[int, str]:
        """Filter one envelope and append it to its chain's log; bounded in time.

        Gives the status, and a sentence where that is not 200. An envelope that is refused for its
        content is refused before the first wait.
        """
        channel, kind = "", _UNKNOWN
        status, info = Status.SUCCESS, ""
        began = time.monotonic()
        filtered_s = None
        envelope = ParsedEnvelope(raw)
        try:
            envelope_class, channel = route(envelope)
            kind = _type_name(envelope.header.type)
            if envelope_class is EnvelopeClass.CONFIG_UPDATE and len(raw) > HEAVY_BYTES:
                async with self._judging:
                    admit = partial(self._admit, envelope_class, channel, envelope)
                    admitted = await asyncio.to_thread(admit)
            else:
                admitted = self._admit(envelope_class, channel, envelope)
            filtered_s = time.monotonic() - began
            await self._post(admitted)
        except Refused as refusal:
            status, info = Status(refusal.status), refusal.info
        labels = (channel if channel in self._chains else "", kind, status.name)
        ended = time.monotonic()
        validate_s = ended - began if filtered_s is None else filtered_s
        self._metrics.broadcast_validate_duration.labels(*labels).observe(validate_s)
        if filtered_s is not None:
            posting_s = ended - began - filtered_s
            self._metrics.broadcast_enqueue_duration.labels(*labels).observe(posting_s)
        self._metrics.broadcast_processed_count.add(*labels)
        return int(status), info

    # -- filtering: nothing here waits --------------------------------------------------------

    def _admit(
        self, envelope_class: EnvelopeClass, name: str, envelope: ParsedEnvelope
    ) -> _Admitted:
        if envelope_class is EnvelopeClass.CONFIG_UPDATE:
            return self._admit_update(name, envelope)
        chain = self._chain(name)
        sequence = admit_normal(chain.config, envelope, now=self._clock())
        # Encoded anew, as Fabric's orderer does: a peer refuses a block for ever if an envelope in
        # it is not in the form that an encoder gives it.
        record = encode(Regular(envelope.encoded, sequence, RegularKind.NORMAL))
        return _Admitted(record, chain, transaction=facts_of(envelope).transaction)

    def _admit_update(self, name: str, update: ParsedEnvelope) -> _Admitted:
        chain = self._chains.get(name)
        creates = name if chain is None else None
        if chain is None:
            self._refuse_closed(name)
            chain = self._system_chain(name)
        config, now, signer = chain.config, self._clock(), self._signer()
        if creates is None:
            made = admit_update(config, update, now=now, signer=signer)
        else:
            count = len(self._chains)
            made = admit_creation(config, update, now=now, signer=signer, channels=count)
        record = encode(Regular(made, config.sequence, RegularKind.CONFIG))
        return _Admitted(record, chain, creates)

    def _chain(self, name: str) -> ChainNode:
        chain = self._chains.get(name)
        if chain is None:
            self._refuse_closed(name)
            raise Refused(Status.NOT_FOUND, no_such_channel(name))
        return chain

    def _refuse_closed(self, name: str) -> None:
        if name in self._closed:
            raise Refused(Status.SERVICE_UNAVAILABLE, self._closed[name])

    def _system_chain(self, name: str) -> ChainNode:
        for chain in list(self._chains.values()):
            if chain.config.is_system:
                return chain
        raise Refused(
            Status.NOT_FOUND, f"{no_such_channel(name)}, and no system channel to make it"
        )

    # -- posting: in the order of the calls ---------------------------------------------------

    async def _post(self, admitted: _Admitted) -> None:
        chain = admitted.chain
        async with self._posting[chain.name]:
            await chain.status.ready(self._ready_s)
            if chain.knows(admitted.transaction):
                return  # its record would be ignored; so nobody fills the log with repetitions
            if admitted.creates is not None:
                await self._refuse_undeclared(admitted.creates)
            outcome = await started(self._posts, admitted.record, (chain.name,))
        chain.order.stored(stored(await outcome, in_doubt=_IN_DOUBT).offset)

    async def _refuse_undeclared(self, name: str) -> None:
        """Raise `Refused` where the plan has no partition for a new channel."""
        try:
            plan = await asyncio.to_thread(self._plan)
        except AmcastError as error:
            raise Refused(Status.SERVICE_UNAVAILABLE, str(error)) from error
        if name not in plan.partitions:
            raise Refused(
                Status.BAD_REQUEST,
                f"channel {quoted(name)} cannot be made: topic {plan.topic} has no partition of "
                f"that name; add it to the interest file, then run "
                f"'amcast topology plan --from-cluster' and 'amcast topology apply'",
            )


def _type_name(number: int) -> str:
    """Give the metrics' label of a header type. All unknown numbers share one label."""
    return HeaderType.Name(number) if number in _HEADER_TYPES else _UNKNOWN
