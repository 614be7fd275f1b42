"""Warns of a certificate of this node that has expired, or soon will; no clock, no I/O."""

from __future__ import annotations

from datetime import datetime, timedelta

from ordering_osn.identity.certificates import Certificate, Unreadable

# A person needs days to get a new certificate. With ten times more, a warning would be there for
# most of the life of short certificates, and nobody would read it.
_WARNED_BEFORE = timedelta(days=7)


def expiry_warning(option: str, certificate: bytes, now: datetime) -> str | None:
    """Say that the certificate (PEM) given by an option has expired, or does within a week.

    None where it does neither, or cannot be read: who uses it says so.
    """
    try:
        read = Certificate(certificate)
    except Unreadable:
        return None
    if read.not_after > now + _WARNED_BEFORE:
        return None
    verb = "expired" if read.not_after <= now else "expires"
    return (
        f"the certificate {read.name} of {option} {verb} at {read.not_after:%Y-%m-%d %H:%M:%S} "
        f"UTC: give {option} a new one, and restart the node"
    )
