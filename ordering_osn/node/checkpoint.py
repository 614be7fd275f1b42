"""The idle checkpoint of a chain, in a file beside its ledger.

The newest block says from where the log is read on. That is enough while the log still holds what
follows. An idle chain reads records that lead to no block (a late time-to-cut, a replay); once the
log has dropped these, only this file shows that the node missed nothing.

A file that is torn, missing, or of other blocks has no effect, and does no harm.
"""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path

from ordering_osn.chain.chain import Chain
from ordering_osn.chain.state import IdleCheckpoint, StreamPosition
from topology.documents import json_object
from topology.files import write_text

SCHEMA_VERSION = 2  # of the file; a file of another version has no effect
_log = logging.getLogger("amcast.osn")


class CheckpointFile:
    """The file with one chain's idle checkpoint. For the chain's thread only."""

    def __init__(self, chain: str, path: Path) -> None:
        self._chain = chain
        self._path = path
        self._saved_number: int | None = None  # the position that this process wrote last
        self._saved_at = 0.0

    def read(self) -> IdleCheckpoint | None:
        """Read the file; None where it says nothing."""
        return read_checkpoint(self._path)

    def discard(self) -> None:
        """Remove the file: the chain no longer goes on from there."""
        self._path.unlink(missing_ok=True)

    def save(self, chain: Chain, *, every_s: float) -> None:
        """Write the position of a chain where nothing is pending and it has moved.

        Writes no more often than every `every_s` seconds. A failure to write is logged only:
        without the file more of the log is read again.
        """
        now = time.monotonic()
        checkpoint = chain.idle_checkpoint()
        if checkpoint is None or now - self._saved_at < every_s:
            return
        number = checkpoint.position.number
        if number == self._saved_number:
            return
        try:
            write_checkpoint(self._path, checkpoint)
        except OSError as error:
            _log.warning("chain %s: %s: %s", self._chain, self._path, error)
        self._saved_number, self._saved_at = number, now


def write_checkpoint(path: Path, checkpoint: IdleCheckpoint) -> None:
    """Replace the file, as a whole or not at all. Raises `OSError`."""
    document = {
        "schema_version": SCHEMA_VERSION,
        "height": checkpoint.height,
        "previous_hash": checkpoint.previous_hash.hex(),
        "position": checkpoint.position.number,
        "cursor": str(checkpoint.position.cursor),
        "last_original": checkpoint.last_original,
        "last_resubmitted_config": checkpoint.last_resubmitted_config,
        "set_heads": [head.hex() for head in checkpoint.heads],
    }
    write_text(path, json.dumps(document), force=True)


def read_checkpoint(path: Path) -> IdleCheckpoint | None:
    """Read the file; None where it says nothing."""
    try:
        document = json_object(path.read_bytes())
        if document["schema_version"] != SCHEMA_VERSION:
            return None
        return IdleCheckpoint(
            int(document["height"]),
            bytes.fromhex(document["previous_hash"]),
            StreamPosition(int(document["position"]), str(document["cursor"])),
            int(document["last_original"]),
            int(document["last_resubmitted_config"]),
            tuple(bytes.fromhex(head) for head in document["set_heads"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
