"""The errors for access that a cluster denies: a missing right, a user, a certificate.

A driver decides what happened; this module words the error, the same for all drivers. Rights and
resources have Kafka's names. Each error names the cluster and what to change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from multicast.errors import AuthenticationFailed, NotAuthorized, TlsFailed

CLUSTER = "the cluster"
# By Kafka's rules another right may include the missing one.
_INCLUDED = {
    ("Describe", "topic"): "Read or Write includes it",
    ("Describe", "group"): "Read includes it",
    ("Create", "topic"): "Create on the cluster includes it",
}


class Access(NamedTuple):
    """The cluster and the user of a client: every error names both."""

    bootstrap: str
    user: str

    @classmethod
    def of(cls, bootstrap: str, client: Mapping[str, str]) -> Access:
        """Build it from client settings by Kafka's dotted names."""
        return cls(
            bootstrap, user_of(client.get("sasl.username"), client.get("ssl.certificate.location"))
        )

    def lacks(self, right: str, kind: str, name: str = "") -> NotAuthorized:
        """Return the error for a missing right, such as Read, on "topic", "group" or `CLUSTER`."""
        return NotAuthorized(self.lacking(right, kind, name))

    def lacking(self, right: str, kind: str, name: str = "") -> str:
        """Return the text of `lacks`."""
        included = _INCLUDED.get((right, kind))
        resource = f"{kind} {name}" if name else kind
        user = self.user[:1].upper() + self.user[1:]
        return (
            f"{user} lacks the right {right} on {resource} at {self.bootstrap}"
            f"{f' ({included})' if included else ''}; grant it: the rights that each role needs "
            f"are listed in docs/operating.md."
        )

    def rejected(self, why: str) -> AuthenticationFailed:
        """Return the error for a user or password that the brokers reject."""
        return AuthenticationFailed(
            f"The brokers at {self.bootstrap} do not accept {self.user} ({why}); check "
            f"sasl.username, sasl.password and sasl.mechanism of the client settings."
        )

    def untrusted(self, why: str) -> TlsFailed:
        """Return the error for a broker certificate without a trusted signature."""
        return TlsFailed(
            f"The certificate of the brokers at {self.bootstrap} is not trusted ({why}); set "
            f"ssl.ca.location to the authority that signed it."
        )

    def outdated(self, why: str) -> TlsFailed:
        """Return the error for a broker certificate whose dates do not include today."""
        return TlsFailed(
            f"The certificate of the brokers at {self.bootstrap}, or its authority's, is not valid "
            f"today ({why}); renew it, or correct the clock of this machine."
        )

    def misnamed(self, why: str) -> TlsFailed:
        """Return the error for a broker certificate that is valid for other hosts."""
        return TlsFailed(
            f"The certificate of the brokers at {self.bootstrap} names another host ({why}); "
            f"connect by a host name that the certificate contains."
        )

    def unwelcome(self, why: str) -> TlsFailed:
        """Return the error for a client certificate that the broker refuses or misses."""
        return TlsFailed(
            f"The brokers at {self.bootstrap} refuse our certificate, or the lack of one ({why}); "
            f"set ssl.certificate.location and ssl.key.location to one that they trust and that "
            f"has not expired."
        )

    def no_tls(self, why: str) -> TlsFailed:
        """Return the error for any other failure of a TLS handshake."""
        return TlsFailed(
            f"The TLS handshake with the brokers at {self.bootstrap} failed ({why}); check that "
            f"security.protocol and the certificates match the brokers' port."
        )


def user_of(name: str | None, certificate: str | None) -> str:
    """Describe the user of a client by its name, else by its certificate."""
    if name:
        return f"user {name}"
    if certificate:
        return f"the user of certificate {certificate}"
    return "the anonymous user"
