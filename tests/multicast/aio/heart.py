"""A task whose heart beats on the loop, and a thread that listens: it counts the beats that fail.

The thread is starved as the loop is. So a busy machine, however slow, is not taken for a block: the
thread has no turn either, or finds that the loop's thread wants a processor and gets none. It
counts a turn of its own only if the loop has not beaten since and its thread is asleep: it waits
for something, and with it every task. A loop that computes for too long is awake; that shows in the
processor time of its thread between two beats.
"""

import asyncio
import threading
import time
from contextlib import asynccontextmanager
from pathlib import Path

BEAT_S = 0.005
# Turns of the listener in a second of a machine that is not busy: a wait for a frozen broker takes
# many; a healthy loop sleeps for one beat at most, and while others hold the interpreter's lock.
MISSED_MAX = 200
# Switches of threads and turns of the loop stay below this; it is a twentieth of a usual timeout.
COMPUTED_MAX_S = 1.0


class Heart:
    def __init__(self):
        self.beats = 0
        self.missed = 0  # turns of the listener since the last beat, with the loop asleep
        self.missed_most = 0
        self.computed_most_s = 0.0
        self._thread = Path(f"/proc/self/task/{threading.get_native_id()}/stat")
        self._ended = threading.Event()

    @property
    def blocked(self):
        """In words what blocked the loop, or None."""
        if self.missed_most > MISSED_MAX:
            return f"asleep for {self.missed_most} beats"
        if self.computed_most_s > COMPUTED_MAX_S:
            return f"computed for {self.computed_most_s:.1f} s between two beats"
        return None

    async def beat(self):
        last_s = time.thread_time()
        while True:
            await asyncio.sleep(BEAT_S)
            now_s = time.thread_time()
            self.computed_most_s = max(self.computed_most_s, now_s - last_s)
            self.beats += 1
            self.missed = 0
            last_s = now_s

    def listen(self):
        while not self._ended.wait(BEAT_S):
            if self._asleep():
                self.missed += 1
                self.missed_most = max(self.missed_most, self.missed)

    def end(self):
        self._ended.set()

    def _asleep(self):
        """Whether the loop's thread neither runs nor waits for a processor (man 5 proc, "stat")."""
        return self._thread.read_text().rpartition(")")[2].split()[0] in "SD"


@asynccontextmanager
async def watched():
    """Watch the loop for the time of the block."""
    heart = Heart()
    listener = threading.Thread(target=heart.listen, daemon=True)
    listener.start()
    beating = asyncio.create_task(heart.beat())
    try:
        await asyncio.sleep(0)
        yield heart
    finally:
        await asyncio.sleep(2 * BEAT_S)  # a block at the very end shows in the next beat
        beating.cancel()
        heart.end()
        listener.join()
