"""What a client of `amcast.osn.MultiChain` sends and reads: bytes on the wire, values outside.

    BroadcastMulti   serialized bundles  → `Submitted`, one for each, in their order
    Status           a signed request    → `ReportedFate`
    LogEnd           a signed request    → an offset
    DeliverMulti     a signed request    → `DeliveredEntry`, and at last `DeliverEnded`

Answers are a node's words: nothing is verified here. No I/O; a request holds the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from multicast.errors import AmcastError, UsageError
from ordering_osn.api.channels import Status
from ordering_osn.api.multi.signed_request import signed_request
from ordering_osn.chain.bundles.rule import VoidReason
from ordering_osn.chain.envelopes import BadEnvelope, Signer, decoded
from ordering_osn.wire.multichain_pb2 import (
    BundleResponse,
    DeliveredPart,
    DeliverMultiRequest,
    DeliverMultiResponse,
    LogEndRequest,
    LogEndResponse,
    MultiEntry,
    Newest,
    Oldest,
    Place,
    StatusRequest,
    StatusResponse,
)

_SERVICE = "/amcast.osn.MultiChain"
BROADCAST_MULTI = f"{_SERVICE}/BroadcastMulti"
STATUS = f"{_SERVICE}/Status"
LOG_END = f"{_SERVICE}/LogEnd"
DELIVER_MULTI = f"{_SERVICE}/DeliverMulti"
OLDEST, NEWEST, NEVER = "oldest", "newest", "never"
_MS = 1000  # in a second


@dataclass(frozen=True, slots=True)
class Submitted:
    """The answer to a bundle. `status` 200: it will be ordered; whether it counts is its fate.

    `info` is a sentence where the status is another one. `chain`: the first chain, in order, that
    refuses its part; empty where none does.
    """

    status: int
    info: str
    bundle_id: bytes
    chain: str

    @property
    def accepted(self) -> bool:
        """Whether the status is 200."""
        return self.status == Status.SUCCESS


@dataclass(frozen=True, slots=True)
class BundlePlace:
    """Where a part stands: `index` counts the block's transactions from 0."""

    chain: str
    block: int
    index: int


@dataclass(frozen=True, slots=True)
class CommittedBundle:
    """A bundle that counts, with the places of its parts in the chains that the node covers."""

    bundle_id: bytes
    places: tuple[BundlePlace, ...]
    chains_not_covered: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReportedFate:
    """What one node says of a bundle: `kind` is "unknown", "accepted", "void" or "committed".

    `reason` and `chain` say why it is void; `places` where it is committed. The node knows nothing
    of `chains_not_covered`: it does not run them, or the asker may not read them.
    """

    kind: str
    reason: VoidReason | None = None
    chain: str = ""
    places: tuple[BundlePlace, ...] = ()
    chains_not_covered: tuple[str, ...] = ()

    @property
    def duplicate(self) -> bool:
        """Whether a record is void because the bundle counted before: then the bundle counts."""
        return self.kind == "void" and self.reason is VoidReason.DUPLICATE


@dataclass(frozen=True, slots=True)
class DeliveredEnvelope:
    """A serialized envelope, and where it stands."""

    place: BundlePlace
    envelope: bytes


@dataclass(frozen=True, slots=True)
class DeliveredEntry:
    """A transaction of one chain (`bundle_id` is empty), or a bundle.

    `cursor`: from here a stream of the same chains continues behind this entry. `chains`: the whole
    destination set; `parts`: those of the chains that the reader asked for.
    """

    cursor: bytes
    bundle_id: bytes
    chains: tuple[str, ...]
    parts: tuple[DeliveredEnvelope, ...]


@dataclass(frozen=True, slots=True)
class DeliverEnded:
    """The node ended the stream."""

    status: int
    info: str


class BundleRefused(AmcastError):
    """A node refused a bundle; `status`, `info` and `chain` are those of `Submitted`."""

    def __init__(self, answer: Submitted) -> None:
        where = f" for chain {answer.chain}" if answer.chain else ""
        reason = answer.info or "the node gave no reason"
        super().__init__(
            f"bundle {answer.bundle_id.hex()} was answered {answer.status}{where}: {reason}"
        )
        self.status, self.info, self.chain = answer.status, answer.info, answer.chain
        # A node may answer 503 although the record is in the log (Broadcast does so, too).
        self.retriable = answer.status == Status.SERVICE_UNAVAILABLE
        self.definite = not self.retriable


class BundleIsVoid(AmcastError):
    """A bundle's record does not count, in any chain; `reason` and `chain` say why."""

    def __init__(self, bundle_id: bytes, fate: ReportedFate) -> None:
        where = f" for chain {fate.chain}" if fate.chain else ""
        why = fate.reason.name if fate.reason else "the node gave no reason"
        again = fate.reason is not None and fate.reason.may_count_later
        # The node may have judged it by a newer config, which has taken away a right.
        send = "send the same bundle again: it counts then, or the node says why it cannot"
        what = send if again else "make a new bundle"
        super().__init__(
            f"bundle {bundle_id.hex()} is void{where} ({why}) and stands in no chain; {what}"
        )
        self.reason, self.chain = fate.reason, fate.chain
        self.retriable = again


