"""`amcast osn` with TLS, and with failures: real processes, a real broker."""

import json
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import contextmanager

import pytest

from multicast.control import log_partition
from multicast.drivers.kafka import Admin
from multicast.local.broker import free_ports
from ordering_osn.ledger.ledger import Ledger
from ordering_osn.node.joining import join, ledger_folder
from tests.helpers.small import until
from tests.helpers.system import System, amcast
from tests.ordering_osn.helpers import configs
from tests.ordering_osn.helpers.chains import ORDERER_CA, ORDERER_FOLDER, ORG1, USER_FOLDER
from tests.ordering_osn.helpers.commands import READER, envelope_file
from tests.ordering_osn.helpers.small import chains_plan, genesis, quick, transaction

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(900)]
PATIENCE_S = 240.0  # stops a hang, no more
ORG1_CA = ORG1 / "tlsca/tlsca.org1.example.com-cert.pem"
TLS = [
    *("--tls-cert", str(ORDERER_FOLDER / "tls/server.crt")),
    *("--tls-key", str(ORDERER_FOLDER / "tls/server.key")),
    *("--client-ca", str(ORG1_CA), "--client-ca", str(ORDERER_CA)),
    *("--tls-ca", str(ORDERER_CA), "--tls-name", "orderer.example.com"),
]
CLIENT_TLS = [
    *("--tls-ca", str(ORDERER_CA), "--tls-name", "orderer.example.com"),
    *("--tls-cert", str(USER_FOLDER / "tls/client.crt")),
    *("--tls-key", str(USER_FOLDER / "tls/client.key")),
]


@contextmanager
def node(
    folder, listen, *flags, bootstrap="127.0.0.1:1", topic="chains", operations="off", shell=()
):
    """Run a node's process; `shell` is the beginning of its command."""
    command = [
        *(*shell, sys.executable, "-m", "multicast"),
        *("osn", "run", "-b", bootstrap, "-t", topic, "--folder", str(folder)),
        *("--listen", listen, "--operations", operations, "--msp", str(ORDERER_FOLDER / "msp")),
        *("--msp-id", "OrdererMSP", *flags),
    ]
    with folder.with_suffix(".log").open("ab") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        yield process
    finally:
        process.terminate()
        assert process.wait(PATIENCE_S) == 0


def addresses(count):
    return [f"127.0.0.1:{port}" for port in free_ports(count)]


def failed_checks(operations):
    """Give what is wrong with a node, as far as it answers."""
    try:
        urllib.request.urlopen(f"http://{operations}/healthz", timeout=30).close()
    except urllib.error.HTTPError as error:
        return json.load(error)["failed_checks"]
    except OSError:
        return []
    return []


def test_clients_and_peers_speak_mutual_tls(kafka_cluster, tmp_path):
    raw = quick("chain-a", timeout="50ms")
    first, second = addresses(2)
    sent = [transaction() for _ in range(12)]
    file = envelope_file(tmp_path / "envelopes", sent)
    with System(kafka_cluster.bootstrap, chains_plan("chain-a"), tmp_path) as system:
        where = {"bootstrap": system.bootstrap, "topic": system.topic}
        for name in ("n1", "n2"):
            join(tmp_path / name, raw)
        with node(tmp_path / "n1", first, *TLS, **where):
            ask = ("osn", "broadcast", file, "--node", first)
            until(lambda: amcast(*ask, *CLIENT_TLS).returncode == 0, PATIENCE_S)
            done = amcast(*ask, *CLIENT_TLS, *READER, "--wait")  # again: each is in one block only
            assert done.returncode == 0, done.stderr
            assert len(done.stdout.splitlines()) == 12
            # A client without a certificate, or without TLS, is refused.
            assert amcast(*ask, *CLIENT_TLS[:4], "--timeout", "3").returncode == 4
            assert amcast(*ask, "--timeout", "3").returncode == 4
            # Blocks that the log no longer holds come from the peer, over TLS.
            at = log_partition(system.plan.log("chain-a"))
            with Admin(system.bootstrap) as admin:
                admin.delete_records({at: system.driver.last_stable_offsets([at])[at]})
            more = envelope_file(tmp_path / "more", [transaction()])
            ask = ("osn", "broadcast", more, "--node", first)
            with node(tmp_path / "n2", second, "--peer", first, *TLS, **where):
                assert amcast(*ask, *CLIENT_TLS).returncode == 0
                reads = ("osn", "deliver", "--node", second, "-c", "chain-a", *READER)

                def delivered():
                    told = amcast(*reads, *CLIENT_TLS).stdout.splitlines()
                    return [len(json.loads(line)["transactions"]) for line in told]

                until(lambda: sum(delivered()) == 14, PATIENCE_S)


def test_a_node_without_a_broker_or_not_alone_with_its_folder_says_what_lacks(tmp_path):
    for name in ("chain-a", "chain-b"):
        join(tmp_path / "n1", quick(name))
    listen, operations = addresses(2)
    with (
        Ledger.open(ledger_folder(tmp_path / "n1", "chain-b")),
        node(tmp_path / "n1", listen, operations=operations),
    ):
        until(lambda: len(failed_checks(operations)) == 2, PATIENCE_S)
        first, second = failed_checks(operations)
        assert first["component"] == "chain-a/0"
        assert "in use by process" in second["reason"]
        file = envelope_file(tmp_path / "envelopes", [transaction()])
        done = amcast("osn", "broadcast", file, "--node", listen)
        assert done.returncode == 1
        assert "503" in done.stderr


@pytest.mark.campaign
def test_a_node_runs_more_channels_than_its_shells_limit_of_open_files_permits(tmp_path):
    names = [f"chain-{number}" for number in range(60)]  # each has at least two open files
    for name in names:
        join(tmp_path / "n1", genesis(configs.genesis().config, name))
    listen, operations = addresses(2)
    shell = ("sh", "-c", 'ulimit -Sn 100; exec "$@"', "sh")
    with node(tmp_path / "n1", listen, operations=operations, shell=shell):
        checks = until(lambda: failed_checks(operations), PATIENCE_S)
        assert len(checks) == len(names)
        assert "open files" not in str(checks)


@pytest.mark.campaign
def test_a_node_adds_no_records_of_another_topic_to_its_blocks(kafka_cluster, tmp_path):
    """As after a broker was wiped, and the folders of some nodes were not."""
    raw = quick("chain-a", timeout="50ms", max_message_count=1)
    listen, operations = addresses(2)
    file = envelope_file(tmp_path / "envelopes", [transaction() for _ in range(3)])

    def order(name, system):
        join(tmp_path / name, raw)
        ask = ("osn", "broadcast", file, "--node", listen, *READER, "--wait")
        with node(tmp_path / name, listen, bootstrap=system.bootstrap, topic=system.topic):
            until(lambda: amcast(*ask).returncode == 0, PATIENCE_S)

    with System(kafka_cluster.bootstrap, chains_plan("chain-a"), tmp_path) as system:
        order("kept", system)
    with System(kafka_cluster.bootstrap, chains_plan("chain-a"), tmp_path) as system:
        order("fresh", system)
        where = {"bootstrap": system.bootstrap, "topic": system.topic}
        with node(tmp_path / "kept", listen, operations=operations, **where):
            refused = "made of the records of another topic"
            until(lambda: refused in str(failed_checks(operations)), PATIENCE_S)
    with Ledger.open(ledger_folder(tmp_path / "kept", "chain-a"), read_only=True) as ledger:
        assert ledger.height == 4
