"""`Producer` and `Consumer` for asyncio: the names of `multicast.aio` (docs/asyncio.md)."""

from multicast.aio import AsyncConsumer, AsyncProducer, AsyncReceipt, AsyncReceipts

__all__ = ["AsyncConsumer", "AsyncProducer", "AsyncReceipt", "AsyncReceipts"]
