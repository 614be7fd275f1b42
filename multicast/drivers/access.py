"""Sentences about what a cluster refuses: a right, a user, a certificate.

In go Kafka's words for a right and a resource; out come errors that name both, and the user. The
drivers decide what happened; here it is only said, the same for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from multicast.errors import AuthenticationFailed, NotAuthorized, TlsFailed

CLUSTER = "the cluster"
# What else grants a right, by Kafka's rules.
_INCLUDED = {
    ("Describe", "topic"): "Read or Write includes it",
    ("Describe", "group"): "Read includes it",
    ("Create", "topic"): "Create on the cluster includes it",
}


class Access(NamedTuple):
    """Who asks which cluster: both are named in every sentence."""

    bootstrap: str
    user: str

    @classmethod
    def of(cls, bootstrap: str, client: Mapping[str, str]) -> Access:
        """Take the user from the client's settings, by Kafka's dotted names."""
        return cls(
            bootstrap, user_of(client.get("sasl.username"), client.get("ssl.certificate.location"))
        )

    def lacks(self, right: str, kind: str, name: str = "") -> NotAuthorized:
        """Say that the user lacks a right, such as Read, on a "topic", a "group" or `CLUSTER`."""
        return NotAuthorized(self.lacking(right, kind, name))

    def lacking(self, right: str, kind: str, name: str = "") -> str:
        """Give the sentence that `lacks` raises."""
        included = _INCLUDED.get((right, kind))
        resource = f"{kind} {name}" if name else kind
        user = self.user[:1].upper() + self.user[1:]
        return (
            f"{user} lacks the right {right} on {resource} at {self.bootstrap}"
            f"{f' ({included})' if included else ''}; grant it: the rights that each role needs "
            f"are listed in docs/operating.md."
        )

    def rejected(self, why: str) -> AuthenticationFailed:
        """Say that the brokers do not accept the user."""
        return AuthenticationFailed(
            f"The brokers at {self.bootstrap} do not accept {self.user} ({why}); check "
            f"sasl.username, sasl.password and sasl.mechanism of the client settings."
        )

    def untrusted(self, why: str) -> TlsFailed:
        """Say that the broker's certificate is signed by nobody whom we trust."""
        return TlsFailed(
            f"The certificate of the brokers at {self.bootstrap} is not trusted ({why}); set "
            f"ssl.ca.location to the authority that signed it."
        )

    def misnamed(self, why: str) -> TlsFailed:
        """Say that the broker's certificate is another host's."""
        return TlsFailed(
            f"The certificate of the brokers at {self.bootstrap} names another host ({why}); "
            f"connect by a name that it holds."
        )

    def unwelcome(self, why: str) -> TlsFailed:
        """Say that the broker wants another certificate of us."""
        return TlsFailed(
            f"The brokers at {self.bootstrap} refuse our certificate, or the lack of one ({why}); "
            f"set ssl.certificate.location and ssl.key.location to one that they trust."
        )

    def no_tls(self, why: str) -> TlsFailed:
        """Say that a TLS handshake failed for another reason."""
        return TlsFailed(
            f"The TLS handshake with the brokers at {self.bootstrap} failed ({why}); check that "
            f"security.protocol and the certificates fit that port."
        )


def user_of(name: str | None, certificate: str | None) -> str:
    """Name the user as whom a client signs in."""
    if name:
        return f"user {name}"
    if certificate:
        return f"the user of certificate {certificate}"
    return "the anonymous user"
