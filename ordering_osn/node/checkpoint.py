"""Where a chain stood when nothing was pending, in a file beside its ledger.

Goes in and comes out: a `chain.Rest`. The ledger's last block says where the log is read on, and
that is enough for as long as the log holds what follows. An idle chain has records behind its last
block that led to no block (a time-to-cut that came late, a replay); the log drops them one day,
and then only this file knows that nothing was missed.

A file that is torn, missing, or of other blocks says nothing, and does no harm.
"""

from __future__ import annotations

import json
from pathlib import Path

from ordering_osn.chain.chain import Rest, StreamPosition
from topology.documents import json_object

SCHEMA_VERSION = 1


def write_rest(file: Path, rest: Rest) -> None:
    """Write the file anew, whole or not at all."""
    document = {
        "schema_version": SCHEMA_VERSION,
        "height": rest.height,
        "previous_hash": rest.previous_hash.hex(),
        "position": rest.place.position,
        "cursor": str(rest.place.cursor),
        "last_original": rest.last_original,
        "last_resubmitted_config": rest.last_resubmitted_config,
    }
    unfinished = file.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(document), encoding="utf-8")
    unfinished.replace(file)


def read_rest(file: Path) -> Rest | None:
    """Read the file; None where it says nothing."""
    try:
        document = json_object(file.read_bytes())
        if document["schema_version"] != SCHEMA_VERSION:
            return None
        return Rest(
            int(document["height"]),
            bytes.fromhex(document["previous_hash"]),
            StreamPosition(int(document["position"]), str(document["cursor"])),
            int(document["last_original"]),
            int(document["last_resubmitted_config"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
