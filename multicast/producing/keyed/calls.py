"""What a producer's calls name: destination sets, keys and headers, checked before a send."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from multicast.drivers.protocol import Headers
from multicast.errors import UsageError
from multicast.messages import refuse_names
from multicast.producing.keyed.partitioners import Key, Keys, key_bytes

NOWHERE = "a message without a destination set goes to its key's partition: give 'to', or a key"


_PAYLOAD_TYPES = frozenset((bytes, type(None)))


class Batched(NamedTuple):
    """Messages of one call; keys and headers, if there are any, hold an entry for each."""

    payloads: Sequence[bytes | None]
    keys: Sequence[bytes | None] | None
    headers: Sequence[Headers] | None

    def after(self, count: int) -> Batched:
        """Leave out the first `count` messages."""
        if not count:
            return self
        return Batched(*(None if part is None else part[count:] for part in self))  # type: ignore[arg-type]

    def of(self, indexes: Sequence[int]) -> Batched:
        """Choose messages by their indexes."""
        return Batched(
            *(None if part is None else [part[index] for index in indexes] for part in self)  # type: ignore[arg-type]
        )

    def headed(self, header: tuple[str, bytes] | None) -> Batched:
        """Add a header, if there is one, to each message."""
        if header is None:
            return self
        own = self.headers or [()] * len(self.payloads)
        return self._replace(headers=[[*pairs, header] for pairs in own])


def batched(
    payloads: Sequence[bytes | None],
    keys: Sequence[Key | None] | None,
    headers: Sequence[Headers | Mapping[str, bytes]] | None,
) -> Batched:
    """Check the messages of a call with many; raises `UsageError`."""
    if isinstance(payloads, bytes | str) or not isinstance(payloads, Sequence):
        raise UsageError("the messages of a call are a list of payloads, not one payload")
    if not _PAYLOAD_TYPES.issuperset(map(type, payloads)):  # rarely; a subclass of bytes is fine
        for payload in payloads:
            check_payload(payload)
    for name, part in (("keys", keys), ("headers", headers)):
        if isinstance(part, bytes | str | Mapping | Keys) or (
            part is not None and len(part) != len(payloads)
        ):
            raise UsageError(f"{name} must hold one entry for each of the {len(payloads)} messages")
    return Batched(
        payloads,
        None if keys is None else [None if key is None else key_bytes(key) for key in keys],
        None if headers is None else [header_pairs(each) for each in headers],
    )


def divided(names: Sequence[str], *, in_order: bool) -> list[tuple[str, list[int]]]:
    """Give the indexes of each name; `in_order`: those of each run of equal names."""
    parts: list[tuple[str, list[int]]] = []
    places: dict[str, list[int]] = {}
    last = None
    for index, name in enumerate(names):
        if name not in places or (in_order and name != last):
            places[name] = []
            parts.append((name, places[name]))
        places[name].append(index)
        last = name
    return parts


def check_payload(payload: object) -> None:
    """Raise `UsageError` for what is no payload; Kafka's clients differ in what else they take."""
    if payload is not None and not isinstance(payload, bytes):
        raise UsageError(
            f"a payload is bytes or None, not {type(payload).__name__}; encode it first"
        )


def header_pairs(headers: Headers | Mapping[str, bytes]) -> Headers:
    """Give headers as pairs; raises `UsageError` for a pair that is not (str, bytes)."""
    if not isinstance(headers, Iterable):
        raise UsageError(f"headers are {headers!r}; give pairs, or a mapping")
    pairs = list(headers.items() if isinstance(headers, Mapping) else headers)
    for pair in pairs:
        match pair:
            case (str(), bytes() | None):
                continue
            case _:
                raise UsageError(
                    f"{pair!r} is not a header; a header is a name (str) and a value (bytes)"
                )
    refuse_names(pairs)
    return pairs


def addressed(
    to: Iterable[str] | Keys | None, key: Key | None
) -> tuple[Iterable[str] | Keys, bytes | None]:
    """Give where a message goes, and its record's key.

    Without a destination set a message goes to its key's partition; without a key its record has
    the first of the set's keys, if the set is named by keys. Raises `UsageError`.
    """
    own = None if key is None else key_bytes(key)
    if to is None:
        if own is None:
            raise UsageError(NOWHERE)
        return Keys((own,)), own
    if own is None and isinstance(to, Keys):
        own = to.values[0]
    return to, own
