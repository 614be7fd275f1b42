"""`Producer` and `Consumer` for asyncio. No call of this package blocks the event loop.

The synchronous classes remain the only place of the protocol; this package waits for them.
docs/asyncio.md shows how to use it, and what cancellation and time-outs mean.

    outcome, order    reported by threads of the drivers; `inbox.py` hands many at once to the loop
    blocking call     runs in a thread of `threads.py`: open, close, commit, flush
    read              one thread for each consumer (`reader_thread.py`); a bounded queue to the loop
"""

from multicast.aio.consumer import AsyncConsumer
from multicast.aio.producer import AsyncProducer
from multicast.aio.receipts import AsyncReceipt, AsyncReceipts

__all__ = ["AsyncConsumer", "AsyncProducer", "AsyncReceipt", "AsyncReceipts"]
