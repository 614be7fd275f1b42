"""The web service of `examples/web_transfers`: what it refuses, and what changes nothing."""

import asyncio
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from multicast import Producer
from tests.helpers.system import PATIENCE_S, System
from topology.interests import from_document
from topology.planner.solver import plan as solve

aiohttp = pytest.importorskip("aiohttp", reason="the example needs aiohttp (extra `dev`)")
pytestmark = pytest.mark.timeout(600)
DEEP = b"[" * 100_000  # JSON that no parser of Python reads
FOLDER = Path(__file__).resolve().parents[2] / "examples" / "web_transfers"


@pytest.fixture
def command(kafka_cluster, tmp_path):
    """The command of an instance, on a topic that holds foreign messages."""
    plan = solve(from_document(tomllib.loads((FOLDER / "interests.toml").read_text())))
    with System(kafka_cluster.bootstrap, plan, tmp_path) as system:
        system.order()
        with Producer(system.bootstrap, topic=system.topic) as producer:
            for foreign in (b"hello", b"\xff", DEEP, None):
                producer.multicast(foreign, to={"P1", "P2"}).accepted()
        program = [sys.executable, FOLDER / "service.py", "--bootstrap", system.bootstrap]
        yield [*program, "--topic", system.topic, "--accounts", "P1,P2,P3"]


@pytest.fixture
def address(command):
    """The address of an instance of the service."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as service:
        yield service.stdout.readline().strip()
        service.terminate()
        service.wait(PATIENCE_S)


async def test_foreign_messages_change_nothing_and_what_is_no_transfer_is_refused(address):
    wrong = [
        {},
        [],
        {"from": "P1", "to": "P1", "amount": 1},
        {"from": "P1", "to": "P2", "amount": True},
        {"from": "P1", "to": "P9", "amount": 1},
    ]

    async with aiohttp.ClientSession() as session, asyncio.timeout(PATIENCE_S):
        for data in (*(json.dumps(document) for document in wrong), DEEP):
            async with session.post(f"{address}/transfers", data=data) as answer:
                assert answer.status == 400
        right = {"from": "P1", "to": "P2", "amount": 5}
        async with session.post(f"{address}/transfers", json=right) as answer:
            assert (await answer.json())["result"] == "done"
        async with session.get(f"{address}/accounts") as answer:
            assert (await answer.json())["balances"] == {"P1": 95, "P2": 105, "P3": 100}


def test_a_port_that_is_taken_is_one_sentence(command, address):
    port = address.rpartition(":")[2]
    again = [*command, "--port", port]
    done = subprocess.run(again, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(f"port {port} cannot be opened: ")
    assert done.stderr.count("\n") == 1
