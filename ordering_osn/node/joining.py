"""The folder of a node's chains: how one comes to stand in it.

Goes in: genesis blocks. Comes out: `FOLDER/NAME/genesis.block`, whole or not at all; what is done
twice is done once. The chain is started from there, by `registrar.py`, in this process or another.
"""

from __future__ import annotations

import os
from pathlib import Path

from multicast.errors import Conflict, UsageError
from ordering_osn.chain.blocks import BrokenChain, check_next, new_block
from ordering_osn.config.channel_config import ChannelConfig, InvalidConfig
from ordering_osn.config.configtx import InvalidUpdate, check_channel_id
from ordering_osn.protos import Block, DecodeError

GENESIS = "genesis.block"


def join(folder: Path, raw: bytes) -> str:
    """Put the chain of this genesis block into a node's folder; give its name.

    Raises `UsageError` for what is no genesis block of a channel, or a folder that cannot be
    written, and `Conflict` where the folder has the chain with another one.
    """
    try:
        block = Block.FromString(raw)
        check_next(block, None)
        name = ChannelConfig.from_block(raw).channel_id
        check_channel_id(name)
    except (DecodeError, BrokenChain, InvalidConfig, InvalidUpdate) as error:
        raise UsageError(f"this is no genesis block of a channel: {error}") from error
    try:
        _place(folder, name, raw)
    except OSError as error:
        where = error.filename or folder
        raise UsageError(f"{where} cannot be written: {error.strerror}") from error
    return name


def place_created(folder: Path, name: str, envelope: bytes) -> None:
    """Put a chain that the system channel created into a node's folder.

    Its block 0 holds the CONFIG envelope and nothing else, so it is the same at all nodes.
    """
    raw: bytes = new_block(0, b"", [envelope]).SerializeToString()
    _place(folder, name, raw)


def joined(folder: Path) -> list[str]:
    """List the chains of a node's folder, sorted."""
    return sorted(found.parent.name for found in folder.glob(f"*/{GENESIS}"))


def genesis_of(folder: Path, name: str) -> bytes:
    """Read a chain's genesis block."""
    return (folder / name / GENESIS).read_bytes()


def ledger_folder(folder: Path, name: str) -> Path:
    """Say where a chain's blocks are."""
    return folder / name / "ledger"


def rest_file(folder: Path, name: str) -> Path:
    """Say where it stands how far an idle chain has read (`checkpoint.py`)."""
    return folder / name / "rest.json"


def _place(folder: Path, name: str, raw: bytes) -> None:
    place = folder / name / GENESIS
    if place.exists():
        if place.read_bytes() != raw:
            raise Conflict(f"chain {name} stands in {folder} with another genesis block")
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    unfinished = place.with_suffix(".unfinished")
    with unfinished.open("wb") as out:
        out.write(raw)
        out.flush()
        os.fsync(out.fileno())
    unfinished.replace(place)
    for held in (place.parent, folder):  # the names, too, are to outlive a loss of power
        handle = os.open(held, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
