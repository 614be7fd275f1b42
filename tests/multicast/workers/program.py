"""Handles messages with workers until the end, and writes each to a file; a test kills it.

python -m tests.multicast.workers.program BOOTSTRAP TOPIC FILE RUN KIND
"""

import asyncio
import os
import sys
import threading
from functools import partial

from multicast import Consumer
from multicast.aio import AsyncConsumer

HANDLING_S = 0.006  # some runs are longer than the second between two commits


def accounts(message):
    """The accounts that a message touches: "7 a1 a2" two, "8 a1" one."""
    return set(message.payload.split()[1:])


def write(file, run, message):
    log, offset = message.message_id.log.encode(), message.message_id.offset
    line = b"%d %s %d %s\n" % (run, log, offset, message.payload)
    opened = os.open(file, os.O_WRONLY | os.O_APPEND)
    os.write(opened, line)
    os.close(opened)


def handle(file, run, message):
    threading.Event().wait(HANDLING_S)
    write(file, run, message)


async def handle_in_task(file, run, message):
    await asyncio.sleep(HANDLING_S)
    write(file, run, message)


def main(bootstrap, topic, file, run, kind):
    options = {"n": 4, "keys": accounts, "until_end": True}
    known = {"topic": topic, "name": "C1"}
    if kind == "tasks":

        async def work():
            async with AsyncConsumer(bootstrap, **known) as consumer:
                await consumer.workers(partial(handle_in_task, file, int(run)), **options)

        asyncio.run(work())
        return
    with Consumer(bootstrap, **known) as consumer:
        handler = partial(handle, file, int(run))
        consumer.workers(handler, processes=kind == "processes", **options)


if __name__ == "__main__":
    main(*sys.argv[1:])
