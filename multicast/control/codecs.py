"""Encodes the statements of both control topics as keys and values; `state.py` decodes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from multicast.control.documents import Ended, StatusPage
from multicast.drivers.clock import WRITER_BYTES
from multicast.order.runs import digest_of
from multicast.order.stream import StreamCheckpoint
from topology.tree import Plan

SCHEMA_VERSION = 1  # of the JSON values


def plan_record(previous: bytes, plan: Plan, *, attempt: str) -> tuple[bytes, bytes]:
    """Make the statement that proposes a plan.

    `previous` is the digest of the last accepted statement of plans, markers and ends. `attempt`
    must differ for every append, even of the same plan: compaction keeps one record for each key.
    """
    value = _dump({"previous": previous.hex(), "plan": plan.to_json()})
    return _key("plan", plan.epoch, value, attempt), value


def markers_record(
    previous: bytes, epoch: int, positions: Mapping[str, int], *, attempt: str
) -> tuple[bytes, bytes]:
    """Make the statement of the position to which each log must be ordered before the freeze."""
    value = _dump({"previous": previous.hex(), "positions": dict(positions)})
    return _key("markers", epoch, value, attempt), value


def ends_record(
    previous: bytes,
    epoch: int,
    positions: Mapping[str, int],
    *,
    attempt: str,
    ended: Ended | None = None,
) -> tuple[bytes, bytes]:
    """Make the statement of the offset at which each log ends the epoch."""
    document: dict[str, Any] = {"previous": previous.hex(), "positions": dict(positions)}
    if ended is not None and ended.resumed:
        document["resumed"] = {name: dict(begins) for name, begins in ended.resumed.items()}
    if ended is not None and ended.restored:
        document["restored"] = dict(ended.restored)
    if ended is not None and ended.runs:
        document["runs"] = ended.runs.hex()
    if ended is not None and ended.seen:
        document["seen"] = {log: [list(end) for end in ends] for log, ends in ended.seen.items()}
    if ended is not None and ended.lost:
        document["lost"] = dict(ended.lost)
    value = _dump(document)
    return _key("ends", epoch, value, attempt), value


def _key(kind: str, epoch: int, value: bytes, attempt: str) -> bytes:
    return f"{kind}/{epoch}/{digest_of(value).hex()}/{attempt}".encode()


def named_record(
    point: StreamCheckpoint, now_ms: int, slot: tuple[int, int]
) -> tuple[bytes, bytes]:
    """Make the statement that names a checkpoint, in a slot of its collector."""
    at = {"epoch": point.epoch, "offset": point.offset, "time_ms": now_ms}
    return slot_key(point.collector, *slot), _dump({**at, "record": point.raw.hex()})


def slot_key(collector: str, level: int, number: int) -> bytes:
    """Give the key of the checkpoints of a slot."""
    return f"checkpoint/{collector}/{level}/{number}".encode()


def running_record(
    epoch: int, collector: str, page: StatusPage | None = None, *, releases: int | None = None
) -> tuple[bytes, bytes]:
    """Make the statement that an instance of a collector has opened this epoch.

    `releases` is the instance's writer if it hands the collector over.
    """
    document = {"epoch": epoch, **_web(page)}
    if releases is not None:
        document["released"] = releases.to_bytes(WRITER_BYTES, "big").hex()
    return f"running/{collector}".encode(), _dump(document)


def loss_record(log: str, life: int, first: int) -> tuple[bytes, bytes]:
    """Make the statement that a log has lost what was at offset `first`, and all behind it."""
    return f"loss/{log}/{life}/{first}".encode(), _dump({})


def lost_stream_record(collector: str, epoch: int) -> tuple[bytes, bytes]:
    """Make the statement that the stream which a collector began in an epoch has lost its end."""
    return f"lost-stream/{collector}/{epoch}".encode(), _dump({})


def _web(page: StatusPage | None) -> dict[str, Any]:
    if page is None:
        return {}
    web = {"host": page.host, "port": page.port, "process": page.process.hex()}
    return {"web": {**web, "machine": page.machine.hex()} if page.machine else web}


def _dump(document: dict[str, Any]) -> bytes:
    whole = {"schema_version": SCHEMA_VERSION, **document}
    return json.dumps(whole, sort_keys=True, separators=(",", ":")).encode("ascii")
