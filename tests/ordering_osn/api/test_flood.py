"""All that strangers can send, at once: a node's memory is bounded, and its clients are served."""

import asyncio
import contextlib
import json
import os
import sys
import time
from pathlib import Path

import pytest

from ordering_osn.api.grpc_client import NodeClient
from ordering_osn.api.seek import seek_envelope
from tests.ordering_osn.helpers.chains import USER, USER_TLS, gathered, numbers
from tests.ordering_osn.helpers.flood import IDLE, MB, say
from tests.ordering_osn.helpers.small import transaction

MEMORY_MB_MAX, DELAY_S_MAX = 500, 1.0
WITHIN_S = 300.0  # on any machine
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@contextlib.asynccontextmanager
async def process(*arguments):
    command = [sys.executable, "-m", "tests.ordering_osn.helpers.flood", *map(str, arguments)]
    pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
    made = await asyncio.create_subprocess_exec(*command, **pipes)
    try:
        yield made
    finally:
        if made.returncode is None:
            made.kill()
        await made.wait()


def proc(number, name):
    return Path(f"/proc/{number}/{name}").read_text(encoding="ascii")


def peak_mb(number):
    (line,) = [line for line in proc(number, "status").splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024 / MB


def work_s(number):
    fields = proc(number, "stat").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


class Honest:
    """Sends a transaction and reads a block, each time by a new connection.

    `delays`: how long each call took, or, where the machine has others to serve, how long the node
    has worked meanwhile.
    """

    def __init__(self, port, tls, node):
        self.tls, self.node, self.delays = tls, node, {"Broadcast": [], "Deliver": []}
        self.address = f"127.0.0.1:{port}"

    def client(self):
        return NodeClient(self.address, tls=self.tls, name="orderer.example.com" * bool(self.tls))

    async def measured(self, what, answers):
        began, worked = time.monotonic(), work_s(self.node)
        answered = await gathered(answers, within_s=WITHIN_S)
        took = time.monotonic() - began
        self.delays[what].append(min(took, work_s(self.node) - worked + TICK_S))
        return answered

    async def calls(self):
        tls_hash = self.tls.tls_hash if self.tls else b""
        request = seek_envelope(USER, "chain-a", 0, 0, tls_hash=tls_hash)
        async with self.client() as client:
            sent = client.broadcast([transaction()], timeout_s=WITHIN_S)
            assert await self.measured("Broadcast", sent) == [(200, "")]
            read = client.deliver(request, timeout_s=WITHIN_S)
            assert numbers(await self.measured("Deliver", read)) == ["block 0", 200]


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("secrets", "address"),
    [("plain", "127.0.0.2"), ("mutual", "127.0.0.1")],
    ids=["by address", "by TLS certificate"],
)
def test_a_client_is_served_whatever_strangers_send(secrets, address, capsys):
    """They differ from it by their address, or by their TLS certificate."""

    async def flood():
        async with process("node", secrets) as node:
            port = int(await node.stdout.readline())
            honest = Honest(port, USER_TLS if secrets == "mutual" else None, node.pid)
            async with honest.client() as client:
                large = transaction(data=bytes(2 * MB))
                assert await gathered(client.broadcast([large])) == [(200, "")]
            async with process("strangers", secrets, port, address) as strangers:
                await strangers.stdout.readline()
                sending = asyncio.create_task(strangers.stdout.readline())
                while not sending.done():
                    await honest.calls()
                for _ in range(20):  # those who are left are idle, do not read, or have half sent
                    await honest.calls()
                return honest.delays, json.loads(await sending), peak_mb(node.pid)

    delays, ended, peak = asyncio.run(flood())
    with capsys.disabled():
        say(f"\n{secrets}, strangers at {address}: {peak:.0f} MB at most")
        for what, each in delays.items():
            median = sorted(each)[len(each) // 2]
            say(f"  {what}: {len(each)} calls, median {median:.3f} s, longest {max(each):.2f} s")
        for what, how in ended.items():
            say(f"  {what}: {how}")
    assert peak < MEMORY_MB_MAX
    assert max(map(max, delays.values())) < DELAY_S_MAX
    assert sum(ended["idle"].values()) >= IDLE - 2_000  # refused, with the reason
