"""`amcast osn deliver` with several channels, at real nodes on a log in memory."""

import json

import pytest

from multicast.errors import AmcastError, UsageError
from ordering_osn.cli.length_prefixed import frames
from ordering_osn.wire.multichain_pb2 import MultiEntry
from tests.helpers.small import until
from tests.ordering_osn.helpers.bundle_nodes import A, B, C, Clients, bundle_for, quick_chains
from tests.ordering_osn.helpers.commands import READER, amcast, at_nodes, lines
from tests.ordering_osn.helpers.small import Nodes, chains_plan, healthy, ordered, transaction

pytestmark = pytest.mark.slow
# A reader of a and b is declared, one of all three is not.
READ = chains_plan(A, B, C, spanning=[(A, B), (B, C)], readers=[(A, B)])


def deliver(nodes, *words, chains=(A, B)):
    """Run `osn deliver` while these nodes serve; raises its error."""

    def ask(*addresses):
        where = [flag for address in addresses for flag in ("--node", address)]
        which = [flag for chain in chains for flag in ("-c", chain)]
        amcast("osn", "deliver", *where, *which, *READER, *words)

    at_nodes(nodes, ask)


def refused(nodes, *words, kind=AmcastError, **options):
    """Give the one sentence, and the exit code, with which the command ends."""
    with pytest.raises(kind) as caught:
        deliver(nodes, *words, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value), caught.value.exit_code


@pytest.fixture
def filled(tmp_path):
    """Two nodes with three bundles and six transactions in the chains a and b."""
    with Nodes(READ, tmp_path) as osn, Clients() as clients:
        raws = quick_chains(A, B, C)
        nodes = [osn.start(name, *raws) for name in ("n1", "n2")]
        healthy(*nodes)
        bundles = [bundle_for(A, B), bundle_for(A, B), bundle_for(B, C)]
        clients.accepted(nodes[0], *bundles)
        clients.broadcast(nodes[0], *(transaction(chain) for chain in (A, B) * 3))
        for node in nodes:
            clients.committed(node, *bundles)
            for chain, count in ((A, 5), (B, 6)):
                until(lambda n=node, c=chain, k=count: len(ordered(n, c)) == k)
        yield osn, nodes, bundles


def test_the_entries_up_to_newest_and_the_rest_behind_each_cursor(filled, capsys):
    _, nodes, bundles = filled
    deliver(nodes[:1])
    rows = lines(capsys)
    assert len(rows) == 9
    assert {row["bundle"] for row in rows} == {made.id.hex() for made in bundles} | {None}
    for row in rows:
        of_bundle = row["bundle"] is not None
        assert len(row["channels"]) == (2 if of_bundle else 1)
        # A bundle of b and c has one part that this reader asked for.
        assert [each["channel"] for each in row["transactions"]] == [
            chain for chain in row["channels"] if chain != C
        ]
        assert row["problems"] == []
    for chain, count in ((A, 5), (B, 6)):  # each in the order of its blocks, each place once
        places = [
            (each["block"], each["index"])
            for row in rows
            for each in row["transactions"]
            if each["channel"] == chain
        ]
        assert places == sorted(set(places))
        assert len(places) == count
    for number in (0, 4, 8):
        deliver(nodes[1:], "--start", rows[number]["cursor"])
        assert lines(capsys) == rows[number + 1 :]


def test_raw_entries_are_frames_with_their_cursor(filled, capsysbinary, tmp_path):
    _, nodes, _ = filled
    deliver(nodes[:1], "--raw")
    file = tmp_path / "raw"
    file.write_bytes(capsysbinary.readouterr().out)
    entries = [MultiEntry.FromString(raw) for raw in frames(file)]
    deliver(nodes[:1])
    rows = [json.loads(line) for line in capsysbinary.readouterr().out.splitlines()]
    assert [entry.cursor.hex() for entry in entries] == [row["cursor"] for row in rows]
    assert {(part.place.chain, part.envelope) for entry in entries for part in entry.parts} == {
        (chain, raw) for chain in (A, B) for raw in ordered(nodes[0], chain)
    }


def test_what_a_node_cannot_read_together_is_refused_with_the_remedy(filled):
    _, nodes, _ = filled
    text, code = refused(nodes[:1], chains=(A, C))
    assert code == 1
    assert text == (
        f"the node answered 404 (NOT_FOUND): no collector orders all of {A}, {C}; add "
        f'["{A}", "{C}"] to \'readers\' in the chain file, or a consumer of them to the interest '
        "file, then run 'amcast topology plan --from-cluster' and 'amcast topology apply'"
    )


@pytest.mark.parametrize(
    ("chains", "words", "text"),
    [
        ((A, B, A), [], f"--channel names '{A}' twice; name each channel once"),
        ((A, A), [], f"--channel names '{A}' twice; name each channel once"),
        (
            (A, B),
            ["--start", "next"],
            "'next' is no start for several channels: give oldest, newest, or the cursor of",
        ),
        ((A, B), ["--stop", "7"], "'7' is no stop for several channels: give newest or never"),
    ],
)
def test_wrong_use_is_refused_before_a_node_is_asked(chains, words, text):
    which = [flag for chain in chains for flag in ("-c", chain)]
    with pytest.raises(UsageError) as caught:
        amcast("osn", "deliver", "-n", "127.0.0.1:1", *which, *READER, *words)
    assert str(caught.value).startswith(text)
