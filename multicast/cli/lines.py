"""The messages that `amcast send` reads: one from each line, plain or JSON."""

from __future__ import annotations

import base64
import binascii
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from multicast.cli.options import partitions_of
from multicast.errors import UsageError
from multicast.producing.keyed.partitioners import Keys, key_bytes
from multicast.producing.keyed.partitioners import keys as keys_of
from topology.documents import NotReadable, json_object

_FIELDS = {"to", "keys", "payload", "payload_base64", "key", "headers"}


class Line(NamedTuple):
    """One message to send; without `to` it goes where its key is."""

    payload: bytes | None
    to: tuple[str, ...] | Keys | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()


class Fixed(NamedTuple):
    """The destination set and the key that every line shares."""

    to: tuple[str, ...] | Keys | None
    key: bytes | None

    @classmethod
    def of(cls, *, to: str | None, key: str | None, keys: str | None) -> Fixed | None:
        """Read the options; None if there are none. Raises `UsageError` for both sets at once."""
        if to is not None and keys is not None:
            raise UsageError("--to and --keys both name the destination set: give one of them")
        if to is None and key is None and keys is None:
            return None
        chosen: tuple[str, ...] | Keys | None = None
        if to is not None:
            chosen = tuple(sorted(set(partitions_of(to))))
        elif keys is not None:
            chosen = keys_of(*keys.split(","))
        return cls(chosen, None if key is None else key_bytes(key))


def lines(file: Path | None, fixed: Fixed | None) -> Iterator[Line]:
    """Read one message from each line; raises `UsageError`, which names the line."""
    source: IO[bytes] = sys.stdin.buffer if file is None else file.open("rb")
    with source:
        for number, raw in enumerate(source, start=1):
            text = raw.removesuffix(b"\n").removesuffix(b"\r")
            if fixed is not None:
                yield Line(text, fixed.to, fixed.key)
            elif text:
                yield parse_line(text, f"{file or 'standard input'}:{number}")


def parse_line(text: bytes, where: str) -> Line:
    """Read a JSON line; raises `UsageError`, which begins with `where`."""
    try:
        document = json_object(text)
    except NotReadable as error:
        raise UsageError(
            f"{where}: not a JSON object ({error}); for plain lines give --to, --key or --keys"
        ) from error
    unknown = sorted(set(document) - _FIELDS)
    if unknown:
        raise UsageError(f"{where}: the field {unknown[0]!r} is unknown")
    to = _destinations(document, where)
    if ("payload" in document) == ("payload_base64" in document):
        raise UsageError(f"{where}: give either 'payload' or 'payload_base64'")
    headers = document.get("headers", {})
    texts = [document.get("key", ""), document.get("payload", "")]
    texts += headers.values() if isinstance(headers, dict) else [None]
    if not all(isinstance(value, str) for value in texts):
        raise UsageError(f"{where}: payload, key or a header is not a string")
    try:
        payload = (
            document["payload"].encode()
            if "payload" in document
            else base64.b64decode(document["payload_base64"], validate=True)
        )
    except (binascii.Error, TypeError, ValueError) as error:
        raise UsageError(f"{where}: 'payload_base64' is not base64") from error
    key = document["key"].encode() if "key" in document else None
    pairs = tuple((name, value.encode()) for name, value in headers.items())
    return Line(payload, to, key, pairs)


def _destinations(document: dict[str, Any], where: str) -> tuple[str, ...] | Keys | None:
    if "to" in document and "keys" in document:
        raise UsageError(f"{where}: give either 'to' or 'keys'")
    if "keys" in document:
        return keys_of(*_names(document["keys"], f"{where}: 'keys' is not a list of keys"))
    if "to" in document or "key" not in document:
        return _names(document.get("to"), f"{where}: 'to' is not a list of partitions")
    return None


def _names(value: Any, wrong: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or not all(isinstance(name, str) for name in value):
        raise UsageError(wrong)
    return tuple(value)
