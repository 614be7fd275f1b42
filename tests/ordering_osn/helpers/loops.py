"""Tests that are coroutines."""

import asyncio
from functools import wraps


def on_a_loop(test):
    """Run a test that is a coroutine, on an event loop of its own."""

    @wraps(test)
    def run(*arguments, **fixtures):
        asyncio.run(test(*arguments, **fixtures))

    return run


async def becomes(holds, within_s=60.0):
    """Wait until `holds()` is true."""
    async with asyncio.timeout(within_s):
        while not holds():  # noqa: ASYNC110 - of whatever kind it is
            await asyncio.sleep(0.01)
