"""The web service of `examples/web_transfers`: two instances come to the same balances."""

import asyncio
import random
import subprocess
import sys
import tomllib
from contextlib import ExitStack
from pathlib import Path

import pytest

from multicast import Producer
from tests.helpers.system import PATIENCE_S, System
from topology.interests import from_document
from topology.planner.solver import plan as solve

aiohttp = pytest.importorskip("aiohttp", reason="the example needs aiohttp (extra `dev`)")
pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(600)]
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
def instances(command):
    """The addresses of two instances of the service."""
    with ExitStack() as ending:
        services = [
            ending.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            for _ in range(2)
        ]
        for service in services:
            ending.callback(service.wait, PATIENCE_S)
            ending.callback(service.terminate)
        yield [service.stdout.readline().strip() for service in services]


def test_instances_agree_on_the_balances_and_no_account_goes_below_zero(instances):
    rng = random.Random(1)

    async def send(session, document):
        async with session.post(f"{rng.choice(instances)}/transfers", json=document) as answer:
            return answer.status, await answer.json()

    async def balances(session, instance):
        async with session.get(f"{instance}/accounts") as answer:
            return (await answer.json())["balances"]

    async def run():
        async with aiohttp.ClientSession() as session, asyncio.timeout(PATIENCE_S):
            transfers = []
            for _ in range(60):
                source, target = rng.sample(["P1", "P2", "P3"], 2)
                transfers.append({"from": source, "to": target, "amount": rng.randint(1, 80)})
            answers = await asyncio.gather(*(send(session, document) for document in transfers))
            for wrong in ({}, [], {"from": "P1", "to": "P1", "amount": 1},
                          {"from": "P1", "to": "P2", "amount": True},
                          {"from": "P1", "to": "P9", "amount": 1}):  # fmt: skip
                assert (await send(session, wrong))[0] == 400
            async with session.post(f"{instances[0]}/transfers", data=DEEP) as answer:
                assert answer.status == 400
            while True:  # an instance applies a transfer a little later than the other
                first, second = [await balances(session, instance) for instance in instances]
                if first == second:
                    return answers, first
                await asyncio.sleep(0.02)

    answers, final = asyncio.run(run())
    assert {status for status, _ in answers} == {200}
    results = [answer["result"].partition(":")[0] for _, answer in answers]
    assert {"done", "refused"} == set(results)
    assert sum(final.values()) == 300
    assert min(final.values()) >= 0


def test_a_port_that_is_taken_is_one_sentence(command, instances):
    port = instances[0].rpartition(":")[2]
    again = [*command, "--port", port]
    done = subprocess.run(again, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(f"port {port} cannot be opened: ")
    assert done.stderr.count("\n") == 1
