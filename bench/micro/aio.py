"""Compares `multicast.aio` with the synchronous producer and consumer: latency and throughput.

    python -m bench.micro.aio [--rounds 7] [--driver librdkafka]

One broker, one collector, two logs; messages of 100 bytes. In each round both arms do the same one
after the other, in turns first: the synchronous arm with a thread that sends and one that reads,
the asynchronous arm with two tasks of one event loop. A ratio is asynchronous / synchronous, of one
round; printed are the medians, and the least and greatest ratio.

    accepted    p50 from the call of `multicast` to the return of `accepted`, at a low rate
    delivered   p50 from the call of `multicast` to the message in the application
    send        messages/s from the first `multicast` to the last outcome, as fast as possible
    send_all    the same with `multicast_all`, 256 messages a call
    read        messages/s of a stored backlog, from the opening on, message by message
    read_batches    the same by batches
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

from bench.harness import figures
from bench.harness.rig import Rig, pause, standing
from multicast.aio import AsyncConsumer, AsyncProducer
from multicast.consumer import Consumer
from multicast.errors import TimedOut
from multicast.producer import Producer

_SPACING_S = 0.005  # between two messages at the low rate: each finds an idle system
_BYTES = 100
_CALL = 256
_WARM_UP = 20
_PATIENCE_S = 60.0
_TO = ("P1",)
_HIGHER_IS_BETTER = ("send", "send_all", "read", "read_batches")
Figures = dict[str, float]


def _stamp() -> bytes:
    return time.perf_counter_ns().to_bytes(8).ljust(_BYTES, b".")


def _age_ns(payload: bytes | None) -> int:
    assert payload is not None
    return time.perf_counter_ns() - int.from_bytes(payload[:8])


def _p50_us(ages_ns: Sequence[int]) -> float:
    return statistics.median(ages_ns[_WARM_UP:]) / 1000


class _Arms:
    """The same work, done by threads and by an event loop."""

    def __init__(self, rig: Rig, driver: str, *, probes: int, messages: int, backlog: int) -> None:
        self._place: dict[str, Any] = {
            "bootstrap": rig.bootstrap,
            "topic": rig.topic,
            "driver": driver,
        }
        self._probes = probes
        self._messages = messages
        self._backlog = backlog
        self._payload = bytes(_BYTES)

    def _producer(self) -> Producer:
        return Producer(**self._place)

    def _consumer(self, start: str) -> Consumer:
        return Consumer(**self._place, name="C1", committed=False, start=start)

    # -- threads --------------------------------------------------------------------------------

    def latency(self) -> Figures:
        accepted: list[int] = []
        delivered: list[int] = []
        ready = threading.Event()

        def read() -> None:
            with self._consumer("latest") as consumer:
                consumer.poll(0.0)
                ready.set()
                for message in consumer:
                    delivered.append(_age_ns(message.payload))
                    if len(delivered) == self._probes:
                        return

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        if not ready.wait(_PATIENCE_S):
            raise TimedOut("the consumer did not open")
        with self._producer() as producer:
            for _ in range(self._probes):
                payload = _stamp()
                producer.multicast(payload, to=_TO).accepted()
                accepted.append(_age_ns(payload))
                pause(_SPACING_S)
            reader.join(_PATIENCE_S)
        if reader.is_alive():
            raise TimedOut("not every message was delivered")
        return {"accepted": _p50_us(accepted), "delivered": _p50_us(delivered)}

    def throughput(self) -> Figures:
        with self._producer() as producer:
            producer.multicast(self._payload, to=_TO).accepted()
            began = time.perf_counter()
            receipts = [producer.multicast(self._payload, to=_TO) for _ in range(self._messages)]
            for receipt in receipts:
                receipt.accepted()
            send = self._rate(began)
            began = time.perf_counter()
            calls = [
                producer.multicast_all([self._payload] * _CALL, to=_TO)
                for _ in range(self._messages // _CALL)
            ]
            for call in calls:
                call.accepted()
            send_all = self._rate(began)
        return {"send": send, "send_all": send_all, **self._reading()}

    def _reading(self) -> Figures:
        made: Figures = {}
        began = time.perf_counter()
        with self._consumer("earliest") as consumer:
            for _ in islice(consumer, self._backlog):
                pass
            made["read"] = self._rate(began, self._backlog)
        began = time.perf_counter()
        with self._consumer("earliest") as consumer:
            count = 0
            for batch in consumer.batches():
                count += len(batch.records)
                if count >= self._backlog:
                    break
            made["read_batches"] = self._rate(began, count)
        return made

    # -- an event loop --------------------------------------------------------------------------

    def _async_consumer(self, start: str) -> AsyncConsumer:
        return AsyncConsumer(**self._place, name="C1", committed=False, start=start)

    async def async_latency(self) -> Figures:
        accepted: list[int] = []
        delivered: list[int] = []

        async def read(consumer: AsyncConsumer) -> None:
            async for message in consumer:
                delivered.append(_age_ns(message.payload))
                if len(delivered) == self._probes:
                    return

        async with (
            self._async_consumer("latest") as consumer,
            AsyncProducer(**self._place) as producer,
            asyncio.timeout(_PATIENCE_S),
        ):
            reader = asyncio.create_task(read(consumer))
            for _ in range(self._probes):
                payload = _stamp()
                await (await producer.multicast(payload, to=_TO)).accepted()
                accepted.append(_age_ns(payload))
                await asyncio.sleep(_SPACING_S)
            await reader
        return {"accepted": _p50_us(accepted), "delivered": _p50_us(delivered)}

    async def async_throughput(self) -> Figures:
        async with AsyncProducer(**self._place) as producer:
            await (await producer.multicast(self._payload, to=_TO))
            began = time.perf_counter()
            receipts = [
                await producer.multicast(self._payload, to=_TO) for _ in range(self._messages)
            ]
            for receipt in receipts:
                await receipt.accepted()
            send = self._rate(began)
            began = time.perf_counter()
            calls = [
                await producer.multicast_all([self._payload] * _CALL, to=_TO)
                for _ in range(self._messages // _CALL)
            ]
            for call in calls:
                await call.accepted()
            send_all = self._rate(began)
        return {"send": send, "send_all": send_all, **await self._async_reading()}

    async def _async_reading(self) -> Figures:
        made: Figures = {}
        began = time.perf_counter()
        async with self._async_consumer("earliest") as consumer:
            count = 0
            async for _ in consumer:
                count += 1
                if count == self._backlog:
                    break
            made["read"] = self._rate(began, self._backlog)
        began = time.perf_counter()
        async with self._async_consumer("earliest") as consumer:
            count = 0
            async for batch in consumer.batches():
                count += len(batch.records)
                if count >= self._backlog:
                    break
            made["read_batches"] = self._rate(began, count)
        return made

    def _rate(self, began: float, count: int | None = None) -> float:
        return (count or self._messages) / (time.perf_counter() - began)


def measure(
    rig: Rig, driver: str, *, rounds: int, probes: int, messages: int, backlog: int
) -> Figures:
    """Return, for each figure, the medians of both arms and of their ratios; p50s in us."""
    rig.fill(backlog, _BYTES)
    arms = _Arms(rig, driver, probes=probes, messages=messages, backlog=backlog)
    pairs: list[tuple[Figures, Figures]] = []
    for number in range(rounds + 1):
        figures.progress("warm-up" if number == 0 else f"round {number} of {rounds}")
        made: list[Figures] = [{}, {}]
        for work, async_work in (
            (arms.latency, arms.async_latency),
            (arms.throughput, arms.async_throughput),
        ):
            both: list[Callable[[], Figures]] = [work, lambda run=async_work: asyncio.run(run())]  # type: ignore[misc]
            for arm in (0, 1) if number % 2 else (1, 0):
                made[arm] |= both[arm]()
        if number:
            pairs.append((made[0], made[1]))
    return _summary(pairs)


def _summary(pairs: Iterable[tuple[Figures, Figures]]) -> Figures:
    """Put the figures of all rounds together."""
    rounds = list(pairs)
    summary: Figures = {}
    for name in rounds[0][0]:
        ratios = [asynchronous[name] / plain[name] for plain, asynchronous in rounds]
        unit = "per_s" if name in _HIGHER_IS_BETTER else "p50_us"
        summary[f"{name}_{unit}_sync"] = round(statistics.median([one[name] for one, _ in rounds]))
        summary[f"{name}_{unit}_async"] = round(statistics.median([two[name] for _, two in rounds]))
        summary[f"{name}_ratio"] = round(statistics.median(ratios), 3)
        summary[f"{name}_ratio_least"] = round(min(ratios), 3)
        summary[f"{name}_ratio_greatest"] = round(max(ratios), 3)
    return summary


def main(arguments: Sequence[str]) -> None:
    """Measure once, and print the figures."""
    parser = figures.parser("aio", __doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--probes", type=int, default=200, help="messages at the low rate")
    parser.add_argument(
        "--messages", type=int, default=200_000, help="messages as fast as possible"
    )
    parser.add_argument("--backlog", type=int, default=200_000, help="messages to read")
    parser.add_argument("--driver", default="librdkafka")
    options = parser.parse_args(arguments)
    with standing(2) as rig, rig.collectors() as collectors:
        collectors.wait_healthy(_PATIENCE_S)
        measured = measure(
            rig,
            options.driver,
            rounds=options.rounds,
            probes=options.probes,
            messages=options.messages,
            backlog=options.backlog,
        )
        document = figures.document("aio", measured, kafka=rig.kafka, arguments=arguments)
    figures.show(document, options.output)


if __name__ == "__main__":
    main(sys.argv[1:])
