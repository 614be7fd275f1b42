"""A worker with one agent, which writes each payload and a table's count to a file.

AGENT    the agent: plain, slow, take, yields, pair (concurrency 2)
FAIL_AT  payloads at which the agent fails, once each
"""

import asyncio
import os
from datetime import timedelta
from pathlib import Path

import faust

from multicast.faust import ordered

SEEN = Path(os.environ["SEEN"])
FAIL_AT = set(os.environ.get("FAIL_AT", "").encode().split())
AGENT = os.environ.get("AGENT", "plain")

app = faust.App(
    os.environ["APP_ID"],
    broker=f"kafka://{os.environ['AMCAST_BOOTSTRAP']}",
    store="memory://",
    web_enabled=False,
    datadir=os.environ["DATADIR"],
    topic_partitions=1,
    topic_disable_leader=True,
    broker_session_timeout=12.0,  # so long a killed worker keeps its successor waiting
    broker_heartbeat_interval=1.0,
)
counts = app.Table("counts", default=int, partitions=1).tumbling(timedelta(days=36500))


def note(message):
    payload = message.payload.decode()
    if message.payload in FAIL_AT:
        mark = SEEN.with_name(f"failed-{payload}")
        if not mark.exists():
            mark.touch()
            raise RuntimeError("planted")
    if AGENT != "take":  # Faust's tables need the stream's event, which a list has not
        counts["all"] += 1
    with SEEN.open("a") as file:
        file.write(f"{payload} {0 if AGENT == 'take' else counts['all'].current()}\n")


async def plain(stream):
    async for message in stream:
        note(message)


async def slow(stream):
    async for message in stream:
        SEEN.with_name("began").touch()
        await asyncio.sleep(3)  # the worker is asked to end meanwhile
        note(message)


async def take(stream):
    async for messages in stream.take(5, within=0.2):
        for message in messages:
            note(message)


async def yields(stream):
    async for message in stream:
        yield message


stream = ordered(
    app, consumer=os.environ.get("CONSUMER", "C1"), group=os.environ["APP_ID"], commit_every_s=0.2
)
options = {"concurrency": 2} if AGENT == "pair" else {}
if AGENT == "yields":
    options["sink"] = [note]
app.agent(stream, **options)({"slow": slow, "take": take, "yields": yields}.get(AGENT, plain))

if __name__ == "__main__":
    app.main()
