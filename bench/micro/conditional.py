"""Measures conditional multicast beside plain multicast, and contended bookings.

    python -m bench.micro.conditional [--rounds 5] [--messages 20000] [--bookings 100000]

One broker, one collector, one log, messages of 100 bytes. In each round every arm sends the same
number of messages, at most 1,000 of them without an outcome; a rate is messages/s from the first
call to the last outcome. Printed are the medians of the rounds, and the ratios to the plain arm.

    plain        `multicast`, then `accepted`
    conditional  with tags and `expect`, then `decided`: the producer reads the log, too
    read         a new consumer reads a stored backlog of plain messages, all of them
    judged       the same with conditional messages, of which each takes effect

Bookings: clients, each a thread with a producer and a consumer, go through the same seats in the
same order and book each that they do not know to be taken, 200 at a time. Then a consumer of its
own reads everything. `doubled` counts the bookings of a seat beyond its first, `lost` those that a
receipt confirmed and the consumer did not deliver, or the other way round. The command fails unless
both are 0.
"""

from __future__ import annotations

import statistics
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bench.harness import figures
from bench.harness.rig import Rig, standing
from multicast import Consumer, LogPosition, Producer, nothing_after
from multicast.conditional.judge import WhyVoid

_TO = ("P1",)
_BYTES = 100
_IN_FLIGHT = 1000
_CHUNK = 200
_PATIENCE_S = 60.0
Figures = dict[str, float]


def _from(offset: int) -> str:
    """Give the cursor at an offset of the log."""
    return f"1/@P1/0/0/{offset}"


def _seat(payload: bytes | None) -> int:
    return int((payload or b"").split(b":")[0])


class _Rounds:
    """The arms; all messages of a run go to one log."""

    def __init__(self, rig: Rig, messages: int) -> None:
        self._place: dict[str, Any] = {"bootstrap": rig.bootstrap, "topic": rig.topic}
        self._messages = messages
        self._payload = bytes(_BYTES)
        self.too_old = 0

    def plain(self, producer: Producer) -> float:
        began = time.perf_counter()
        pending: deque[Any] = deque()
        for _ in range(self._messages):
            if len(pending) == _IN_FLIGHT:
                pending.popleft().accepted()
            pending.append(producer.multicast(self._payload, to=_TO))
        while pending:
            pending.popleft().accepted()
        return self._messages / (time.perf_counter() - began)

    def conditional(self, producer: Producer) -> float:
        """Each message has a tag of its own, so that all take effect but the too old ones."""
        began = time.perf_counter()
        pending: deque[Any] = deque()
        last = producer.multicast(self._payload, to=_TO).accepted()
        for number in range(self._messages):
            if len(pending) == _IN_FLIGHT:
                last = self._decided(pending.popleft())
            tags = {f"n{number}"}
            pending.append(
                producer.multicast(
                    self._payload, to=_TO, tags=tags, expect=nothing_after(last, tags=tags)
                )
            )
        while pending:
            self._decided(pending.popleft())
        return self._messages / (time.perf_counter() - began)

    def _decided(self, receipt: Any) -> Any:
        decision = receipt.decided()
        if not decision.takes_effect:
            if decision.reason is not WhyVoid.TOO_OLD:
                raise RuntimeError(f"message {receipt.accepted()} is {decision}")
            self.too_old += 1
        return receipt.accepted()

    def reading(self, first: int) -> float:
        """Read all that this arm has stored, from an offset on; messages/s."""
        with Consumer(**self._place, name="C1", committed=False) as consumer:
            consumer.seek(_from(first))
            began = time.perf_counter()
            count = sum(len(batch.records) for batch in consumer.until_end())
            return count / (time.perf_counter() - began)

    def round(self, turn: int) -> Figures:
        """Run both arms once, and read what each has stored."""
        made: Figures = {}
        arms = [("plain", self.plain, "read"), ("conditional", self.conditional, "judged")]
        with Producer(**self._place) as producer:
            for name, arm, read in arms if turn % 2 else arms[::-1]:
                first = producer.multicast(b"", to=_TO).accepted().offset
                made[name] = arm(producer)
                made[read] = self.reading(first)
        return made


