"""Answers what became of a bundle, and where the log of a set ends.

    /amcast.osn.MultiChain/Status   of a bundle. Of chains that the sender may not read, or that the
                                    node does not run, the answer holds nothing but their names. A
                                    bundle that the node does not know is UNKNOWN; who may read no
                                    chain of the node is refused before any wait
    /amcast.osn.MultiChain/LogEnd   a bundle's expiry is an offset of that log, so whoever makes a
                                    bundle with one must know it

The sender must satisfy the Readers of one chain of the set that this node runs. A refusal is an
answer, too. No gRPC here, and no clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from typing import Any

from ordering_osn.api.channels import BundleFate, Channels, FateKind, Refused, Status
from ordering_osn.api.multi.signed_request import CheckedRequest, read_signed_request
from ordering_osn.api.seek import channel_of, check_reader
from ordering_osn.chain.bundles.bundle import CHAINS_MAX, CHAINS_MIN
from ordering_osn.wire.multichain_pb2 import (
    Accepted,
    Committed,
    LogEndResponse,
    Place,
    StatusResponse,
    Unknown,
    VoidFate,
)

WAIT_MS_MAX = 300_000  # as of a receipt (`receipt_request.WAIT_MS_MAX`)
_ID_BYTES = 32  # of SHA-256
_NONE_OF_SET = "the identity may read no channel of this set that this node runs"
_NONE_OF_BUNDLE = "the identity may read no channel of this bundle that this node runs"


async def bundle_status(
    channels: Channels, raw: bytes, *, now: datetime, tls_hash: bytes | None
) -> bytes:
    """Answer a serialized SignedRequest with a serialized StatusResponse, within its wait.

    `tls_hash` is None without mutual TLS.
    """
    try:
        response = await _status(channels, read_signed_request(raw, now=now, tls_hash=tls_hash))
    except Refused as refused:
        response = StatusResponse(status=refused.status, info=refused.info)
    answer: bytes = response.SerializeToString()
    return answer


async def log_end(
    channels: Channels, raw: bytes, *, now: datetime, tls_hash: bytes | None
) -> bytes:
    """Answer a serialized SignedRequest with a serialized LogEndResponse.

    `tls_hash` is None without mutual TLS.
    """
    try:
        end = await _log_end(channels, read_signed_request(raw, now=now, tls_hash=tls_hash))
        response = LogEndResponse(status=int(Status.SUCCESS), offset_next=end)
    except Refused as refused:
        response = LogEndResponse(status=refused.status, info=refused.info)
    answer: bytes = response.SerializeToString()
    return answer


async def _log_end(channels: Channels, request: CheckedRequest) -> int:
    if request.content.WhichOneof("request") != "log_end":
        raise Refused(Status.BAD_REQUEST, "the request does not ask for the end of a log")
    names = tuple(sorted(request.content.log_end.chains))
    if not CHAINS_MIN <= len(names) <= CHAINS_MAX or len(set(names)) < len(names):
        raise Refused(
            Status.BAD_REQUEST,
            f"the request names {len(names)} chains; a set has {CHAINS_MIN} to {CHAINS_MAX}, "
            "each once",
        )
    _readable(channels, request, names, _NONE_OF_SET)
    return await channels.log_end(names)


async def _status(channels: Channels, request: CheckedRequest) -> Any:
    if request.content.WhichOneof("request") != "status":
        raise Refused(Status.BAD_REQUEST, "the request does not ask for the status of a bundle")
    wanted = request.content.status
    if len(wanted.bundle_id) != _ID_BYTES:
        raise Refused(
            Status.BAD_REQUEST,
            f"a bundle ID has {_ID_BYTES} bytes, this one has {len(wanted.bundle_id)}",
        )
    if wanted.wait_ms > WAIT_MS_MAX:
        raise Refused(
            Status.BAD_REQUEST,
            f"wait_ms is {wanted.wait_ms}, more than {WAIT_MS_MAX}",
        )
    _readable(channels, request, channels.names(), "the identity may read no channel of this node")
    fate = await channels.bundle_status(wanted.bundle_id, 0.0)
    if fate.chains:
        _readable(channels, request, fate.chains, _NONE_OF_BUNDLE)
    if wanted.wait_ms and not fate.final:
        fate = await channels.bundle_status(wanted.bundle_id, wanted.wait_ms / 1000)
    if not fate.chains:
        return StatusResponse(status=int(Status.SUCCESS), unknown=Unknown())
    return _response(fate, _readable(channels, request, fate.chains, _NONE_OF_BUNDLE))


def _readable(
    channels: Channels, request: CheckedRequest, names: Iterable[str], otherwise: str
) -> list[str]:
    """Give those of these channels that this node runs and the sender may read, in order.

    Raises `Refused`, with the sentence `otherwise`, where there is none.
    """
    readable = []
    for name in names:
        with suppress(Refused):
            check_reader(channel_of(channels, name), request.signed)
            readable.append(name)
    if not readable:
        raise Refused(Status.FORBIDDEN, otherwise)
    return readable


def _response(fate: BundleFate, readable: list[str]) -> Any:
    response = StatusResponse(
        status=int(Status.SUCCESS),
        chains_not_covered=[chain for chain in fate.chains if chain not in readable],
    )
    match fate.kind:
        case FateKind.VOID:
            assert fate.reason is not None, "a void bundle has a reason"
            reason = f"VOID_REASON_{fate.reason.name}"
            response.void.CopyFrom(VoidFate(reason=reason, chain=fate.void_chain))
            if fate.reason.may_count_later:
                response.info = "not final: another record of the bundle may count"
        case FateKind.COMMITTED:
            places = [
                Place(chain=chain, block=fate.places[chain][0], index=fate.places[chain][1])
                for chain in readable
            ]
            response.committed.CopyFrom(Committed(places=places))
        case _:
            response.accepted.CopyFrom(Accepted())
    return response
