"""Parts of the control topic's statements, read with one error: `NotReadable`. No I/O.

In go parts of JSON documents that anybody may have written; out come addresses, positions, and what
a recovery says of streams.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from multicast.announcements import TOKEN_BYTES, Address
from multicast.order import Resumed
from topology.documents import NotReadable, octets, part, text, whole
from topology.tree import Plan

HOST_BYTES_MAX = 253  # of a name in the DNS
PORT_MAX = 65535


@dataclass(frozen=True, slots=True)
class Ended:
    """What a recovery says beside where each log ended; empty after an ordinary change.

    `resumed` says by collector and log where its stream of the next epoch begins, where that is not
    where the log ended; `stopped` at which offset a collector's stream is over without a freeze.
    """

    resumed: Mapping[str, Mapping[str, Resumed]] = field(default_factory=dict)
    stopped: Mapping[str, int] = field(default_factory=dict)


def address_of(document: Mapping[str, Any]) -> Address:
    """Read where a collector takes announcements."""
    host = text(part(document, "host"))
    try:
        named = host.encode("idna")
    except UnicodeError:
        raise NotReadable("the host is no name and no address") from None
    if not named or len(named) > HOST_BYTES_MAX or not named.decode().isprintable():
        raise NotReadable("the host is no name and no address")
    port = whole(part(document, "port"), PORT_MAX)
    return Address(host, port, octets(part(document, "token"), TOKEN_BYTES))


def positions_of(document: object) -> dict[str, int]:
    """Read offsets by name."""
    return {name: whole(offset) for name, offset in _object(document).items()}


def _object(document: object) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise NotReadable("it is not an object")
    return document


def ended_of(document: Mapping[str, Any], plan: Plan, following: Plan) -> Ended:
    """Read what a recovery says: of streams of the epoch that ends, and of the next one's."""
    resumed: dict[str, dict[str, Resumed]] = {}
    for name, begins in _object(document.get("resumed", {})).items():
        if not following.has_collector(name):
            raise NotReadable(f"the next epoch has no collector {name}")
        for log, begin in _object(begins).items():
            if log not in following.collector(name).bag:
                raise NotReadable(f"log {log} is not in the bag of {name}")
            if not isinstance(begin, list) or len(begin) != 2:
                raise NotReadable("a resumed log has not a position and what is owed")
            resumed.setdefault(name, {})[log] = Resumed(*map(whole, begin))
    stopped = positions_of(document.get("stopped", {}))
    if not all(map(plan.has_collector, stopped)):
        raise NotReadable("it stops a collector that the epoch does not have")
    return Ended(resumed, stopped)
