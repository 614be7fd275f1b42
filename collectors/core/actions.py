"""What a collector's core has the engine do, in the order in which it says it."""

from __future__ import annotations

from dataclasses import dataclass

from multicast.order.stream import StreamCheckpoint


@dataclass(frozen=True, slots=True)
class Append:
    """Append `raw` to the collector's own stream, AFTER all earlier appends of this core."""

    raw: bytes


@dataclass(frozen=True, slots=True)
class SaveCheckpoint:
    """Write this to the control topic, at any time: its record was read back, so it stays true."""

    checkpoint: StreamCheckpoint


@dataclass(frozen=True, slots=True)
class Fill:
    """If the end of log number `log` is below `below`, append skips; THEN call `filled`."""

    log: int
    below: int


Action = Append | SaveCheckpoint | Fill
