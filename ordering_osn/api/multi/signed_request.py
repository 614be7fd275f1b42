"""Requests of our own service, signed by their sender: made, read and judged.

The sender signs a RequestContent: his identity, the time, under mutual TLS the hash of his TLS
certificate, and what he asks for. The checks are those of Deliver's requests, in this order:

    1. `read_signed_request`: it can be decoded, its time is near the node's, it is bound to the
       TLS client (400); the signature fits, the certificate has not expired (403)
    2. `seek.check_reader`: the sender satisfies the Readers of a channel

No I/O and no gRPC; only `signed_request`, which makes a client's request, reads a clock.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, NamedTuple

from ordering_osn.api.channels import Refused, Status
from ordering_osn.api.seek import check_expiry, check_sender, check_size
from ordering_osn.chain.envelopes import Signer
from ordering_osn.config.policies import SignedData
from ordering_osn.identity import BadSignature, UntrustedIdentity, verify_as
from ordering_osn.protos import DecodeError
from ordering_osn.wire.multichain_pb2 import RequestContent, SignedRequest

# Signed before the content, so that a signature of a request is none of anything else.
SIGNED_FIRST = b"amcast.osn.MultiChain request 1\n"
_MS = 1000  # in a second


class CheckedRequest(NamedTuple):
    """A request that its sender signed just now. `content` is a RequestContent."""

    content: Any
    signed: SignedData


def signed_request(
    signer: Signer, *, tls_hash: bytes = b"", now: datetime | None = None, **request: Any
) -> bytes:
    """Make a serialized SignedRequest: `status=StatusRequest(…)` or `deliver=…`.

    `tls_hash` is the SHA-256 of the client's own TLS certificate, under mutual TLS.
    """
    content = RequestContent(
        creator=signer.creator,
        nonce=signer.nonce(),
        time_ms=int((now or datetime.now(UTC)).timestamp() * _MS),
        tls_cert_sha256=tls_hash,
        **request,
    ).SerializeToString()
    signature = signer.sign(SIGNED_FIRST + content)
    made: bytes = SignedRequest(content=content, signature=signature).SerializeToString()
    return made


def read_signed_request(raw: bytes, *, now: datetime, tls_hash: bytes | None) -> CheckedRequest:
    """Read a request that anybody sent; raises `seek.Refused`.

    `tls_hash` is the SHA-256 of the client's TLS certificate; None without mutual TLS.
    """
    check_size(raw)
    try:
        request = SignedRequest.FromString(raw)
        content = RequestContent.FromString(request.content)
    except DecodeError as error:
        raise Refused(Status.BAD_REQUEST, "the request is not a SignedRequest") from error
    check_sender(content.time_ms / _MS, content.tls_cert_sha256, now=now, tls_hash=tls_hash)
    try:
        signed = SignedData(SIGNED_FIRST + request.content, content.creator, request.signature)
        verify_as(signed.creator, signed.data, signed.signature)
    except (BadSignature, UntrustedIdentity) as error:
        raise Refused(
            Status.FORBIDDEN, f"the request's creator did not sign it: {error}"
        ) from error
    check_expiry(content.creator, now)
    return CheckedRequest(content, signed)