class RequestRefused(AmcastError):
    """A node refused a request for a fate or for entries; the text has the status and why."""

    def __init__(self, what: str, status: int, info: str) -> None:
        super().__init__(f"{what} was answered {status}: {info or 'the node gave no reason'}")
        self.status, self.info = status, info
        self.retriable = status == Status.SERVICE_UNAVAILABLE


class BadAnswer(AmcastError):
    """A node's answer cannot be read, or is not one to the request; the text says why."""


# -- requests --------------------------------------------------------------------------------------


def status_request(
    signer: Signer, bundle_id: bytes, wait_s: float = 0.0, *, tls_hash: bytes = b""
) -> bytes:
    """Make a signed request for a fate, for which the node waits `wait_s` at most."""
    status = StatusRequest(bundle_id=bundle_id, wait_ms=int(wait_s * _MS))
    return signed_request(signer, tls_hash=tls_hash, status=status)


def log_end_request(signer: Signer, chains: Iterable[str], *, tls_hash: bytes = b"") -> bytes:
    """Make a signed request for the end of the log of the set of these chains."""
    return signed_request(signer, tls_hash=tls_hash, log_end=LogEndRequest(chains=sorted(chains)))


def deliver_request(
    signer: Signer,
    chains: Sequence[str],
    start: str | bytes,
    *,
    stop: str = NEVER,
    tls_hash: bytes = b"",
) -> bytes:
    """Make a signed request for entries from OLDEST, from NEWEST, or behind a cursor (bytes).

    `stop`: NEWEST or NEVER. Raises `UsageError` for any other start or stop.
    """
    if stop not in (NEWEST, NEVER):
        raise UsageError(f"{stop!r} is no stop for several channels: give newest or never")
    if isinstance(start, bytes):
        deliver = DeliverMultiRequest(chains=chains, cursor=start)
    elif start == OLDEST:
        deliver = DeliverMultiRequest(chains=chains, oldest=Oldest())
    elif start == NEWEST:
        deliver = DeliverMultiRequest(chains=chains, newest=Newest())
    else:
        raise UsageError(f"{start!r} is no start: give oldest, newest, or the cursor of an entry")
    if stop == NEWEST:
        deliver.stop.SetInParent()
    return signed_request(signer, tls_hash=tls_hash, deliver=deliver)


# -- answers ---------------------------------------------------------------------------------------


def read_submitted(raw: bytes, bundle_id: bytes) -> Submitted:
    """Read the answer to the bundle with this ID; raises `BadAnswer`, also for another bundle's."""
    answer = _decoded(BundleResponse, raw)
    if answer.bundle_id not in (b"", bundle_id):
        raise BadAnswer(
            f"the node answered bundle {answer.bundle_id.hex()} instead of {bundle_id.hex()}; "
            "look at its log"
        )
    return Submitted(answer.status, answer.info, bundle_id, answer.chain)


def read_fate(raw: bytes) -> tuple[int, str, ReportedFate]:
    """Read the answer to a request for a fate: status, info and fate; raises `BadAnswer`."""
    answer = _decoded(StatusResponse, raw)
    kind = answer.WhichOneof("fate") or "unknown"
    fate = ReportedFate(
        kind=kind,
        reason=_reason(answer.void.reason) if kind == "void" else None,
        chain=answer.void.chain,
        places=tuple(_place(place) for place in answer.committed.places),
        chains_not_covered=tuple(answer.chains_not_covered),
    )
    return answer.status, answer.info, fate


def read_log_end(raw: bytes) -> tuple[int, str, int]:
    """Read the answer to a request for a log's end: status, info and the offset behind it."""
    answer = _decoded(LogEndResponse, raw)
    return answer.status, answer.info, answer.offset_next


def read_delivered(raw: bytes) -> DeliveredEntry | DeliverEnded:
    """Read one message of a stream of entries; raises `BadAnswer`."""
    answer = _decoded(DeliverMultiResponse, raw)
    if answer.WhichOneof("what") != "entry":
        return DeliverEnded(answer.end.status, answer.end.info)
    entry = answer.entry
    return DeliveredEntry(
        cursor=entry.cursor,
        bundle_id=entry.bundle_id,
        chains=tuple(entry.chains),
        parts=tuple(DeliveredEnvelope(_place(part.place), part.envelope) for part in entry.parts),
    )


def encode_entry(entry: DeliveredEntry) -> bytes:
    """Serialize an entry as the `MultiEntry` that the node sent."""
    raw: bytes = MultiEntry(
        cursor=entry.cursor,
        bundle_id=entry.bundle_id,
        chains=entry.chains,
        parts=[
            DeliveredPart(
                place=Place(chain=part.place.chain, block=part.place.block, index=part.place.index),
                envelope=part.envelope,
            )
            for part in entry.parts
        ],
    ).SerializeToString()
    return raw


def _decoded(kind: Any, raw: bytes) -> Any:
    try:
        return decoded(kind, raw, "the node's answer")
    except BadEnvelope as error:
        raise BadAnswer(str(error)) from error


def _place(place: Any) -> BundlePlace:
    return BundlePlace(place.chain, place.block, place.index)


def _reason(number: int) -> VoidReason | None:
    """Return the reason; None for one that only a newer node knows."""
    return VoidReason(number) if number in list(VoidReason) else None
