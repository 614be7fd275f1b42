"""Decodes the parts of control statements: web pages, positions, and the content of a recovery.

Anybody may have written the JSON. Every function raises `NotReadable` for a part that is malformed,
and nothing else. No I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from multicast.drivers.clock import WRITER_BYTES
from multicast.order.records import CheckpointRecord, decode
from multicast.order.runs import OFFSET_MAX
from multicast.order.stream import StreamCheckpoint
from topology.documents import NotReadable, octets, part, text, whole
from topology.tree import DIGEST_BYTES, Plan

HOST_BYTES_MAX = 253  # the longest name in the DNS (RFC 1035: 255 bytes on the wire)
PORT_MAX = 65535  # of UDP and TCP: 16 bits
PROCESS_BYTES = 8  # of a process's random number: two are never equal by chance
MACHINE_BYTES = 8  # of what names a machine, likewise
RESTORED_MAX = 2**32 - 1  # runs of a stream, in the bytes of a checkpoint
_SAW_MAX = (OFFSET_MAX, 2**32 - 1, 2**32 - 1)  # of the fields of `SawEnd`


class SawEnd(NamedTuple):
    """A log's end, the leader's epoch, and the checksum of the message before it, 0 if unknown."""

    end: int
    leader_epoch: int
    checksum: int


@dataclass(frozen=True, slots=True)
class Ended:
    """What `ends` state in addition to the ends of the logs.

    After a recovery `resumed` gives, by collector and log, where the collector's stream of the next
    epoch begins, if that is not the log's end: at the position of its stream of the ended epoch.
    `restored` gives, by collector, the number of runs with which its stream of the next epoch
    begins, where not 0, and `runs` a digest of all of them. `seen` and `lost` are what the ended
    streams had seen of the logs.
    """

    resumed: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    restored: Mapping[str, int] = field(default_factory=dict)
    seen: Mapping[str, Sequence[SawEnd]] = field(default_factory=dict)
    lost: Mapping[str, int] = field(default_factory=dict)
    runs: bytes = b""  # nobody acts on it: other runs make another statement, and other tags


class StatusPage(NamedTuple):
    """Where a process serves its web pages; `process` is its random number, which `/status` shows.

    Operators' commands read them, and standbys ask whether the process has ended. The address may
    be reachable from the process's machine only: `machine` tells it from others, if not empty.
    """

    host: str
    port: int
    process: bytes
    machine: bytes = b""


class Offer(NamedTuple):
    """An instance hands over a collector that began in this epoch; `writer` is in its records."""

    epoch: int
    writer: int
    is_taken: bool = False  # another instance has advertised itself since


def page_of(document: Mapping[str, Any]) -> StatusPage | None:
    """Decode the optional part "web" of a running statement; None: it has none."""
    if "web" not in document:
        return None
    web = _object(document["web"])
    host, port = _endpoint_of(web)
    machine = octets(web["machine"], MACHINE_BYTES) if "machine" in web else b""
    return StatusPage(host, port, octets(part(web, "process"), PROCESS_BYTES), machine)


def writer_of(document: Mapping[str, Any]) -> int | None:
    """Decode the optional part "released" of a running statement: a writer."""
    if "released" not in document:
        return None
    return int.from_bytes(octets(document["released"], WRITER_BYTES), "big")


def _endpoint_of(document: Mapping[str, Any]) -> tuple[str, int]:
    host = text(part(document, "host"))
    if not (0 < len(host) <= HOST_BYTES_MAX and host.isascii() and host.isprintable()):
        raise NotReadable("its host is neither a name nor an address")
    return host, whole(part(document, "port"), PORT_MAX)


def positions_of(document: object) -> dict[str, int]:
    """Decode offsets by name."""
    return {name: whole(offset) for name, offset in _object(document).items()}


def _object(document: object) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise NotReadable("it is not an object")
    return document


def ended_of(document: Mapping[str, Any], following: Plan) -> Ended:
    """Decode what `ends` state beside positions; `following` is the plan of the next epoch."""
    resumed: dict[str, dict[str, int]] = {}
    for name, begins in _object(document.get("resumed", {})).items():
        if not following.has_collector(name):
            raise NotReadable(f"the next epoch has no collector {name}")
        resumed[name] = positions_of(begins)
        for log in resumed[name]:
            if log not in following.collector(name).bag:
                raise NotReadable(f"log {log} is not in the bag of {name}")
    restored = {
        name: whole(count, RESTORED_MAX)
        for name, count in _object(document.get("restored", {})).items()
    }
    if not all(map(following.has_collector, restored)):
        raise NotReadable("it restores runs of a collector that is not in the next epoch")
    seen = {
        log: tuple(map(_saw_end, _list(ends)))
        for log, ends in _object(document.get("seen", {})).items()
    }
    runs = octets(document["runs"], DIGEST_BYTES) if "runs" in document else b""
    return Ended(resumed, restored, seen, positions_of(document.get("lost", {})), runs)


def _saw_end(document: object) -> SawEnd:
    fields = _list(document)
    if len(fields) != len(_SAW_MAX):
        raise NotReadable("an end that was seen has other fields")
    return SawEnd(*map(whole, fields, _SAW_MAX))


def _list(document: object) -> list[Any]:
    if not isinstance(document, list):
        raise NotReadable("it is not a list")
    return document


def named_checkpoint_of(
    document: Mapping[str, Any], plan: Plan, collector: str, tag: bytes
) -> StreamCheckpoint:
    """Decode the name of a checkpoint: it must be of the stream with this tag, and its logs."""
    offset = whole(part(document, "offset"))
    digits = text(part(document, "record"))
    raw = octets(digits, len(digits) // 2)
    record = decode(tag, raw)
    if not isinstance(record, CheckpointRecord) or record.mark > offset:
        raise NotReadable("its record is no checkpoint of this stream")
    numbers = {plan.number(name) for name in plan.collector(collector).bag}
    own = {plan.number(name) for name in plan.own_logs(collector)}
    if {log.log for log in record.own} != own or {log for log, _ in record.inherited} != (
        numbers - own
    ):
        raise NotReadable("its logs are not those of the bag")
    if not {each[0] for each in (*record.seen, *record.lost)} <= numbers:
        raise NotReadable("it says what was seen of a log that is not in the bag")
    return StreamCheckpoint(plan.epoch, collector, offset, raw)
