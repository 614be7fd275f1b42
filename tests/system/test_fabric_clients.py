"""Fabric's own clients for Java, JavaScript and Python, unchanged, against a node of ours.

Each runs once under TLS and once under mutual TLS, on a chain of its own (`tests/system/clients/`):
it fetches the channel's configuration, broadcasts transactions, has an update of the configuration
refused that no administrator signed, broadcasts the same one signed by one (one message a block),
fetches the configuration again, broadcasts two transactions more, and reads the blocks.
"""

import asyncio
import contextlib
import json
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from collectors.reconfiguration.apply import apply
from multicast.drivers import open_driver
from multicast.drivers.kafka import Admin
from ordering_osn.api.grpc_client import NodeClient
from ordering_osn.api.receipt_request import receipt_envelope
from ordering_osn.ledger.ledger import Ledger
from ordering_osn.protos import (
    BatchSize,
    Block,
    ChannelHeader,
    Config,
    ConfigEnvelope,
    Envelope,
    HeaderType,
    Payload,
)
from tests.helpers.system import amcast, until
from tests.ordering_osn.helpers.chains import (
    CLIENT_TLS,
    CRYPTO,
    FABRIC,
    ORDERER_CA,
    ORDERER_FOLDER,
    ORG1,
    USER,
    USER_FOLDER,
    USER_TLS,
)
from tests.ordering_osn.helpers.small import chains_plan
from tests.system.clients import installed
from tests.system.clients.endorser import Endorser

# The first run fetches the clients.
pytestmark = pytest.mark.timeout(900)

CLIENT_S = 300.0
CHAINS = {"java": "chain-a", "javascript": "chain-b", "python": "chain-c"}
RUNS = [
    pytest.param(
        (client, transport),
        id=f"{client}-{transport}",
        marks=[pytest.mark.needs(what) for what in installed.NEEDS[client]],
    )
    for client in CHAINS
    for transport in ("tls", "mutual-tls")
]


class Transaction(NamedTuple):
    """An envelope of a block, as its channel header tells it."""

    kind: int
    id: str
    data: bytes


class Run(NamedTuple):
    """What a client said and wrote (`work`), and the node's ledger after both had ended."""

    client: str
    steps: list[dict]
    work: Path
    blocks: list[bytes]
    receipts: dict[str, tuple[int, int]]

    def transactions(self, when):
        return [
            step["transaction"]
            for step in self.steps
            if step["step"] == "broadcast" and step["when"] == when
        ]

    @property
    def update(self):
        """Give the number of the block that holds the update."""
        (number,) = [
            number
            for number, raw in enumerate(self.blocks)
            if number > 0 and contents(raw)[0].kind == HeaderType.CONFIG
        ]
        return number


def contents(raw):
    """Take a block's transactions apart."""
    found = []
    for envelope in Block.FromString(raw).data.data:
        payload = Payload.FromString(Envelope.FromString(envelope).payload)
        header = ChannelHeader.FromString(payload.header.channel_header)
        found.append(Transaction(header.type, header.tx_id, payload.data))
    return found


def config_of(raw):
    return ConfigEnvelope.FromString(contents(raw)[0].data).config


@contextlib.contextmanager
def node(command, log):
    """Run a node; give its address once it is healthy. It obeys SIGTERM, and within seconds."""
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "multicast", "osn", "run", *command], stdout=out, stderr=out
        )

    def announced(what):
        assert process.poll() is None, log.read_text()
        return re.findall(rf"^{what}: (\S+)\n", log.read_text(), re.MULTILINE)

    def healthy():
        with contextlib.suppress(urllib.error.HTTPError):
            return urllib.request.urlopen(f"{operations}/healthz", timeout=30).status == 200

    try:
        until(lambda: announced("operations"), "the address of the operations")
        (operations,) = announced("operations")
        until(healthy, "a healthy node")
        yield announced("broadcast and deliver")[0]
        process.terminate()
        assert process.wait(120) == 0, log.read_text()
    finally:
        process.kill()
        process.wait(10)


async def receipts(address, tls, chain, transactions):
    """Wait for the transactions, by the IDs that the client knows them by."""
    found = {}
    async with NodeClient(address, tls=tls) as client:
        for transaction in transactions:
            request = receipt_envelope(USER, chain, transaction, 120_000, tls_hash=tls.tls_hash)
            answer = await client.wait(request)
            found[transaction] = (answer["block"], answer["index"])
    return found


@pytest.fixture(scope="module")
def fetched():
    """Fetch the clients side by side: while the first one runs, the others come."""
    with ThreadPoolExecutor(len(CHAINS)) as pool:
        yield {name: pool.submit(getattr(installed, name)) for name in CHAINS}


