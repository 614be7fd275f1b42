"""Cuts the end of Kafka partitions off, in the files of brokers that do not run."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import NamedTuple

# Of a record batch: the first offset, how many bytes follow, what is skipped, the newest time.
_BATCH = struct.Struct(">QI23xq")
_HEAD_BYTES = 12  # that the batch's own length does not count


class Border(NamedTuple):
    """Where a batch begins in the newest segment: its place, first offset and newest time."""

    place: int
    first: int
    time_ms: int


def borders(data: Path, topic: str, partition: int) -> list[Border]:
    """List the batches of a partition's newest segment in a broker's folder."""
    raw, place, listed = _segment(data, topic, partition).read_bytes(), 0, []
    while place + _BATCH.size <= len(raw):
        first, length, time_ms = _BATCH.unpack_from(raw, place)
        if not length:  # space that was kept for later batches
            break
        listed.append(Border(place, first, time_ms))
        place += _HEAD_BYTES + length
    return listed


def cut(
    folders: Iterable[Path], topic: str, partition: int, choose: Callable[[list[Border]], Border]
) -> int:
    """Drop a batch and all behind it on all replicas; give the first offset that is lost.

    No broker may run. They make the indexes anew when they start.
    """
    replicas = [data for data in folders if (data / f"{topic}-{partition}").is_dir()]
    # What one replica alone has was never acknowledged.
    first = choose(min((borders(data, topic, partition) for data in replicas), key=len)).first
    for data in replicas:
        segment = _segment(data, topic, partition)
        with segment.open("r+b") as file:
            for border in borders(data, topic, partition):
                if border.first >= first:
                    file.truncate(border.place)
                    break
        for index in segment.parent.glob(f"{segment.stem}.*index"):
            index.unlink()
    return first


def in_second_half(rng: Random) -> Callable[[list[Border]], Border]:
    """Choose at random, and lose no more than a half."""
    return lambda listed: rng.choice(listed[len(listed) // 2 :])


def _segment(data: Path, topic: str, partition: int) -> Path:
    return max((data / f"{topic}-{partition}").glob("*.log"))
