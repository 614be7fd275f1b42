"""`OrderedReader`: the consumer behind an ordered stream, as a service of Faust's worker.

    start    after the tables are recovered: connects, and continues at the committed cursor
    commit   what the agent has processed, after all that it has sent is stored by Kafka
    stop     gives no message any more, waits for the one in work, commits, and closes

Invariant: what is committed was processed, and the updates of tables and the messages that the
agent sent while it processed it have left Faust's producer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from multicast.aio import AsyncConsumer
from multicast.consuming.batches import Message
from multicast.consuming.cursor import Cursor
from multicast.errors import AmcastError
from multicast.faust.progress import AgentProgress
from topology import extra

with extra("collectors"):
    import faust
    from faust.types.tuples import FutureMessage
    from mode import Service

_log = logging.getLogger("amcast.faust")
_RETRY_S = 1.0  # before a call is made again whose error may pass
# A message in work at the worker's end may take so long; after that it comes again at the next
# start. Kubernetes kills a process 30 s after it has asked it to end.
_FINISH_S = 10.0
_LOOK_S = 0.02  # how late it is noticed that the message in work is done
_COMMIT_S = 10.0  # the last commit, at the end; without it messages come again


class OrderedReader(Service):
    """Reads for one channel, and commits what its agent has processed."""

    def __init__(
        self, app: faust.App, stream: str, make: Callable[[], AsyncConsumer], commit_every_s: float
    ) -> None:
        super().__init__()
        self.stream = stream
        self.opened = asyncio.Event()
        self.progress: AgentProgress | None = None  # None until the consumer is open
        self.on_end: Callable[[], None]  # has the agent's stream end
        self._app = app
        self._make = make
        self._commit_every_s = commit_every_s
        self._consumer: AsyncConsumer | None = None
        self._committed: Cursor | None = None
        self._committing = asyncio.Lock()

    # -- for the channel --------------------------------------------------------------------

    async def read(self) -> Message | None:
        """Wait for the next message; None if an error passed. One that does not ends the worker."""
        assert self._consumer is not None
        try:
            return await anext(self._consumer)
        except AmcastError as error:
            await self._survive(error)
            return None

    async def go_back(self) -> None:
        """Read again from what is processed."""
        assert self._consumer is not None
        assert self.progress is not None
        while True:
            try:
                return await self._consumer.seek(self.progress.processed)
            except AmcastError as error:
                await self._survive(error)

    async def _survive(self, error: AmcastError) -> None:
        """Pause after an error that may pass; any other one ends the worker, with its sentence."""
        if not error.retriable:
            await self.crash(error)
            await asyncio.Event().wait()  # the worker stops, and ends this wait, too
        _log.warning("%s: %s", self.stream, error)
        await asyncio.sleep(_RETRY_S)

    # -- the service ------------------------------------------------------------------------

    async def on_start(self) -> None:
        """Connect; raises what `Consumer` raises."""
        consumer = self._make()
        await consumer.open()
        self._consumer = consumer
        self._committed = consumer.position
        self.progress = AgentProgress(consumer.position)
        self.opened.set()

    @Service.task
    async def _commit_from_time_to_time(self) -> None:
        while not self.should_stop:
            await self.sleep(self._commit_every_s)
            if not self.should_stop:
                try:
                    await self._commit()
                except AmcastError as error:
                    await self._survive(error)

    async def on_stop(self) -> None:
        """End the agent's stream; commit once the message in work is processed."""
        if self._consumer is None or self.progress is None or self.crashed:
            return
        self.on_end()
        try:
            async with asyncio.timeout(_FINISH_S):
                while not self.progress.idle:  # noqa: ASYNC110 - Faust sets an attribute, no event
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            _log.warning("%s: a message in work at the end comes again", self.stream)
        try:
            async with asyncio.timeout(_COMMIT_S):
                await self._commit()
        except (AmcastError, TimeoutError) as error:
            _log.warning("%s: the last commit failed, messages come again: %r", self.stream, error)

    async def on_shutdown(self) -> None:
        """Close the consumer."""
        if self._consumer is not None:
            await self._consumer.close()

    async def _commit(self) -> None:
        assert self._consumer is not None
        assert self.progress is not None
        async with self._committing:  # the last commit may meet a regular one, and must be the last
            processed = self.progress.processed
            if processed != self._committed:
                await self._sent()
                await self._consumer.commit(processed)
                self._committed = processed

    async def _sent(self) -> None:
        """Wait until Kafka has stored what the agent has sent, tables' updates among it.

        They wait in a queue of Faust's producer, which sends one after the other. Its `flush` does
        not wait for the one that has left the queue, so a mark goes through the queue, too.
        """
        loop, through = asyncio.get_running_loop(), asyncio.Event()

        async def publish_message(_: Any, *, wait: bool = True) -> None:  # noqa: ARG001
            loop.call_soon_threadsafe(through.set)

        mark = SimpleNamespace(
            message=SimpleNamespace(channel=SimpleNamespace(publish_message=publish_message))
        )
        self._app.producer.send_soon(cast("FutureMessage", mark))
        await through.wait()
        await self._app.producer.flush()
