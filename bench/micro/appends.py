"""Compares appends by a Kafka client's producer and by a direct socket: p50 until the answer.

    python -m bench.micro.appends [--rounds 9] [--records 200]

One broker; single records of 60 bytes with a pause after each, alternately through the driver's
appender and through `DirectAppender`. The difference is the time to wake the client's threads,
twice. This is the case of an order record, because its collector is idle most of the time.
"""

from __future__ import annotations

import select
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence

from bench.harness import figures
from bench.harness.rig import Rig, pause, standing
from multicast.drivers.protocol import AppendOutcome, DirectAppender

_PAUSE_S = 0.004  # between two appends, so that the client's threads fall asleep
_ANSWER_S = 10.0  # for the broker to answer; a slower one hangs
_RECORD = bytes(60)  # about an order record with one run


def measure(rig: Rig, *, rounds: int, records: int) -> dict[str, float]:
    """Return the medians of the rounds' p50s, in microseconds, and the spread of their ratios."""
    appender = rig.driver.appender()
    direct = rig.driver.direct_appender()
    assert direct is not None
    direct.add([rig.partitions[0]])
    direct.reconnect()
    came = threading.Event()

    def answered(_: AppendOutcome) -> None:
        came.set()

    def by_producer() -> None:
        appender.append(rig.partitions[0], _RECORD, done=answered)
        assert came.wait(_ANSWER_S), "the producer was not answered"

    def directly() -> None:
        assert direct.append(rig.partitions[0], _RECORD, done=answered), (
            "there is no connection to the broker"
        )
        _hear(direct, came)

    by_producer()  # the first one finds the leader
    pairs: list[tuple[float, float]] = []
    for number in range(rounds):
        figures.progress(f"round {number + 1} of {rounds}")
        both = [(_took_us(by_producer, came), _took_us(directly, came)) for _ in range(records)]
        producer, socket = zip(*both, strict=True)
        pairs.append((statistics.median(producer), statistics.median(socket)))
    direct.close()
    appender.close()
    ratios = [socket / producer for producer, socket in pairs]
    return {
        "producer_p50_us": round(statistics.median([producer_us for producer_us, _ in pairs]), 1),
        "direct_p50_us": round(statistics.median([direct_us for _, direct_us in pairs]), 1),
        "ratio": round(statistics.median(ratios), 3),
        "ratio_least": round(min(ratios), 3),
        "ratio_greatest": round(max(ratios), 3),
    }


def _took_us(append: Callable[[], None], came: threading.Event) -> float:
    came.clear()
    begun = time.perf_counter_ns()
    append()
    took = time.perf_counter_ns() - begun
    pause(_PAUSE_S)
    return took / 1000


def _hear(direct: DirectAppender, came: threading.Event) -> None:
    deadline = time.monotonic() + _ANSWER_S
    while not came.is_set():
        left = deadline - time.monotonic()
        assert left > 0, "the broker did not answer"
        select.select([direct.fileno()], [], [], left)
        direct.receive()


def main(arguments: Sequence[str]) -> None:
    """Measure once, and print the figures."""
    parser = figures.parser("appends", __doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--records", type=int, default=200)
    options = parser.parse_args(arguments)
    with standing(1) as rig:
        measured = measure(rig, rounds=options.rounds, records=options.records)
        document = figures.document("appends", measured, kafka=rig.kafka, arguments=arguments)
    figures.show(document, options.output)


if __name__ == "__main__":
    main(sys.argv[1:])
