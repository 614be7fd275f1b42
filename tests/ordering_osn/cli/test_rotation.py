"""Keys, certificates and client CAs are replaced under load; a node goes on with what is usable."""

import asyncio
import os
import re
import shutil
import signal
import socket
import ssl
import threading
import urllib.request
from contextlib import contextmanager

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from multicast.drivers import certificates
from ordering_osn.api.grpc_client import NodeClient
from ordering_osn.api.seek import seek_envelope
from ordering_osn.api.tls_files import TlsFiles
from ordering_osn.node.joining import join
from ordering_osn.protos import Block, Metadata, SignatureHeader
from tests.helpers.small import until
from tests.helpers.system import System
from tests.ordering_osn.cli.test_commands import PATIENCE_S, addresses, failed_checks, node
from tests.ordering_osn.helpers.chains import ORDERER_CA, ORDERER_FOLDER, ORDERERS, USER
from tests.ordering_osn.helpers.pki import Certified, root
from tests.ordering_osn.helpers.small import chains_plan, quick, transaction

NAME = "orderer.example.com"
BEGINS = 6.9  # years after 2020: when the authorities are valid
NAMED = [(x509.SubjectAlternativeName([x509.DNSName(NAME)]), False)]


def fabric(kind):
    """Give an authority of Fabric's tools, "ca" or "tlsca", with its key."""
    (made,) = (ORDERERS / kind).glob("*.pem")
    key = load_pem_private_key((ORDERERS / kind / "priv_sk").read_bytes(), None)
    return Certified(x509.load_pem_x509_certificate(made.read_bytes()), key)


def put(file, content):
    """Replace a file as operators' tools do: at once."""
    draft = file.with_suffix(".draft")
    draft.write_bytes(content)
    draft.chmod(0o600)
    draft.rename(file)


class Folder:
    """The files of a node, which `flags` name."""

    def __init__(self, folder):
        self.msp = folder / "msp"
        shutil.copytree(ORDERER_FOLDER / "msp", self.msp)
        (self.signed,) = (self.msp / "signcerts").iterdir()
        self.certificate, self.key = folder / "server.crt", folder / "server.key"
        self.authority = folder / "clients.pem"
        for file, name in ((self.certificate, "server.crt"), (self.key, "server.key")):
            put(file, (ORDERER_FOLDER / "tls" / name).read_bytes())
        self.flags = [
            *("--msp", str(self.msp), "--client-ca", str(self.authority)),
            *("--tls-cert", str(self.certificate), "--tls-key", str(self.key)),
        ]

    def new_tls(self):
        made = fabric("tlsca").issue(NAME, extensions=NAMED)
        put(self.key, made.key_pem)
        put(self.certificate, made.pem)
        return made.der

    def new_identity(self):
        made = fabric("ca").issue(NAME, units=("orderer",), begins=BEGINS)
        put(self.msp / "keystore/new_sk", made.key_pem)
        put(self.signed, made.pem)
        return made.pem


class Load:
    """Broadcasts over ever new connections, and reads all blocks over a single one."""

    def __init__(self, address, certified):
        self.address, self.certified = address, certified
        self.sent, self.received, self.failed, self.creators = 0, 0, [], set()
        self._ended = threading.Event()

    @contextmanager
    def running(self):
        thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        thread.start()
        try:
            yield self
            until(lambda: self.failed or self.received >= self.sent > 0, PATIENCE_S)
        finally:
            self._ended.set()
            thread.join()
        assert self.failed == []

    def client(self):
        authority = ORDERER_CA.read_bytes()
        tls = TlsFiles(self.certified.pem, self.certified.key_pem, authority)
        return NodeClient(self.address, tls=tls, name=NAME), tls.tls_hash

    def goes_on(self):
        """Wait until messages sent from now on were accepted and read."""
        target = self.sent + 20
        until(lambda: self.failed or self.received >= target, PATIENCE_S)
        assert self.failed == []

    async def _run(self):
        client, tls_hash = self.client()
        request = seek_envelope(USER, "chain-a", 1, 1 << 40, tls_hash=tls_hash)
        async with client, asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(self._read(client, request))
            while not self._ended.is_set() and not self.failed:
                await self._send()
            reading.cancel()

    async def _send(self):
        client, _ = self.client()
        try:
            async with client:
                envelopes = [transaction() for _ in range(5)]
                async for status, info in client.broadcast(envelopes, timeout_s=60.0):
                    if status != 200:
                        self.failed.append((status, info))
                    self.sent += 1
        except Exception as error:  # noqa: BLE001 - reported by the test
            self.failed.append(error)

    async def _read(self, client, request):
        try:
            async for answer in client.deliver(request):
                block = Block.FromString(answer)
                self.received += len(block.data.data)
                signatures = Metadata.FromString(block.metadata.metadata[0]).signatures
                header = SignatureHeader.FromString(signatures[0].signature_header)
                self.creators.add(header.creator)
        except Exception as error:  # noqa: BLE001 - reported by the test
            self.failed.append(error)


def shown_certificate(address):
    """Give the certificate that the node shows to a new connection."""
    context = ssl.create_default_context(cafile=ORDERER_CA)
    context.set_alpn_protocols(["h2"])
    host, _, port = address.rpartition(":")
    with (
        socket.create_connection((host, int(port)), timeout=60) as plain,
        context.wrap_socket(plain, server_hostname=NAME) as opened,
    ):
        return opened.getpeercert(binary_form=True)


def metric(operations, name, option):
    with urllib.request.urlopen(f"http://{operations}/metrics", timeout=60) as page:
        text = page.read().decode()
    (value,) = re.findall(rf'^amcast_osn_{name}{{option="{option}"}} (\S+)$', text, re.MULTILINE)
    return float(value)


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_key_certificate_and_authority_are_replaced_under_load_and_nothing_fails(
    kafka_cluster, tmp_path
):
    files = Folder(tmp_path)
    old, new = root("old"), root("new")
    put(files.authority, old.pem)
    listen, operations = addresses(2)
    with System(kafka_cluster.bootstrap, chains_plan("chain-a"), tmp_path) as system:
        join(tmp_path / "n1", quick("chain-a", timeout="50ms"))
        where = {"bootstrap": system.bootstrap, "topic": system.topic, "operations": operations}
        with node(tmp_path / "n1", listen, *files.flags, **where) as process:
            log = tmp_path / "n1.log"
            until(lambda: "operations: http" in log.read_text(), PATIENCE_S)
            until(lambda: not failed_checks(operations), PATIENCE_S)
            load = Load(listen, old.issue("client"))
            with load.running():
                load.goes_on()
                shown = files.new_tls()  # no signal: the node looks by itself
                until(lambda: shown_certificate(listen) == shown, PATIENCE_S)
                load.goes_on()
                signed = files.new_identity()
                os.kill(process.pid, signal.SIGHUP)
                until(lambda: load.failed or any(signed in each for each in load.creators), 60)
                load.goes_on()
                put(files.authority, old.pem + new.pem)
                os.kill(process.pid, signal.SIGHUP)
                load.goes_on()
                load.certified = new.issue("client")
                load.goes_on()
                put(files.key, b"no key")
                os.kill(process.pid, signal.SIGHUP)
                until(lambda: metric(operations, "renewal_failed", "--tls-cert"), PATIENCE_S)
                load.goes_on()
            assert shown_certificate(listen) == shown
            assert "what was in force stays so" in log.read_text()
            end = metric(operations, "certificate_expiry_timestamp_seconds", "--msp")
            assert end == certificates.end_of(signed)
