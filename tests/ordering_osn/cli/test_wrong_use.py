"""Wrong use of `amcast osn`: each is refused with one sentence that names the fault."""

import asyncio
import socket

import pytest

from multicast.errors import AmcastError, TimedOut, UsageError
from multicast.settings import Settings
from ordering_osn.api.grpc_server import Server
from ordering_osn.api.tls_files import FollowedFiles
from ordering_osn.cli.length_prefixed import check_frames
from ordering_osn.identity import SigningIdentity
from ordering_osn.node.joining import join
from ordering_osn.node.kafka_connection import KafkaConnection
from ordering_osn.node.registrar import Registrar
from ordering_osn.node.serving import Options, serve
from tests.helpers.small import Small, until
from tests.ordering_osn.helpers import configs
from tests.ordering_osn.helpers.chains import (
    FABRIC,
    ORDERER,
    ORDERER_FOLDER,
    STRANGER,
    SmallChannel,
    SmallChannels,
    served,
)
from tests.ordering_osn.helpers.commands import READER, amcast, at_nodes, envelope_file, lines
from tests.ordering_osn.helpers.configs import real_envelopes
from tests.ordering_osn.helpers.small import LONE, genesis, quick, submit
from tests.ordering_osn.helpers.small import transaction as small_transaction

NODE = ["--msp", str(ORDERER_FOLDER / "msp"), "--msp-id", "OrdererMSP"]


def refused(*words):
    """Return the sentence with which a command refuses its arguments, with exit code 2."""
    with pytest.raises(UsageError) as caught:
        amcast("osn", *words)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def channels(tmp_path):
    channel = SmallChannel(tmp_path / "ledgers")
    yield SmallChannels(channel)
    channel.store.close()


# A node that cannot run.


def options(folder, signer=ORDERER):
    return Options(folder, ("127.0.0.1", 0), None, FollowedFiles("--msp", (), lambda: signer))


def not_served(chosen):
    """Return the error that keeps a node from running; a running node is stopped after 30 s."""
    with pytest.raises(UsageError) as caught:
        asyncio.run(
            asyncio.wait_for(serve(Settings("127.0.0.1:1", "A"), chosen, lambda _: None), 30)
        )
    return str(caught.value)


def test_a_node_whose_folder_is_a_file_or_cannot_be_made_does_not_run(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"")
    assert not_served(options(file)) == f"{file} is a file, not a node's folder"
    assert not_served(options(file / "node")) == f"{file / 'node'} cannot be made: Not a directory"


def test_a_node_of_an_organisation_that_no_channel_knows_as_orderer_does_not_run(tmp_path):
    join(tmp_path, (FABRIC / "chain-a.block").read_bytes())
    stranger = SigningIdentity.load(ORDERER_FOLDER / "msp", "NobodysMSP")
    said = not_served(options(tmp_path, signer=stranger))
    assert "channel chain-a knows no orderers of the MSP ID 'NobodysMSP', only of Orderer" in said


def test_a_node_whose_certificate_is_not_of_its_organisation_does_not_run(tmp_path):
    join(tmp_path, (FABRIC / "chain-a.block").read_bytes())
    said = not_served(options(tmp_path, signer=STRANGER))
    assert "peers of channel chain-a accept no block that this node signs" in said
    assert "give the --msp and --msp-id of an orderer of this channel" in said


def test_a_channel_of_other_orderers_that_comes_while_a_node_runs_is_not_run(tmp_path):
    stranger = SigningIdentity.load(ORDERER_FOLDER / "msp", "NobodysMSP")
    with Small(LONE) as small:
        cluster = KafkaConnection(lambda: small.driver, LONE.topic)
        node = Registrar(tmp_path, cluster, stranger, look_s=0.02)
        node.start()
        try:
            assert node.health() == []
            join(tmp_path, quick())
            until(lambda: "knows no orderers of the MSP ID 'NobodysMSP'" in str(node.health()))
            ((status, _),) = submit(node, small_transaction())
            assert status == 503
        finally:
            node.stop()


@pytest.mark.parametrize("host", ["127.0.0.1", "192.0.2.1", "no.such.host.invalid"])
def test_an_address_that_nobody_can_listen_at_is_named_with_the_reason(host, channels, capfd):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = Server(channels, host=host, port=taken.getsockname()[1])
        with pytest.raises(UsageError) as caught:
            asyncio.run(server.start())
    assert f"cannot be served at {host}" in str(caught.value)
    assert "Failed to bind" not in str(caught.value)
    # gRPC itself printed nothing: each of its lines names a file of its source.
    assert ".cc:" not in capfd.readouterr().err


