"""`amcast` in the process of a test, and files and flags for it."""

import asyncio
import json
from contextlib import AsyncExitStack

from multicast.cli.commands import build
from tests.ordering_osn.helpers.chains import USER_FOLDER, serving

READER = ["--msp", str(USER_FOLDER / "msp"), "--msp-id", "Org1MSP"]


def amcast(*words):
    """Run a command in this process; raises its error."""
    words = [str(word) for word in words]
    build(words)(words, prog_name="amcast", standalone_mode=False)


def lines(capsys):
    """What a command printed: a JSON document on each line."""
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def envelope_file(file, sent):
    """Write envelopes as length-prefixed frames; gives the path as text."""
    file.write_bytes(b"".join(len(raw).to_bytes(4, "big") + raw for raw in sent))
    return str(file)


def at_nodes(nodes, call):
    """Run a blocking call with the nodes' addresses while they serve; gives its result."""

    async def run():
        async with AsyncExitStack() as stack:
            servers = [
                await stack.enter_async_context(
                    serving(node, metrics=getattr(node, "metrics", None))
                )
                for node in nodes
            ]
            addresses = [f"127.0.0.1:{server.port}" for server in servers]
            return await asyncio.to_thread(call, *addresses)

    return asyncio.run(run())
