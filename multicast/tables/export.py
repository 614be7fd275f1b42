"""Writes the order of one subscription as files, each a contiguous piece of it; resumable.

    FOLDER/_amcast                            which topic and subscription
    FOLDER/E000000001-P0…0-P0…99.parquet      rows of epoch 1, their positions from 0 to 99

A file appears under its name complete, or not at all: it is written beside it and renamed. The
cursor of the last row of the newest file says where to go on, so nothing else has to be stored, and
a kill at any moment neither loses nor doubles a row. One export at a time writes to a folder.

Names sort in delivery order. Any reader of Parquet can read the folder: Spark and pyarrow pass over
names that begin with "_", as those of all other files here do, and no other file's name ends as a
table's does.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

from multicast.consuming.cursor import Cursor
from multicast.consuming.subscription import SubscriptionRequest
from multicast.drivers.clock import clock_of
from multicast.drivers.protocol import Driver
from multicast.errors import AmcastError, Conflict, TimedOut, UsageError
from multicast.tables.arrow import pyarrow, record_batch, schema
from multicast.tables.order_walk import OrderWalk, Piece, Where
from multicast.tables.slices import read, slices
from topology.files import sync_folder

ABOUT = "_amcast"
_ORIGIN = "origin"  # which topic of this name, as `OrderWalk.origin` says
_UNFINISHED = ".part"
_PAUSE_S = 0.2  # between two looks at an order that has nothing new; a human notices 0.2 s
_FOLLOW_S = 5.0  # with `follow` rows wait so long for others, so that files are not tiny


@dataclass(frozen=True, slots=True)
class Export:
    """What is exported: a subscription of a topic, as files of at most `offsets_max` offsets."""

    topic: str
    request: SubscriptionRequest
    offsets_max: int
    timeout_s: float

    def about(self) -> dict[str, Any]:
        """Give what a folder is for; an export with another one must not write there."""
        interest = self.request.interest
        return {
            "topic": self.topic,
            "consumer": self.request.name,
            "interest": None if interest is None else list(interest),
        }


class Exported(NamedTuple):
    """How many rows one export has written, and how many of them without a time."""

    rows: int
    timeless: int


@contextmanager
def locked(folder: Path, what: Export) -> Iterator[None]:
    """Hold a folder for one export: create it, or check that it is one of the same subscription.

    Raises `Conflict` if it holds another export, or another process writes to it; `UsageError` if
    it has files of something else, or cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        about = folder / ABOUT
        if not about.exists() and any(folder.iterdir()):
            raise UsageError(f"{folder} is not empty, and is no export; name another folder")
        with about.open("a+", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise Conflict(f"another process exports to {folder}") from error
            _claim(file, folder, what)
            for path in folder.glob(f"*{_UNFINISHED}"):
                path.unlink()
            yield
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror or error}") from error


def _claim(file: IO[str], folder: Path, what: Export) -> None:
    file.seek(0)
    text = file.read()
    if text.endswith("\n"):
        about = json.loads(text)
        about.pop(_ORIGIN, None)
        if about != what.about():
            raise Conflict(f"{folder} holds an export of {text.strip()}; name another folder")
        return
    if files(folder):
        raise Conflict(
            f"{folder} has rows, but its {ABOUT} was cut off and does not say of what; name "
            f"another folder"
        )
    _write_about(file, what.about())


def _write_about(file: IO[str], about: Mapping[str, Any]) -> None:
    """Write in place, as the file is locked; one without its last line end counts as empty."""
    file.truncate(0)
    file.write(json.dumps(about) + "\n")
    file.flush()
    os.fsync(file.fileno())


def files(folder: Path) -> list[Path]:
    """List the complete files of an export, in delivery order."""
    return sorted(folder.glob("E*-P*-P*.parquet"))


def exported_to(folder: Path) -> Cursor | None:
    """Give the cursor after the last exported row; None if there is no row yet."""
    done = files(folder)
    return Cursor.parse(str(rows_of(done[-1], ["cursor"])[-1]["cursor"])) if done else None


def rows_of(path: Path, columns: list[str] | None = None) -> list[dict[str, Any]]:
    """Read a file's rows, in delivery order, or only these columns.

    Raises `AmcastError` for a damaged file.
    """
    try:
        table = pyarrow("pyarrow.parquet").read_table(path, columns=columns)
    except (OSError, ValueError) as error:
        raise AmcastError(f"{path} is damaged: {error}") from error
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def export(
    driver: Driver,
    folder: Path,
    what: Export,
    start: Where,
    *,
    follow: bool,
    progress: Callable[[int], None],
) -> Exported:
    """Export to a folder that is `locked`, from its last row on or from `start`; count the rows.

    Ends when all is exported that the logs contain now; with `follow`, never. Raises `TimedOut` if
    the order has not gone on for the time-out before that end, and what `OrderWalk` raises.
    """
    done, pending = Exported(0, 0), list[Piece]()
    origin = json.loads((folder / ABOUT).read_text("utf-8")).get(_ORIGIN)
    start = exported_to(folder) or start
    with OrderWalk(driver, what.topic, what.request, start, origin=origin) as walk:
        if origin is None:
            with (folder / ABOUT).open("a", encoding="utf-8") as file:
                _write_about(file, {**what.about(), _ORIGIN: walk.origin})
        end = None if follow else walk.end()
        clock = clock_of(driver)
        moved = clock.monotonic()
        while True:
            room = what.offsets_max - _offsets(pending)
            more = walk.advance(room)
            now = clock.monotonic()
            if more and not pending:
                moved = now
            pending += more
            full = _offsets(pending) >= what.offsets_max
            if pending and (full or (now - moved > _FOLLOW_S if follow else not more)):
                more_rows, more_timeless = _write(driver, folder, what, pending)
                done = Exported(done.rows + more_rows, done.timeless + more_timeless)
                progress(done.rows)
                pending, moved = [], now
            if more:
                continue
            cause = walk.lacks(end) if end is not None else None
            if end is not None and cause is None:
                return done
            if end is not None and clock.monotonic() - moved > what.timeout_s:
                raise TimedOut(f"the order did not go on for {what.timeout_s:g} s: {cause}")
            walk.wait(_PAUSE_S)


def _offsets(pieces: Sequence[Piece]) -> int:
    return sum(piece.next - piece.first for piece in pieces)


def _write(driver: Driver, folder: Path, what: Export, pieces: Sequence[Piece]) -> Exported:
    """Write pieces as files, one for each epoch; count the rows."""
    rows_written = timeless = 0
    for epoch in sorted({piece.epoch for piece in pieces}):
        batches = [
            record_batch(part, rows, schema())
            for part in slices(
                [piece for piece in pieces if piece.epoch == epoch], what.offsets_max
            )
            for rows in read(driver, part, timeout_s=what.timeout_s)
        ]
        if not batches:
            continue
        table = pyarrow().Table.from_batches(batches).sort_by("position")
        first, last = table["position"][0].as_py(), table["position"][-1].as_py()
        _store(folder / f"E{epoch:09}-P{first:019}-P{last:019}.parquet", table)
        rows_written += table.num_rows
        timeless += table["timestamp"].null_count
    return Exported(rows_written, timeless)


def _store(path: Path, table: Any) -> None:
    """Write a file under another name, and rename it once the disk has it."""
    unfinished = path.with_name(f"_{path.name}{_UNFINISHED}")
    with unfinished.open("wb") as file:
        pyarrow("pyarrow.parquet").write_table(table, file)
        file.flush()
        os.fsync(file.fileno())
    unfinished.rename(path)
    sync_folder(path.parent)
