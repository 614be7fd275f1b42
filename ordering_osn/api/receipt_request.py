"""A wait for a transaction's receipt: a signed request in, JSON out.

Fabric's clients learn from a peer that their transaction stands in a block. Here the orderer says
so: `/amcast.osn.Receipts/Wait` takes an envelope as Deliver does (header type MESSAGE, the channel
in its header, Readers policy), whose data is

    {"transaction": ID, "timeout_ms": at most WAIT_MS_MAX}

and answers {"status", "chain", "block", "index"}: `index` counts the block's transactions from 0.
Where it stands in no block in time, the status is 404 and block and index are null; other statuses
are Deliver's, with a sentence in "info".

No gRPC here, and no clock but the caller's.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from ordering_osn.api.channels import Channels, Status
from ordering_osn.api.seek import Refused, SeekAccess, SeekRequest, channel_of, read_request
from ordering_osn.chain.blocks import Signer
from ordering_osn.config.envelopes import signed_envelope
from ordering_osn.protos import HeaderType

WAIT_MS_MAX = 300_000
_ID_LENGTH_MAX = 1024


def receipt_envelope(
    signer: Signer,
    channel: str,
    transaction: str,
    timeout_ms: int,
    *,
    tls_hash: bytes = b"",
    now: datetime | None = None,
) -> bytes:
    """Make a signed request to wait for `transaction`."""
    return signed_envelope(
        HeaderType.MESSAGE,
        channel,
        json.dumps({"transaction": transaction, "timeout_ms": timeout_ms}).encode(),
        signer=signer,
        now=now or datetime.now(UTC),
        tls_hash=tls_hash,
    )


async def wait(channels: Channels, raw: bytes, *, now: datetime, tls_hash: bytes | None) -> bytes:
    """Answer one request, within its time-out."""
    try:
        request = read_request(raw, now=now, tls_hash=tls_hash)
        channel = channel_of(channels, request)
        transaction, timeout_s = _wanted(request)
        SeekAccess(channel, request).check(now)
    except Refused as refused:
        return _answer(refused.status, info=str(refused))
    place = await channels.receipt(channel.name, transaction, timeout_s)
    if place is None:
        return _answer(Status.NOT_FOUND, channel.name, info="it stood in no block in time")
    return _answer(Status.SUCCESS, channel.name, *place)


def _wanted(request: SeekRequest) -> tuple[str, float]:
    try:
        wanted: Any = json.loads(request.data)
        transaction, timeout_ms = wanted["transaction"], wanted["timeout_ms"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Refused(Status.BAD_REQUEST, "the data is not the JSON of a wait") from error
    if not isinstance(transaction, str) or not 0 < len(transaction) <= _ID_LENGTH_MAX:
        raise Refused(Status.BAD_REQUEST, "the transaction is no ID")
    if type(timeout_ms) is not int or not 0 <= timeout_ms <= WAIT_MS_MAX:
        raise Refused(Status.BAD_REQUEST, f"timeout_ms is no number from 0 to {WAIT_MS_MAX}")
    return transaction, timeout_ms / 1000


def _answer(
    status: Status,
    chain: str | None = None,
    block: int | None = None,
    index: int | None = None,
    *,
    info: str = "",
) -> bytes:
    answer = {"status": int(status), "chain": chain, "block": block, "index": index}
    return json.dumps({**answer, "info": info} if info else answer).encode()
