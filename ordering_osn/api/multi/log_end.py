"""Answers where the log of a set ends: `/amcast.osn.MultiChain/LogEnd`.

A bundle's expiry is an offset of that log, so whoever makes a bundle with one must know it. The
sender must satisfy the Readers of one chain of the set that this node runs.

No gRPC here, and no clock.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ordering_osn.api.channels import Channels, Status
from ordering_osn.api.multi.signed_request import CheckedRequest, read_signed_request
from ordering_osn.api.multi.status import readable_chains
from ordering_osn.api.seek import Refused
from ordering_osn.chain.bundles.bundle import CHAINS_MAX, CHAINS_MIN
from ordering_osn.wire.multichain_pb2 import LogEndResponse


async def log_end(
    channels: Channels, raw: bytes, *, now: datetime, tls_hash: bytes | None
) -> bytes:
    """Answer a serialized SignedRequest with a serialized LogEndResponse; a refusal is one, too.

    `tls_hash` is None without mutual TLS.
    """
    try:
        response = await _answered(channels, read_signed_request(raw, now=now, tls_hash=tls_hash))
    except Refused as refused:
        response = LogEndResponse(status=int(refused.status), info=str(refused))
    answer: bytes = response.SerializeToString()
    return answer


async def _answered(channels: Channels, request: CheckedRequest) -> Any:
    if request.content.WhichOneof("request") != "log_end":
        raise Refused(Status.BAD_REQUEST, "the request does not ask for the end of a log")
    names = tuple(sorted(request.content.log_end.chains))
    if not CHAINS_MIN <= len(names) <= CHAINS_MAX or len(set(names)) < len(names):
        raise Refused(
            Status.BAD_REQUEST,
            f"the request names {len(names)} chains; a set has {CHAINS_MIN} to {CHAINS_MAX}, "
            "each once",
        )
    if not readable_chains(channels, request, names):
        raise Refused(
            Status.FORBIDDEN, "the identity may read no channel of this set that this node runs"
        )
    end = await channels.log_end(names)
    return LogEndResponse(status=end.status, info=end.info, offset_next=end.offset_next)
