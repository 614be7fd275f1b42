"""When certificates end: read from their files, and said a month before, once a day.

Needs no library: of a certificate (RFC 5280, DER in PEM) only the end of its validity is read.
"""

from __future__ import annotations

import base64
import logging
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

# A month: a person needs days to get a new certificate, and may be away for weeks. With ten times
# more, a warning would be there for most of a certificate's life, and nobody would read it.
WARNED_BEFORE_S = 30 * 24 * 60 * 60
AGAIN_S = 24 * 60 * 60  # more often would fill the log
_PEM = re.compile(rb"-----BEGIN (?:X509 |TRUSTED )?CERTIFICATE-----([^-]*)-----END")
_VERSION, _UTC_TIME = 0xA0, 0x17  # tags; an older certificate has no version
_log = logging.getLogger("amcast.certificates")
_OF_A_SYSTEM = 20  # authorities: systems come with some 140
_files: dict[tuple[str, str], float] = {}  # setting and file: from when on it is warned of again


def end_of(pem: bytes, *, authorities: bool = False) -> float | None:
    """Return when the first of the certificates ends, in seconds since 1970.

    Of `authorities` those that have ended do not count while others go on; of so many that they are
    a system's, some always end: it is the last. None where there is no certificate, or one cannot
    be read: who uses it says so.
    """
    try:
        ends = [_end(base64.b64decode(match[1])) for match in _PEM.finditer(pem)]
    except (ValueError, IndexError, StopIteration):
        return None
    if authorities:
        now = time.time()
        ends = [end for end in ends if end > now] or ends
    return (max if authorities and len(ends) > _OF_A_SYSTEM else min)(ends, default=None)


def expiry_warning(name: str, end: float | None, now: float) -> str | None:
    """Say that what an option or setting names has ended, or does within a month; else None."""
    if end is None or end > now + WARNED_BEFORE_S:
        return None
    verb = "ended" if end <= now else "ends"
    at = datetime.fromtimestamp(end, UTC)
    return f"a certificate of {name} {verb} at {at:%Y-%m-%d %H:%M:%S} UTC; give it a new one"


def watch_files(files: Mapping[str, str | None]) -> None:
    """Log which certificates of these settings end within a month, once a day.

    From then on `ends` shows them.
    """
    now = time.time()
    for setting, path in files.items():
        if path is None or now < _files.get((setting, path), 0.0):
            continue
        warning = expiry_warning(f"{setting} ({path})", _end_in(setting, path), now)
        _files[setting, path] = now + AGAIN_S if warning else 0.0
        if warning:
            _log.warning("%s", warning)


def ends() -> dict[tuple[str, str], float]:
    """Read when the certificates that this process's clients use end, by setting and file.

    Logs as `watch_files`, for clients whose connections stay open.
    """
    for setting, path in list(_files):
        watch_files({setting: path})
    read = {key: _end_in(*key) for key in list(_files)}
    return {key: end for key, end in read.items() if end is not None}


def _end_in(setting: str, path: str) -> float | None:
    with suppress(OSError):
        return end_of(Path(path).read_bytes(), authorities=setting == "ssl.ca.location")
    return None


def _end(der: bytes) -> float:
    """Return the end of a certificate's validity; raises where it cannot be read."""
    certificate = next(_elements(der))[1]
    fields = [each for each in _elements(next(_elements(certificate))[1]) if each[0] != _VERSION]
    validity = fields[3][1]  # after the serial number, the signature's algorithm and the issuer
    _, (tag, text) = _elements(validity)
    at = text.decode("ascii")
    if tag == _UTC_TIME:
        at = ("19" if at >= "5" else "20") + at
    return datetime.strptime(at, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _elements(der: bytes) -> Iterator[tuple[int, bytes]]:
    """Give the elements that follow one another: each its tag and its content."""
    while der:
        tag, length, begin = der[0], der[1], 2
        if length & 0x80:
            begin += length & 0x7F
            length = int.from_bytes(der[2:begin])
        yield tag, der[begin : begin + length]
        der = der[begin + length :]
