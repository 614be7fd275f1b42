"""The check of the certificates that this client uses; no I/O, no clock."""

from __future__ import annotations

from collections.abc import Mapping

from collectors.doctor.finding import Check, Finding, Weight
from multicast.drivers.certificates import expiry_warning


def of_certificates(ends: Mapping[tuple[str, str], float], now: float) -> list[Finding]:
    """Check, by setting and file, which certificates have ended or do within a month."""
    return [
        Finding(
            Weight.WARN,
            Check.CERTIFICATE,
            file,
            says,
            "the brokers refuse what has ended, or are refused: write the file of a new one",
        )
        for (setting, file), end in ends.items()
        if (says := expiry_warning(f"{setting} ({file})", end, now)) is not None
    ]
