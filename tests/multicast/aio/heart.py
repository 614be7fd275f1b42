"""A task whose heart beats on the loop: the longest pause between beats is the longest block."""

import asyncio
import time
from contextlib import asynccontextmanager

BEAT_S = 0.005
# A turn of the loop, switches of threads and a machine that is shared stay below this; a call
# that waits for a frozen broker blocks for seconds.
PAUSE_MAX_S = 1.0


class Heart:
    def __init__(self):
        self.longest_s = 0.0
        self.beats = 0

    async def beat(self):
        last = time.monotonic()
        while True:
            await asyncio.sleep(BEAT_S)
            now = time.monotonic()
            self.longest_s = max(self.longest_s, now - last - BEAT_S)
            self.beats += 1
            last = now


@asynccontextmanager
async def watched():
    """Watch the loop for the time of the block."""
    heart = Heart()
    beating = asyncio.create_task(heart.beat())
    try:
        await asyncio.sleep(0)
        yield heart
    finally:
        await asyncio.sleep(2 * BEAT_S)  # a block at the very end shows in the next beat
        beating.cancel()
