"""Cuts the end off a partition of a broker that was killed, as a power cut does."""

import random
import struct
from pathlib import Path

_BATCH = struct.Struct(">QI")  # the first offset, and how many bytes follow


def cut(data: Path, topic: str, partition: int, rng: random.Random) -> int:
    """Drop the newest batches of a partition, at least one; give the first offset that is lost.

    The broker must not run. It makes the indexes anew when it starts.
    """
    segment = max((data / f"{topic}-{partition}").glob("*.log"))
    raw, place, borders = segment.read_bytes(), 0, []
    while place + _BATCH.size <= len(raw):
        first, length = _BATCH.unpack_from(raw, place)
        if not length:  # space that was kept for later batches
            break
        borders.append((place, first))
        place += _BATCH.size + length
    place, first = rng.choice(borders[len(borders) // 2 :])
    with segment.open("r+b") as file:
        file.truncate(place)
    for index in segment.parent.glob(f"{segment.stem}.*index"):
        index.unlink()
    return first
