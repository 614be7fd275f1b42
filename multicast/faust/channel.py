"""`ordered`: the messages of one consumer, in their order, for one agent of Faust.

Faust's own Kafka consumer reads none of them: the agent's stream asks this channel for the next
message, and the channel asks an `AsyncConsumer`. Nothing is buffered between the two, so an agent
that is slow holds back the reader, and a message leaves the reader only in the step that gives it.

    opened     the worker is ready (its tables are recovered), and the consumer is connected
    running    the agent runs; between its failure and its next start no message is given
    given      handed to the agent, while the worker may process (`flow_control`)

The commits, and the end: `reader.py`. How far the agent is: `progress.py`.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections import deque
from collections.abc import AsyncIterable, Awaitable, Callable
from contextlib import suppress
from typing import Any, Self, cast

from multicast.aio import AsyncConsumer
from multicast.consuming.batches import Message
from multicast.faust.progress import Given
from multicast.faust.reader import OrderedReader
from multicast.settings import settings
from topology import extra

with extra("collectors"):
    import faust
    from faust.channels import Channel
    from faust.exceptions import ImproperlyConfigured
    from faust.types import EventT

_log = logging.getLogger("amcast.faust")
# Pauses before a message is given again, after the agent's first, second, ... failure in turn: a
# passing failure costs little time, and a message that always fails does not fill the log.
_AGAIN_S = (0.1, 0.5, 2.0, 5.0)


class OrderedChannel(Channel[Message]):
    """The stream of one consumer of amcast, for one agent with concurrency 1; made by `ordered`.

    It is read only: an agent's `send`, `cast` and `ask` raise `ImproperlyConfigured`.
    """

    def __init__(self, app: faust.App, reader: OrderedReader) -> None:
        super().__init__(app)
        self._reader = reader
        self._running = asyncio.Event()
        self._run = 0  # counts the agent's starts
        self._failures = 0  # in turn, at the same message
        self._failed_last = ""  # the cursor before it
        self._again_from: float | None = None  # `time.monotonic`; None: there is nothing to repeat
        self._held: Message | None = None  # read, and not given, as the worker may not process
        self._thrown: deque[BaseException] = deque()
        self._wait: asyncio.Timeout | None = None  # of the one that waits for a message

    # -- what Faust calls -------------------------------------------------------------------

    def clone(self, **_: Any) -> Self:
        """Give this channel: its messages have one reader."""
        return self

    def __aiter__(self) -> Self:
        self._adopt()
        return self

    async def __anext__(self) -> EventT[Message]:
        """Wait for the next message; raises what Faust has thrown into the channel."""
        while True:
            if self._thrown:
                raise self._thrown.popleft()
            with suppress(TimeoutError):  # `_throw` has ended the wait
                try:
                    async with asyncio.timeout(None) as self._wait:
                        return await self._next()
                finally:
                    self._wait = None

    def _throw(self, exc: BaseException) -> None:
        self._thrown.append(exc)
        if self._wait is not None:
            self._wait.reschedule(asyncio.get_running_loop().time())

    async def throw(self, exc: BaseException) -> None:
        """Raise an error where the next message is awaited; `StopAsyncIteration` ends the agent."""
        self._throw(exc)

    async def put(self, value: EventT[Any]) -> None:  # noqa: ARG002 - Faust's name
        """Refuse: the messages come from Kafka."""
        raise _read_only(self)

    def as_future_message(self, *_: Any, **__: Any) -> Any:
        """Refuse what an agent is sent by `send`, `cast` or `ask`."""
        raise _read_only(self)

    def __str__(self) -> str:
        return self._reader.stream

    # -- the agent --------------------------------------------------------------------------

    def _adopt(self) -> None:
        """Watch the agent of this channel; raises `ImproperlyConfigured` if it is not just one."""
        agents = [agent for agent in self.app.agents.values() if agent.channel is self]
        if len(agents) != 1:
            raise ImproperlyConfigured(
                f"the ordered stream {self} has {len(agents)} agents; give each stream to one "
                f"@app.agent(ordered(...))"
            )
        (agent,) = agents
        if agent.concurrency != 1 or agent.isolated_partitions:
            raise ImproperlyConfigured(
                f"the agent {agent.name} of the ordered stream {self} has concurrency="
                f"{agent.concurrency}, isolated_partitions={agent.isolated_partitions}; messages "
                f"are processed in order only by one at a time: remove these options"
            )
        if not hasattr(agent.fun, "__amcast__"):
            agent.fun = self._watched(agent.fun)

    def _watched(self, fun: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap an agent's function: see when it starts, and when it fails, before Faust does."""

        @functools.wraps(fun)
        def run(stream: Any) -> Any:
            self._forget()  # of a run whose sink failed: Faust ends it after it has begun the next
            self._run += 1
            self._running.set()
            result = fun(stream)
            if isinstance(result, AsyncIterable):
                return self._each(result, self._run)
            return self._whole(result, self._run)

        run.__dict__["__amcast__"] = True
        return run

    async def _whole(self, result: Awaitable[Any], run: int) -> Any:
        try:
            return await result
        except BaseException as error:
            self._fail(error, run)
            raise

    async def _each(self, results: AsyncIterable[Any], run: int) -> Any:
        try:
            async for result in results:
                yield result
        except BaseException as error:
            self._fail(error, run)
            raise

    def _fail(self, error: BaseException, run: int) -> None:
        """Give nothing until the agent starts again."""
        if run == self._run:
            self._running.clear()
            self._forget()
            _log.info("the agent of %s ended: %r", self, error)

    def _forget(self) -> None:
        """Give again what was given and is not processed, after a pause."""
        progress = self._reader.progress
        if progress is None or progress.idle:
            return
        self._held = None
        place = str(progress.forget())
        self._failures = self._failures + 1 if place == self._failed_last else 1
        self._failed_last = place
        pause_s = _AGAIN_S[min(self._failures, len(_AGAIN_S)) - 1]
        self._again_from = time.monotonic() + pause_s
        _log.warning("%s: the messages after %s are given again in %g s", self, place, pause_s)

    # -- the next message -------------------------------------------------------------------

    async def _next(self) -> EventT[Message]:
        """Wait until there is a message, and the agent and the worker may process it."""
        flow = self.app.flow_control
        await self._reader.opened.wait()
        while True:
            await self._running.wait()
            await flow.acquire()
            # Updates of tables wait in Faust's producer: a fast agent must not fill the memory.
            await self.app.producer.buffer.wait_until_ebb()
            if self._again_from is not None:
                await asyncio.sleep(self._again_from - time.monotonic())
                await self._reader.go_back()
                self._again_from = self._held = None  # what was read meanwhile comes later again
            elif self._held is None:
                self._held = await self._reader.read()
            # No wait from here to the agent: Faust drops a message if its worker may not process.
            ready = self._running.is_set() and flow.is_active() and self._again_from is None
            if self._held is not None and ready:
                message, self._held = self._held, None
                return self._give(message)

    def _give(self, message: Message) -> EventT[Message]:
        given = Given(str(self), message, self.app.consumer_generation_id)
        assert self._reader.progress is not None
        self._reader.progress.give(given)
        return self.app.create_event(message.key, message, given.headers, given)


