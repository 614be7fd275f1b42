"""What is read anew: files that fit together, and the client CAs of the channels' configs."""

import asyncio
import re
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from multicast.errors import UsageError
from ordering_osn.api.connection_errors import ConnectionLost
from ordering_osn.api.grpc_client import NodeClient
from ordering_osn.api.metrics import Metrics
from ordering_osn.api.seek import seek_envelope
from ordering_osn.api.tls_files import FollowedFiles, TlsFiles
from ordering_osn.config.channel_config import ChannelConfig
from ordering_osn.identity import Msp
from ordering_osn.node import serving as node_serving
from ordering_osn.protos import FabricMSPConfig, MSPConfig
from tests.ordering_osn.helpers import configs
from tests.ordering_osn.helpers.chains import (
    MUTUAL_TLS,
    ORDERER_CA,
    USER,
    SmallChannel,
    SmallChannels,
    gathered,
    numbers,
    serving,
)
from tests.ordering_osn.helpers.compute_update import group_at
from tests.ordering_osn.helpers.loops import becomes
from tests.ordering_osn.helpers.pki import NODES, msp_bytes, root


@pytest.fixture
def files(tmp_path):
    """Give a certificate and its key, followed; and how to write others there."""
    paths = tmp_path / "tls.crt", tmp_path / "tls.key"

    def write(certified, *which):
        for path, pem in zip(paths, (certified.pem, certified.key_pem), strict=True):
            if path.suffix in (which or (".crt", ".key")):
                path.write_bytes(pem)
                path.chmod(0o600)

    write(root("first"))
    followed = FollowedFiles("--tls-cert", paths, lambda: TlsFiles.read(*paths))
    followed.write = write
    followed.taken = []
    followed.used.append(followed.taken.append)
    return followed


def test_files_are_read_only_when_they_have_changed_or_somebody_asks(files):
    files.renew()
    assert files.taken == []
    files.renew(anyhow=True)
    new = root("new")
    files.write(new)
    files.renew()
    files.renew()
    assert [len(files.taken), files.current, files.taken[-1].certificate] == [
        2,
        files.taken[-1],
        new.pem,
    ]


def test_what_cannot_be_used_leaves_the_last_in_force_and_is_said_once(files, caplog):
    first, new = files.current, root("new")
    files.write(new, ".crt")
    for _ in range(3):
        files.renew()
    assert (files.current, files.taken) == (first, [])
    assert "is not the key of the certificate" in files.trouble
    assert [record.getMessage() for record in caplog.records] == [files.trouble]
    files.write(new, ".key")
    files.renew()
    assert caplog.records[-1].getMessage().endswith("read anew")
    assert caplog.records[-1].levelname == "WARNING"  # which a node logs by default
    assert (files.trouble, files.current.key) == ("", new.key_pem)


def test_who_refuses_what_was_read_keeps_the_last_in_force(files):
    def refuse(_):
        raise UsageError("no channel knows it")

    first = files.current
    files.used.insert(0, refuse)
    files.write(root("new"))
    files.renew()
    assert (files.current, files.taken) == (first, [])
    assert "--tls-cert and what goes with it: no channel knows it; what was in" in files.trouble
    del files.used[0]  # a channel has learnt it
    files.renew()
    assert (len(files.taken), files.trouble) == (1, "")


def test_a_key_that_grpc_cannot_use_is_refused(tmp_path):
    channel = SmallChannel(tmp_path)
    key = ec.generate_private_key(ec.SECP256K1())
    other = root("other", key=key)

    async def run():
        async with serving(SmallChannels(channel), tls=MUTUAL_TLS) as server:
            with pytest.raises(UsageError, match="gRPC cannot use"):
                server.renew(replace(MUTUAL_TLS, certificate=other.pem, key=other.key_pem))
            assert server.tls == MUTUAL_TLS

    asyncio.run(run())
    channel.store.close()


def test_of_a_tls_authority_only_what_was_read_is_given_to_grpc():
    tail = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    definition = MSPConfig.FromString(msp_bytes([root()], nodes=NODES, tls=[root("tls")]))
    config = FabricMSPConfig.FromString(definition.config)
    config.tls_root_certs[0] += tail
    definition.config = config.SerializeToString()
    authorities = Msp(definition.SerializeToString()).tls_authorities
    assert [each.count(b"BEGIN") for each in authorities] == [1]


def test_a_key_and_a_certificate_of_different_times_are_not_used(files):
    """They are written while they are read; the next look sees them together."""
    read, new = files._read, root("new")

    def written_meanwhile():
        answer = read()
        files.write(new)
        return answer

    files.write(root("other"))
    files._read = written_meanwhile
    files.renew()
    files._read = read
    assert files.taken == []
    files.renew()
    assert [each.certificate for each in files.taken] == [new.pem]


def test_an_unforeseen_error_ends_no_looks_and_each_end_is_shown_for_its_option(
    monkeypatch, caplog
):
    looks, metrics = [], Metrics()

    def ends():
        looks.append("a look")
        if len(looks) == 1:
            raise RuntimeError("unforeseen")
        return {}

    monkeypatch.setattr(node_serving.certificates, "ends", ends)
    monkeypatch.setattr(node_serving, "_FILES_EVERY_S", 0.01)
    tls = FollowedFiles("--tls-cert", (), lambda: MUTUAL_TLS)
    signer = FollowedFiles("--msp", (), lambda: USER)
    options = node_serving.Options(Path(), ("", 0), None, signer, tls, operations_tls=tls)

    async def run():
        watch = asyncio.create_task(node_serving._watch_files(options, metrics, asyncio.Event()))
        await becomes(lambda: len(looks) > 1)
        watch.cancel()

    asyncio.run(run())
    assert "looking at keys and certificates failed" in caplog.text
    shown = set(re.findall(r'expiry_timestamp_seconds{option="(.+?)"', metrics.expose().decode()))
    assert shown == {"--msp", "--tls-cert", "--client-ca"}


def test_client_authorities_follow_the_channels_config(tmp_path):
    channel, authority = SmallChannel(tmp_path), root("tls")

    def with_authority(config):
        group = configs.organisation(root(), "Org2MSP")
        group.values["MSP"].value = msp_bytes(
            [root()], name="Org2MSP", nodes=NODES, tls=[authority]
        )
        group_at(config, "Application").groups["Org2MSP"].CopyFrom(group)

    member = authority.issue("member")
    tls = TlsFiles(member.pem, member.key_pem, ORDERER_CA.read_bytes())
    request = seek_envelope(USER, "chain-a", "oldest", "oldest", tls_hash=tls.tls_hash)

    async def ask(server):
        address = f"127.0.0.1:{server.port}"
        async with NodeClient(address, tls=tls, name="orderer.example.com") as client:
            return numbers(await gathered(client.deliver(request)))

    async def run():
        async with serving(SmallChannels(channel), tls=MUTUAL_TLS) as server:
            with pytest.raises(ConnectionLost):
                await ask(server)
            before = channel.config
            channel.config = ChannelConfig("chain-a", configs.changed(before, with_authority))
            assert await ask(server) == ["block 0", 200]
            channel.config = before  # an organisation that is removed is let in no more
            with pytest.raises(ConnectionLost):
                await ask(server)

    asyncio.run(run())
    channel.store.close()
