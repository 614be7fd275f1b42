"""One arm of the benchmark: a process with a producer and a consumer.

    client.py BOOTSTRAP TOPIC LOG BESIDE CALL off|scraped collected|frozen

Reads numbers of messages from stdin, one a line: sends and receives so many, and writes the CPU
seconds that this process has used so far. It imports `multicast` only, which may be that of
another checkout (PYTHONPATH).
"""

from __future__ import annotations

import gc
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from multicast import Consumer, Producer

_BYTES = 100
_CALLS_IN_FLIGHT = 1000  # by single messages; some calls with many
_MESSAGES_IN_FLIGHT = 20_000


def _round(producer: Producer, consumer: Consumer, log: str, messages: int, call: int) -> None:
    payloads = [bytes(_BYTES)] * call
    pending: deque[Any] = deque()
    ahead = min(_CALLS_IN_FLIGHT, _MESSAGES_IN_FLIGHT // call)
    for _ in range(messages // call):
        if len(pending) == ahead:
            pending.popleft().accepted()
        if call == 1:
            pending.append(producer.multicast(payloads[0], to=(log,)))
        else:
            pending.append(producer.multicast_all(payloads, to=(log,)))
    while pending:
        pending.popleft().accepted()
    left = messages // call * call
    if call == 1:
        for _ in consumer:
            left -= 1
            if not left:
                break
    else:
        for batch in consumer.batches():
            left -= len(batch.records)
            if not left:
                break


def main(arguments: Sequence[str]) -> None:
    """Serve rounds until stdin ends."""
    bootstrap, topic, log, beside, call, arm, objects = arguments
    place: dict[str, Any] = {"bootstrap": bootstrap, "topic": topic}
    with ExitStack() as opened:
        consumer = opened.enter_context(
            Consumer(**place, interest={log, beside}, committed=False, start="latest")
        )
        producer = opened.enter_context(Producer(**place))
        if arm == "scraped":
            from multicast.metrics.serving import serving  # noqa: PLC0415 - older ones lack it

            metrics = opened.enter_context(serving(0))
            metrics.add(producer)
            metrics.add(consumer)
        if objects == "frozen":
            gc.collect()
            gc.freeze()
        for line in sys.stdin:
            if int(line):
                _round(producer, consumer, log, int(line), int(call))
            sys.stdout.write(f"{time.process_time()}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