def _read_only(channel: OrderedChannel) -> ImproperlyConfigured:
    return ImproperlyConfigured(
        f"{channel} is an ordered stream, which agents only read; multicast the message with a "
        f"Producer of amcast"
    )


def ordered(
    app: faust.App,
    *,
    consumer: str,
    topic: str | None = None,
    bootstrap: str | None = None,
    driver: str | None = None,
    commit_every_s: float = 1.0,
    **options: Any,
) -> OrderedChannel:
    """Make the stream of `consumer`, a consumer of the plan, for one `@app.agent(...)`.

    The agent gets each `Message` in the agreed order, one at a time; it must have concurrency 1.
    `topic`, `bootstrap` and `driver` are found as the commands find them (AMCAST_TOPIC, ...,
    `amcast.toml`); `options` are further ones of `Consumer`. What the agent has processed is
    committed every `commit_every_s` seconds and at the worker's end. Does not connect: the worker
    does once its tables are recovered. Raises `UsageError` for missing or invalid settings.
    """
    chosen = settings(bootstrap=bootstrap, topic=topic, driver=driver)

    def make() -> AsyncConsumer:
        return AsyncConsumer(
            chosen.bootstrap,
            topic=chosen.topic,
            name=consumer,
            driver=chosen.driver,
            **{"client": chosen.client, **options},
        )

    reader = OrderedReader(app, f"{chosen.topic}.{consumer}", make, commit_every_s)
    channel = OrderedChannel(app, reader)
    reader.on_end = lambda: channel._throw(StopAsyncIteration())  # noqa: SLF001 - Faust's own name
    app.service(
        cast("type[OrderedReader]", reader)
    )  # takes a service, too, and then starts that one
    return channel
