"""`amcast osn bundle`, `broadcast-multi` and `status`, against nodes that follow a script."""

import pytest

from multicast.errors import AmcastError, UsageError
from ordering_osn.chain.bundles.bundle import read_bundle
from ordering_osn.cli.length_prefixed import frames
from tests.ordering_osn.helpers.chains import transaction
from tests.ordering_osn.helpers.commands import READER, amcast, lines
from tests.ordering_osn.helpers.multi import AB, ScriptedNode, World, scripted_elsewhere, void


@pytest.fixture
def parts(tmp_path):
    """A file with an envelope for each chain: one serialized, one as a frame."""
    given = []
    for chain in AB:
        raw = transaction(chain=chain)
        file = tmp_path / f"{chain}.envelope"
        file.write_bytes(raw if chain == "chain-a" else len(raw).to_bytes(4, "big") + raw)
        given += ["--part", f"{chain}={file}"]
    return given


@pytest.fixture
def made(tmp_path, parts):
    """A file with two bundles, and the bundles."""
    files = [tmp_path / "one", tmp_path / "other"]
    for file in files:
        amcast("osn", "bundle", *parts, *READER, "--out", file)
    both = tmp_path / "both"
    both.write_bytes(b"".join(file.read_bytes() for file in files))
    return both, [read_bundle(raw) for raw in frames(both)]


def test_a_bundle_is_made_of_files_and_each_time_another(made, tmp_path, parts, capsys):
    _, bundles = made
    amcast("osn", "bundle", *parts, *READER, "--out", tmp_path / "third", "--expiry", "9")
    (raw,) = frames(tmp_path / "third")
    third = read_bundle(raw)
    assert (third.chains, third.expiry) == (AB, 9)
    assert len({each.id for each in (*bundles, third)}) == 3
    assert third.id.hex() in capsys.readouterr().err


def test_a_bundle_expires_so_many_records_behind_the_end_that_a_node_says(tmp_path, parts, capsys):
    words = ("osn", "bundle", *parts, *READER, "--out", tmp_path / "out")
    with scripted_elsewhere(ScriptedNode(World())) as (address,):
        amcast(*words, "--expires-in", 10, "--node", address)
    (raw,) = frames(tmp_path / "out")
    assert read_bundle(raw).expiry == 49
    assert capsys.readouterr().err.endswith("for chain-a, chain-b, until offset 49\n")
    for wrong in (["--expires-in", 5], ["--expires-in", 5, "--expiry", 7, "--node", address]):
        with pytest.raises(UsageError, match="--expires-in needs a --node to ask, and no --expiry"):
            amcast(*words, *wrong)
    with pytest.raises(UsageError, match="at least 1 record, not in 0"):
        amcast(*words, "--expires-in", 0, "--node", address)


def test_bundles_are_sent_and_awaited(made, capsys):
    file, bundles = made
    with scripted_elsewhere(ScriptedNode(World())) as (address,):
        amcast("osn", "broadcast-multi", file, "--node", address, *READER)
        sent = lines(capsys)
        amcast("osn", "broadcast-multi", file, "--node", address, *READER, "--wait")
        waited = lines(capsys)
        amcast("osn", "status", bundles[1].id.hex(), "--node", address, *READER)
        (asked,) = lines(capsys)
    ids = [bundle.id.hex() for bundle in bundles]
    assert [(row["bundle"], row["status"]) for row in sent] == [(each, 200) for each in ids]
    assert [row["bundle"] for row in waited] == ids
    places = {chain: {"block": 7, "index": 1} for chain in AB}
    assert [(row["fate"], row["places"]) for row in waited] == [("committed", places)] * 2
    assert asked == {"bundle": ids[1], "fate": "committed", "places": places}


def test_a_refused_bundle_and_a_void_one_end_with_an_error_after_all_were_sent(made, capsys):
    file, bundles = made
    with (
        scripted_elsewhere(ScriptedNode(World(), ["refuse"])) as (address,),
        pytest.raises(AmcastError, match="1 of 2 bundles failed; the first: ") as refused,
    ):
        amcast("osn", "broadcast-multi", file, "--node", address, *READER, "--wait")
    assert refused.value.exit_code == 1
    first, second = lines(capsys)
    assert (first["status"], second["fate"]) == (403, "committed")

    world = World(fate=void("EXPIRED"))
    with scripted_elsewhere(ScriptedNode(world)) as (address,):
        with pytest.raises(AmcastError, match="2 of 2 bundles failed"):
            amcast("osn", "broadcast-multi", file, "--node", address, *READER, "--wait")
        assert [row["fate"] for row in lines(capsys)] == ["void", "void"]
        amcast("osn", "status", bundles[0].id.hex(), "--node", address, *READER)
    assert lines(capsys) == [
        {"bundle": bundles[0].id.hex(), "fate": "void", "reason": "EXPIRED", "chain": ""}
    ]


def test_a_file_of_other_frames_and_a_wrong_id_are_refused_before_anything_is_sent(tmp_path):
    file = tmp_path / "frames"
    file.write_bytes((5).to_bytes(4, "big") + b"hello")
    with pytest.raises(UsageError, match="frame 1 is not a bundle"):
        amcast("osn", "broadcast-multi", file, "--node", "127.0.0.1:1", *READER)
    with pytest.raises(UsageError, match="is not a file"):
        amcast("osn", "broadcast-multi", tmp_path / "no", "--node", "127.0.0.1:1", *READER)
    for wrong in ("abc", "ff", "x" * 64):
        with pytest.raises(UsageError, match="is not a bundle ID: give 64 hex digits"):
            amcast("osn", "status", wrong, "--node", "127.0.0.1:1", *READER)