@pytest.mark.parametrize("address", ["node1", "node1:", ":7050", "node1:65536", "::1", "[::1]"])
def test_an_address_without_a_port_is_refused_and_not_taken_for_that_of_port_443(address, tmp_path):
    named = f"{address!r} is not an address; give HOST:PORT"
    file = tmp_path / "none"
    file.write_bytes(b"")
    ask = ("-n", address, *READER)
    assert refused("deliver", "-c", "chain-a", *ask).startswith(named)
    assert refused("deliver", "-c", "chain-a", "-c", "chain-b", *ask).startswith(named)
    assert refused("broadcast", "--wait", file, *ask).startswith(named)
    assert refused("broadcast-multi", file, *ask).startswith(named)
    assert refused("status", "00" * 32, *ask).startswith(named)
    node = ("run", "--folder", tmp_path, *NODE)
    assert refused(*node, "--peer", address).startswith(named)
    assert refused(*node, "--listen", address).startswith(named)


def test_a_block_that_is_none_is_refused():
    ask = ("deliver", "--node", "127.0.0.1:1", "-c", "chain-a", *READER)
    assert "is not a block" in refused(*ask, "--start", 2**64)


# Folders and files.


def test_a_file_of_envelopes_that_was_cut_off_is_named_before_a_node_is_asked(tmp_path):
    file = tmp_path / "envelopes"
    envelope_file(file, real_envelopes()[:3])
    raw = file.read_bytes()
    for cut, text in ((5, "ends within frame 3"), (len(real_envelopes()[2]) + 2, "no length")):
        file.write_bytes(raw[:-cut])
        sentence = refused("broadcast", "--node", "127.0.0.1:1", file)
        assert sentence.startswith(str(file))
        assert text in sentence
    file.write_bytes(raw)
    check_frames(file)


def test_what_stood_before_the_end_of_a_torn_pipe_is_answered_and_then_the_pipe_is_named(channels):
    def torn():
        yield from real_envelopes()[:3]
        raise UsageError("standard input ends within frame 4")

    statuses = []

    async def ask():
        async with served(channels) as client:
            async for status, _ in client.broadcast(torn(), timeout_s=60):
                statuses.append(status)

    with pytest.raises(UsageError, match="standard input ends"):
        asyncio.run(ask())
    assert statuses == [200] * 3


@pytest.mark.parametrize(
    ("kind", "warned"), [("solo", True), ("kafka", True), ("etcdraft", False), ("BFT", False)]
)
def test_join_warns_of_a_type_whose_blocks_newer_peers_never_pull(tmp_path, caplog, kind, warned):
    config = configs.changed(configs.genesis(), lambda new: configs.set_consensus(new, kind))
    block = tmp_path / "genesis.block"
    block.write_bytes(genesis(config, "chain-a"))
    amcast("osn", "join", "--genesis-block", block, "--folder", tmp_path / "node")
    assert (f"has the OrdererType '{kind}'" in caplog.text) == warned


# Refusals of a node.


@pytest.mark.parametrize(
    ("channel", "start", "answer"),
    [
        ("chain-x", "oldest", "404 (NOT_FOUND): this node has no channel 'chain-x'"),
        ("chain-a", "7", "404 (NOT_FOUND): there is no block 7: the next one is 1"),
    ],
)
def test_deliver_says_what_is_missing(channels, channel, start, answer):
    def ask(address):
        with pytest.raises(AmcastError) as caught:
            amcast("osn", "deliver", "-n", address, "-c", channel, *READER, "--start", start)
        return caught.value

    error = at_nodes([channels], ask)
    assert str(error) == f"the node answered {answer}"
    assert error.exit_code == 1


class Slow(SmallChannels):
    """Chains that accept envelopes, but order none."""

    async def submit(self, envelope):
        self.submitted.append(envelope)
        return 200, ""


def test_a_transaction_that_is_not_ordered_in_time_ends_the_wait_with_4(tmp_path, capsys):
    async def in_no_block(*_):
        return None

    channel = SmallChannel(tmp_path / "ledgers")
    channel.receipt = in_no_block
    file = envelope_file(tmp_path / "envelopes", real_envelopes()[:2])

    def ask(address):
        with pytest.raises(TimedOut) as caught:
            amcast("osn", "broadcast", file, "-n", address, *READER, "--wait", "--timeout", 30)
        return caught.value

    error = at_nodes([Slow(channel)], ask)
    assert error.exit_code == 4
    assert "was accepted, but was in no block of chain-a within 30 s" in str(error)
    (row,) = lines(capsys)
    assert row["status"] == 404
    channel.store.close()