@pytest.fixture(scope="module", params=RUNS)
def run(request, kafka_cluster, tmp_path_factory, fetched):
    name, transport = request.param
    chain, mutual = CHAINS[name], transport == "mutual-tls"
    command = fetched[name].result()
    folder = tmp_path_factory.mktemp(name)
    home, work = folder / "node", folder / "work"
    work.mkdir()
    topic = f"clients-{time.time_ns()}"
    bootstrap = kafka_cluster.bootstrap
    with (
        contextlib.closing(open_driver("librdkafka", bootstrap)) as driver,
        Admin(bootstrap) as admin,
    ):
        apply(driver, admin, chains_plan(chain, topic=topic))
    block = FABRIC / f"{chain}.block"
    joined = amcast("osn", "join", "--folder", str(home), "--genesis-block", str(block))
    assert joined.returncode == 0, joined.stderr
    options = [
        *("-b", bootstrap, "-t", topic, "--folder", str(home)),
        *("--listen", "127.0.0.1:0", "--operations", "127.0.0.1:0"),
        *("--msp", str(ORDERER_FOLDER / "msp"), "--msp-id", "OrdererMSP"),
        *("--tls-cert", str(ORDERER_FOLDER / "tls/server.crt")),
        *("--tls-key", str(ORDERER_FOLDER / "tls/server.key")),
    ]
    shown = []
    if mutual:
        options += ["--client-ca", str(ORG1 / "tlsca/tlsca.org1.example.com-cert.pem")]
        shown = [str(USER_FOLDER / "tls/client.crt"), str(USER_FOLDER / "tls/client.key")]
    with (
        Endorser(CRYPTO, block.read_bytes()) as endorser,
        node(options, folder / "node.log") as address,
    ):
        told = [address, ORDERER_CA, CRYPTO, endorser, chain, work, *shown]
        done = subprocess.run(
            [*command, *map(str, told)],
            capture_output=True,
            text=True,
            timeout=CLIENT_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        steps = [json.loads(line) for line in done.stdout.splitlines()]
        sent = [step["transaction"] for step in steps if step["step"] == "broadcast"]
        tls = USER_TLS if mutual else CLIENT_TLS
        found = asyncio.run(receipts(address, tls, chain, sent))
    with contextlib.closing(Ledger.open(home / chain / "ledger")) as ledger:
        blocks = [ledger.read(number) for number in range(ledger.height)]
    return Run(name, steps, work, blocks, found)


def test_each_transaction_that_was_accepted_stands_once_in_the_blocks(run):
    sent = run.transactions("before") + run.transactions("after")
    assert len(set(sent)) == 5
    ordered = [one.id for raw in run.blocks[1:] for one in contents(raw)]
    assert [one for one in ordered if one in sent] == sent


def test_a_receipt_names_the_place_of_a_transaction_by_the_client_s_own_id(run):
    assert set(run.receipts) == set(run.transactions("before") + run.transactions("after"))
    for transaction, (number, index) in run.receipts.items():
        assert contents(run.blocks[number])[index].id == transaction


def test_the_configuration_that_was_fetched_is_the_ledger_s(run):
    for when, number in (("before", 0), ("after", run.update)):
        fetched = Config.FromString((run.work / f"config.{when}").read_bytes())
        assert fetched == config_of(run.blocks[number])
    told = [(step["when"], step["sequence"]) for step in run.steps if step["step"] == "config"]
    assert told == [("before", 0), ("after", 1)]


def test_an_update_is_ordered_alone_and_changes_what_it_says(run):
    assert len(contents(run.blocks[run.update])) == 1
    before, after = config_of(run.blocks[0]), config_of(run.blocks[run.update])
    sizes = [
        BatchSize.FromString(config.channel_group.groups["Orderer"].values["BatchSize"].value)
        for config in (before, after)
    ]
    assert [size.max_message_count for size in sizes] == [10, 1]
    assert sizes[0].preferred_max_bytes == sizes[1].preferred_max_bytes


def test_after_the_update_every_transaction_has_a_block_of_its_own(run):
    for number, transaction in enumerate(run.transactions("after"), start=run.update + 1):
        assert [one.id for one in contents(run.blocks[number])] == [transaction]
    assert len(run.blocks) == run.update + 3


def test_an_update_that_no_administrator_signed_is_refused_and_the_client_says_so(run):
    (refused,) = [step for step in run.steps if step["step"] == "refused"]
    assert "BAD_REQUEST" in refused["status"]
    if run.client != "java":  # which gives its user the status only
        assert "/Channel/Orderer/Admins" in refused["status"] + refused.get("info", "")


def test_the_blocks_that_were_delivered_are_the_ledger_s(run):
    delivered = {
        int(file.suffix[1:]): Block.FromString(file.read_bytes())
        for file in run.work.glob("block.*")
    }
    # The Java SDK reads blocks from an orderer only for the configuration in them.
    expected = [] if run.client == "java" else map(Block.FromString, run.blocks)
    assert delivered == dict(enumerate(expected))
