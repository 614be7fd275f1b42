"""Answers what became of a bundle: `/amcast.osn.MultiChain/Status`.

The sender must satisfy the Readers of one chain of the bundle's set that this node runs. Of chains
that he may not read, or that the node does not run, the answer holds nothing but their names. A
bundle that the node does not know is UNKNOWN; who may read no chain of the node is refused before
any wait.

No gRPC here, and no clock.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ordering_osn.api.channels import BundleFate, Channels, FateKind, Status
from ordering_osn.api.multi.signed_request import CheckedRequest, may_read, read_signed_request
from ordering_osn.api.seek import Refused
from ordering_osn.wire.multichain_pb2 import (
    Accepted,
    Committed,
    Place,
    StatusResponse,
    Unknown,
    VoidFate,
)

WAIT_MS_MAX = 300_000  # as of a receipt (`receipt_request.WAIT_MS_MAX`)
_ID_BYTES = 32  # of SHA-256


async def bundle_status(
    channels: Channels, raw: bytes, *, now: datetime, tls_hash: bytes | None
) -> bytes:
    """Answer a serialized SignedRequest with a serialized StatusResponse, within its wait.

    A refusal is an answer, too. `tls_hash` is None without mutual TLS.
    """
    try:
        request = read_signed_request(raw, now=now, tls_hash=tls_hash)
        response = await _answered(channels, request)
    except Refused as refused:
        response = StatusResponse(status=int(refused.status), info=str(refused))
    answer: bytes = response.SerializeToString()
    return answer


async def _answered(channels: Channels, request: CheckedRequest) -> Any:
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
    if not readable_chains(channels, request, channels.names()):
        raise Refused(Status.FORBIDDEN, "the identity may read no channel of this node")
    fate = await channels.bundle_status(wanted.bundle_id, 0.0)
    if fate.chains:
        _refuse_strangers(channels, request, fate)
    if wanted.wait_ms and not fate.final:
        fate = await channels.bundle_status(wanted.bundle_id, wanted.wait_ms / 1000)
    if not fate.chains:
        return StatusResponse(status=int(Status.SUCCESS), unknown=Unknown())
    return _response(fate, _refuse_strangers(channels, request, fate))


def readable_chains(channels: Channels, request: CheckedRequest, names: Any) -> list[str]:
    """Give those of these channels that this node runs and the sender may read, in order."""
    readable = []
    for name in names:
        channel = channels.get(name)
        if channel is not None and may_read(channel, request.signed):
            readable.append(name)
    return readable


def _refuse_strangers(channels: Channels, request: CheckedRequest, fate: BundleFate) -> list[str]:
    """Give the chains of the set that the sender may read; raises `Refused` where there is none."""
    readable = readable_chains(channels, request, fate.chains)
    if not readable:
        raise Refused(
            Status.FORBIDDEN,
            "the identity may read no channel of this bundle that this node runs",
        )
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
