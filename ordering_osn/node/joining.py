"""The folder of a node's chains: puts a chain's genesis block there, and names its files.

`FOLDER/NAME/genesis.block` is written as a whole or not at all; to put it there twice is the same
as once. `registrar.py` starts the chain from there, in this process or another.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

from multicast.errors import Conflict, UsageError
from ordering_osn.chain.blockcutter import BLOCK_BYTES_MAX
from ordering_osn.chain.blocks import BrokenChain, check_next, new_block
from ordering_osn.config.channel_config import ChannelConfig, InvalidConfig
from ordering_osn.config.configtx import InvalidUpdate, check_channel_id
from ordering_osn.protos import Block, DecodeError
from ordering_osn.quoting import quoted
from topology.documents import json_object
from topology.files import sync_folder, write_bytes, write_text

GENESIS = "genesis.block"
_LEDGER = "ledger"
_TOPIC = "topic.json"
# Peers since Fabric 3.0 pull blocks of these types only (`StartDeliverForChannel`).
_TYPES_PULLED = ("etcdraft", "BFT")
_log = logging.getLogger("amcast.osn")


def join(folder: Path, raw: bytes) -> str:
    """Put the chain of this genesis block into a node's folder; give the chain's name.

    Raises `UsageError` where `raw` is not the genesis block of a channel or the folder cannot be
    written, and `Conflict` where the folder has this chain with another genesis block.
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


def warn_of_type(config: ChannelConfig) -> None:
    """Log a warning where newer peers would never pull the blocks of a channel."""
    kind = config.orderer["ConsensusType"].type
    if kind not in _TYPES_PULLED:
        says = "channel %s has the OrdererType %s: peers of Fabric 3.0 and later never pull its "
        says += "blocks, and say nothing; they need etcdraft (docs/ordering.md)"
        _log.warning(says, config.channel_id, quoted(kind))


def warn_of_size(config: ChannelConfig, received_max: int) -> None:
    """Log a warning where a channel allows messages that the node's server does not take.

    gRPC takes a limit only when a server starts. The most would let strangers fill the memory.
    """
    allowed = min(config.parameters.bytes_absolute, BLOCK_BYTES_MAX)
    if allowed > received_max:
        says = "channel %s allows messages of %d bytes, and this node has taken messages of %d at "
        says += "most since it started (RESOURCE_EXHAUSTED above): restart it"
        _log.warning(says, config.channel_id, allowed, received_max)


def place_created(folder: Path, name: str, envelope: bytes) -> None:
    """Put a chain that the system channel created into a node's folder.

    Its block 0 holds the CONFIG envelope and nothing else, so it is the same at all nodes.
    """
    raw: bytes = new_block(0, b"", [envelope]).SerializeToString()
    _place(folder, name, raw)


def joined(folder: Path) -> list[str]:
    """List the chains of a node's folder, sorted: those that have a genesis block or a ledger."""
    return sorted(
        {path.parent.name for name in (GENESIS, _LEDGER) for path in folder.glob(f"*/{name}")}
    )


def genesis_of(folder: Path, name: str) -> bytes:
    """Read a chain's genesis block; raises `UsageError` where there is none."""
    missing = genesis_missing(folder, name)
    if missing is not None:
        raise UsageError(missing)
    return (folder / name / GENESIS).read_bytes()


def genesis_missing(folder: Path, name: str) -> str | None:
    """Say that a chain has no genesis block any more, so that no node runs it; None: it has."""
    genesis = folder / name / GENESIS
    if genesis.exists():
        return None
    return (
        f"{genesis} is missing, but the chain has a ledger; add the same genesis block again with "
        f"'amcast osn join', or remove {genesis.parent} if this node is to leave the channel"
    )


def ledger_folder(folder: Path, name: str) -> Path:
    """Give the folder of a chain's blocks."""
    return folder / name / _LEDGER


def checkpoint_file(folder: Path, name: str) -> Path:
    """Give the file of a chain's idle checkpoint (`checkpoint.py`)."""
    return folder / name / "rest.json"


def refuse_other_topic(chain_folder: Path, topic: str, topic_id: str) -> None:
    """Raise `Conflict` where a chain's blocks are made of another topic's records.

    A topic that was deleted and made again has the same name, but another ID and other records:
    blocks made of them would not be those of the other nodes.
    """
    try:
        known = json_object((chain_folder / _TOPIC).read_bytes()).get("topic_id")
    except (OSError, ValueError):
        return
    if known != topic_id:
        raise Conflict(
            f"the blocks in {chain_folder} are made of the records of another topic than {topic} "
            f"is now: it was deleted and made again, or another topic or cluster was meant; "
            f"connect to that one, or stop the node, remove the folder and join the channel anew"
        )


def note_topic(chain_folder: Path, topic: str, topic_id: str) -> None:
    """Note of which topic's records a chain's blocks are made, for `refuse_other_topic`."""
    file = chain_folder / _TOPIC
    try:
        write_text(file, json.dumps({"topic": topic, "topic_id": topic_id}), force=True)
    except OSError as error:  # only that check is missing then
        _log.warning("%s cannot be written: %s", file, error)


def _place(folder: Path, name: str, raw: bytes) -> None:
    genesis = folder / name / GENESIS
    if genesis.exists():
        if genesis.read_bytes() != raw:
            raise Conflict(f"{folder} has the chain {name} with another genesis block")
        return
    genesis.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_bytes(genesis, raw, force=True)
    for parent in (genesis.parent, folder):  # the file names, too, must survive a loss of power
        sync_folder(parent)
