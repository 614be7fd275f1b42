"""Why a node cannot be reached, as a client's gRPC tells it: errors, and one sentence for each.

No gRPC here: its status and its text come as strings. The texts are those of grpcio 1.85; a text
that is not known is passed on as it is.
"""

from __future__ import annotations

from multicast.errors import ClusterUnreachable
from ordering_osn.api.tls_files import TlsFiles


class ConnectionLost(ClusterUnreachable):
    """The node cannot be reached, or broke the call off; a request may have taken effect."""


class MethodMissing(ConnectionLost):
    """The node does not have this method; nothing was done, and asking again does not help."""

    retriable = False
    definite = True
    exit_code = 1


class TlsRefused(ConnectionLost):
    """TLS cannot be agreed on with the node as it is set; nothing was sent. The text says why."""

    retriable = False
    definite = True
    exit_code = 1


_AUTHORITY = (
    "its TLS certificate is of none of the given authorities; give the CA of the certificate "
    "(authorities of TlsFiles, --tls-ca)"
)
_OUTDATED = (
    "its TLS certificate, or its authority's, has expired or is not valid yet; renew it "
    "(--tls-cert of the node), or correct the clock of this machine"
)
_HOST_NAME = (
    "its TLS certificate is for another host name; give the name that the certificate has "
    "(name of the client, --tls-name)"
)
_NO_TLS = "it does not speak TLS; leave the TLS files out (tls of the client, --tls-ca)"
_NEEDS_CERTIFICATE = (
    "it closed the connection; if it requires client certificates, give one (certificate and key "
    "of TlsFiles, --tls-cert and --tls-key)"
)
_OTHER_CERTIFICATE = (
    "it closed the connection; if it requires client certificates, check that yours (certificate "
    "of TlsFiles, --tls-cert) has not expired, and is of a CA that the node was given (--client-ca)"
)
_NEEDS_TLS = (
    "it closed the connection; if it speaks TLS, give the CA of its certificate (tls of the "
    "client, --tls-ca)"
)
_DEFINITE = {  # the first that fits
    "certificate has expired": _OUTDATED,
    "certificate is not yet valid": _OUTDATED,
    "CERTIFICATE_VERIFY_FAILED": _AUTHORITY,
    "Hostname Verification Check failed": _HOST_NAME,
    "is not in peer certificate": _HOST_NAME,
    "WRONG_VERSION_NUMBER": _NO_TLS,
}
_CLOSED = ("Socket closed", "Connection reset by peer")


def lost(address: str, status: str, text: str, tls: TlsFiles | None) -> ConnectionLost:
    """Make the error for a call that ended with a gRPC status, by its name, and a text."""
    if status == "UNIMPLEMENTED":
        return MethodMissing(
            f"{address} does not have this service: it runs an older version, or it is no node of "
            "this ordering service"
        )
    if "failed to connect" in text:  # before that, the settings of TLS were right
        for part, why in _DEFINITE.items():
            if part in text:
                return TlsRefused(f"{address}: {why}")
        # A node that stops closes connections, too, so this one is tried again.
        if any(part in text for part in _CLOSED):
            return ConnectionLost(f"{address}: {_closed(tls)}")
    if text == "Internal error from Core":  # grpc/grpc#36066
        return ConnectionLost(f"{address}: it ended the call; gRPC's client lost the reason")
    return ConnectionLost(f"{address}: {status}: {text}")


def _closed(tls: TlsFiles | None) -> str:
    if tls is None:
        return _NEEDS_TLS
    return _OTHER_CERTIFICATE if tls.certificate else _NEEDS_CERTIFICATE
