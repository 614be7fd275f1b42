"""What tests that are coroutines wait for."""

import asyncio


async def becomes(holds, within_s=60.0):
    """Wait until `holds()` is true."""
    async with asyncio.timeout(within_s):
        while not holds():  # noqa: ASYNC110 - of whatever kind it is
            await asyncio.sleep(0.01)