class _Bookings:
    """Clients that want the same seats."""

    def __init__(self, rig: Rig, bookings: int, clients: int) -> None:
        self._place: dict[str, Any] = {"bootstrap": rig.bootstrap, "topic": rig.topic}
        self._left = bookings
        self._clients = clients
        self._lock = threading.Lock()
        self._start = rig.driver.last_stable_offsets([rig.partitions[0]])[rig.partitions[0]]

    def _take(self, wanted: int) -> int:
        with self._lock:
            taken = min(wanted, self._left)
            self._left -= taken
            return taken

    def client(self, number: int) -> tuple[set[bytes], int]:
        """Book until all bookings are sent; give the payloads that won, and the seats seen."""
        won: set[bytes] = set()
        seat = 0
        with (
            Producer(**self._place) as producer,
            Consumer(**self._place, name="C1", committed=False) as consumer,
        ):
            consumer.seek(_from(self._start))
            taken: set[int] = set()
            while True:
                for batch in consumer.poll(0.0):
                    taken.update(_seat(record.value) for record in batch.records)
                here = consumer.seen(_TO)
                wanted: list[int] = []
                while len(wanted) < _CHUNK:
                    if seat not in taken:
                        wanted.append(seat)
                    seat += 1
                wanted = wanted[: self._take(_CHUNK)]
                if not wanted:
                    return won, seat
                won |= self._book(producer, here, number, wanted)

    def _book(
        self, producer: Producer, here: LogPosition, number: int, wanted: Sequence[int]
    ) -> set[bytes]:
        sent = []
        for seat in wanted:
            tags = {f"seat:{seat}"}
            payload = b"%d:%d" % (seat, number)
            expect = nothing_after(here, tags=tags)
            sent.append((payload, producer.multicast(payload, to=_TO, tags=tags, expect=expect)))
        return {payload for payload, receipt in sent if receipt.decided().takes_effect}

    def run(self) -> Figures:
        """Run all clients, then check."""
        bookings = self._left
        began = time.perf_counter()
        with ThreadPoolExecutor(self._clients) as pool:
            results = list(pool.map(self.client, range(self._clients)))
        took = time.perf_counter() - began
        won: set[bytes] = set().union(*(one for one, _ in results))
        delivered: list[bytes] = []
        with Consumer(**self._place, name="C1", committed=False) as consumer:
            consumer.seek(_from(self._start))
            for batch in consumer.until_end():
                delivered += [record.value or b"" for record in batch.records]
            void = consumer.void
        seats = [_seat(payload) for payload in delivered]
        return {
            "bookings": bookings,
            "clients": self._clients,
            "bookings_per_s": round(bookings / took),
            "seats_booked": len(set(seats)),
            **{f"void_{why.replace(' ', '_')}": count for why, count in void.items()},
            "doubled": len(seats) - len(set(seats)),
            "lost": len(won ^ set(delivered)),
        }


def measure(rig: Rig, *, rounds: int, messages: int) -> Figures:
    """Return the medians of the rounds, and of the ratios within each."""
    arms = _Rounds(rig, messages)
    made = []
    for number in range(rounds + 1):
        figures.progress("warm-up" if number == 0 else f"round {number} of {rounds}")
        one = arms.round(number)
        if number:
            made.append(one)
    summary: Figures = {
        f"{name}_per_s": round(statistics.median(one[name] for one in made)) for name in made[0]
    }
    for name, base in (("conditional", "plain"), ("judged", "read")):
        ratios = [one[name] / one[base] for one in made]
        summary[f"{name}_ratio"] = round(statistics.median(ratios), 3)
        summary[f"{name}_ratio_least"] = round(min(ratios), 3)
        summary[f"{name}_ratio_greatest"] = round(max(ratios), 3)
    summary["too_old"] = arms.too_old
    return summary


def main(arguments: Sequence[str]) -> None:
    """Measure once, and print the figures."""
    parser = figures.parser("conditional", __doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=20_000, help="of each arm in a round")
    parser.add_argument("--bookings", type=int, default=100_000)
    parser.add_argument("--clients", type=int, default=4)
    options = parser.parse_args(arguments)
    with standing(1) as rig, rig.collectors() as processes:
        processes.wait_healthy()
        measured = measure(rig, rounds=options.rounds, messages=options.messages)
        figures.progress("bookings")
        booked = _Bookings(rig, options.bookings, options.clients).run()
        document = figures.document(
            "conditional", measured | booked, kafka=rig.kafka, arguments=arguments
        )
    figures.show(document, options.output)
    if booked["doubled"] or booked["lost"]:
        sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
