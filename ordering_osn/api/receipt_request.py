"""Wait for a transaction's receipt: which block holds it, and at which index.

Fabric's clients learn from a peer that their transaction is in a block. Here a node tells them:
`/amcast.osn.Receipts/Wait` takes a signed envelope, as Deliver does (header type
DELIVER_SEEK_INFO, which Broadcast takes from nobody, the channel in its header, signed by one of
the channel's Readers), with the data

    {"request": RECEIPT, "transaction": ID, "timeout_ms": at most WAIT_MS_MAX}

and answers {"status", "chain", "block", "index"}; `index` counts the block's transactions from 0.
Where the transaction is in no block in time, the status is 404, and block and index are null. All
other statuses are Deliver's; "info" gives the reason.

No gRPC here, and no clock in answering; only `receipt_envelope`, for clients, reads it.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from ordering_osn.api.channels import Channels, Refused, Status
from ordering_osn.api.seek import ReadAccess, SeekRequest, channel_of, read_request
from ordering_osn.chain.envelopes import Signer, signed_envelope
from ordering_osn.protos import HeaderType

RECEIPT = "amcast.osn.receipt:1"  # so that a signature of a request is none of anything else
WAIT_MS_MAX = 300_000  # as long as Fabric's Node SDK waits for a commit by default
# Our IDs are 64 hexadecimal digits; the limit keeps a request's memory small, not IDs short.
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
    """Make a signed request to wait at most `timeout_ms` for `transaction`.

    `tls_hash` is the SHA-256 of the client's own TLS certificate, under mutual TLS.
    """
    return signed_envelope(
        HeaderType.DELIVER_SEEK_INFO,
        channel,
        json.dumps(
            {"request": RECEIPT, "transaction": transaction, "timeout_ms": timeout_ms}
        ).encode(),
        signer=signer,
        now=now or datetime.now(UTC),
        tls_hash=tls_hash,
    )


async def wait(channels: Channels, raw: bytes, *, now: datetime, tls_hash: bytes | None) -> bytes:
    """Answer one request, within its time-out; a refusal is an answer, too.

    `tls_hash` is None without mutual TLS.
    """
    try:
        request = read_request(raw, now=now, tls_hash=tls_hash)
        channel = channel_of(channels, request.channel)
        ReadAccess([channel], request.signed).check(now)
        transaction, timeout_s = _wanted(request)
    except Refused as refused:
        return _answer(refused.status, info=refused.info)
    place = await channel.receipt(transaction, timeout_s)
    if place is None:
        return _answer(Status.NOT_FOUND, channel.name, info="it was in no block in time")
    return _answer(Status.SUCCESS, channel.name, *place)


def _wanted(request: SeekRequest) -> tuple[str, float]:
    try:
        wanted: Any = json.loads(request.data)
        transaction, timeout_ms = wanted["transaction"], wanted["timeout_ms"]
        is_tagged = wanted["request"] == RECEIPT
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Refused(
            Status.BAD_REQUEST, "the data is not JSON with request, transaction and timeout_ms"
        ) from error
    if not is_tagged:
        raise Refused(Status.BAD_REQUEST, f"request is not {RECEIPT!r}")
    if not isinstance(transaction, str) or not 0 < len(transaction) <= _ID_LENGTH_MAX:
        raise Refused(
            Status.BAD_REQUEST, f"transaction is not a string of 1 to {_ID_LENGTH_MAX} characters"
        )
    if type(timeout_ms) is not int or not 0 <= timeout_ms <= WAIT_MS_MAX:
        raise Refused(Status.BAD_REQUEST, f"timeout_ms is not an integer from 0 to {WAIT_MS_MAX}")
    return transaction, timeout_ms / 1000


def _answer(
    status: int,
    chain: str | None = None,
    block: int | None = None,
    index: int | None = None,
    *,
    info: str = "",
) -> bytes:
    answer = {"status": int(status), "chain": chain, "block": block, "index": index}
    return json.dumps({**answer, "info": info} if info else answer).encode()
