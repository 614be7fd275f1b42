"""Blocks with parts of bundles, read and verified by Fabric's SDKs for Java, JavaScript, Python.

The blocks are those of `tests/ordering_osn/chain/test_bundle_blocks.py`, which compares them with
the bytes that a peer demands. Here the SDKs' parsers take them apart, and the SDKs' own hashes and
keys verify them (`tests/system/clients/*/blocks.*`). They know Fabric's fields only.
"""

import hashlib
import itertools
import json
import subprocess
from pathlib import Path

import pytest

from ordering_osn.chain.blocks import consenter_of, header_hash
from ordering_osn.chain.transactions import transaction_id
from tests.ordering_osn.helpers.bundle_blocks import NAME, cut, expected
from tests.ordering_osn.helpers.chains import ORDERERS
from tests.system.clients import installed

# The first run fetches the SDKs.
pytestmark = pytest.mark.timeout(900)

READ_S = 120.0
AUTHORITY = ORDERERS / "ca/ca.example.com-cert.pem"
PROGRAMS = {"java": "Blocks.java", "javascript": "blocks.js", "python": "blocks.py"}
EACH = [
    pytest.param(client, marks=[pytest.mark.needs(what) for what in installed.NEEDS[client]])
    for client in PROGRAMS
]


@pytest.fixture(scope="module")
def blocks():
    return cut()[1:]


def command(client):
    """The client's command line, for its program that reads blocks."""
    *start, program = getattr(installed, client)()
    given = [AUTHORITY] if client == "java" else []
    return [*start, *map(str, [Path(program).with_name(PROGRAMS[client]), *given])]


def described(client, blocks, folder):
    files = []
    for block in blocks:
        files.append(folder / f"block.{block.header.number}")
        files[-1].write_bytes(block.SerializeToString())
    done = subprocess.run(
        [*command(client), *map(str, files)],
        capture_output=True,
        text=True,
        timeout=READ_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def fields(block):
    """Fabric's three fields of the block's KafkaMetadata."""
    consenter = consenter_of(block)
    return [
        consenter.last_offset_persisted,
        consenter.last_original_offset_processed,
        consenter.last_resubmitted_config_offset,
    ]


@pytest.mark.parametrize("client", EACH)
def test_an_sdk_reads_and_verifies_a_block_with_parts_as_any_other(client, blocks, tmp_path):
    got = described(client, blocks, tmp_path)
    assert got == [
        {
            "number": block.header.number,
            "previous_hash": block.header.previous_hash.hex(),
            "header_hash": header_hash(block.header).hex(),
            "data_hash": block.header.data_hash.hex(),
            "signed_by": "OrdererMSP",
            "last_config": 0,
            "kafka": fields(block),
            "envelopes": [hashlib.sha256(envelope).hexdigest() for envelope in sent],
            "channels": [NAME] * len(sent),
            "transactions": [transaction_id(envelope) for envelope in sent],
        }
        for block, sent in zip(blocks, expected(), strict=True)
    ]
    for before, after in itertools.pairwise(got):
        assert after["previous_hash"] == before["header_hash"]


@pytest.mark.parametrize("client", EACH)
def test_an_sdk_does_not_verify_a_block_whose_header_was_changed(client, blocks, tmp_path):
    changed = type(blocks[0]).FromString(blocks[0].SerializeToString())
    changed.header.previous_hash = bytes(32)
    (got,) = described(client, [changed], tmp_path)
    assert got["signed_by"] == ""
