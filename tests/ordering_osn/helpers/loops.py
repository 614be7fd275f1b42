"""Tests that are coroutines."""

import asyncio
from functools import wraps


def on_a_loop(test):
    """Run a test that is a coroutine, on an event loop of its own."""

    @wraps(test)
    def run(*arguments, **fixtures):
        asyncio.run(test(*arguments, **fixtures))

    return run
