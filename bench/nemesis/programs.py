"""The clients of a nemesis run, as processes: `python -m bench.nemesis.programs produce JSON`.

JSON is a `Produce`, a `Consume` or an `ConsumerAudit`. Each writes a history, a file of its own
that `bench.nemesis.histories` describes; the file has its first line once the client is open. A
process that is told to stop (SIGTERM) ends what it does within bounds, and says at the end of its
file that it did.

    begun       the call's line stands in the file, AFTER that the message is sent; so a call that
                a kill interrupts is known
    noted       the delivery's line stands in the file, AFTER that its cursor is committed; so a
                consumer that is killed delivers some messages again, and skips none
    waited out  an error that is retriable: the cluster is away, and will be back. Any other ends
                the process with a sentence on stderr and the error's exit code

What is written has reached the operating system: a kill takes none of it.
"""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import json
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, TypeVar

from bench.nemesis.histories import AUDIT
from multicast.consumer import Consumer
from multicast.delivery import Batch
from multicast.drivers.protocol import Appended, AppendFailed, AppendOutcome
from multicast.errors import AmcastError, TimedOut, UsageError
from multicast.producer import Producer

_NS = 10**9
_TICK_S = 0.02
_POLL_S = 0.1
_AGAIN_S = 0.2
_LATE_S = 1.0
_DISK_FULL_S = 120.0
_CLOSE_S = 5.0
_pause = threading.Event()  # never set: what is waited for is a time
_Opened = TypeVar("_Opened")


@dataclass(frozen=True, slots=True, kw_only=True)
class Produce:
    """Multicast to these sets in turns, at intended times, whatever the cluster does.

    `rate`            messages/s
    `unsettled_max`   calls without an outcome; what is due beyond is dropped and counted
    """

    bootstrap: str
    topic: str
    name: str
    instance: str
    sets: Sequence[Sequence[str]]
    rate: float
    history: str
    bytes: int = 100
    driver: str = "librdkafka"
    client: Mapping[str, str] = field(default_factory=dict)
    unsettled_max: int = 3000
    delivery_timeout_s: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Consume:
    """Deliver to one consumer of the plan, from its committed cursor until told to stop.

    Then it reads what there is by then, for at most `end_timeout_s`. `late` is for a consumer that
    joins in a later epoch.
    """

    bootstrap: str
    topic: str
    name: str
    instance: str
    history: str
    driver: str = "librdkafka"
    client: Mapping[str, str] = field(default_factory=dict)
    commit_every_s: float = 0.2
    end_timeout_s: float = 60.0
    late: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerAudit:
    """Deliver all that one consumer of the plan is addressed by, from the start, and its values."""

    bootstrap: str
    topic: str
    name: str
    history: str
    instance: str = "audit"
    driver: str = "librdkafka"
    client: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 60.0


Order = Produce | Consume | ConsumerAudit


def command(order: Order) -> list[str]:
    """Return the command line of the process that does this."""
    verb = next(verb for verb, (made, _) in _VERBS.items() if isinstance(order, made))
    return [sys.executable, "-m", "bench.nemesis.programs", verb, json.dumps(asdict(order))]


class Notes:
    """A file of lines that only grows, and that no other process has written to.

    A full disk is waited out, for at most two minutes: nothing is done that is not noted.
    """

    def __init__(self, path: str) -> None:
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        except OSError as error:
            raise UsageError(f"{path} cannot be made: {error.strerror}") from error
        self._path = path

    def write(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Append the lines; they survive this process from then on. Raises `AmcastError`."""
        text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
        left = memoryview(text.encode())
        deadline = time.monotonic() + _DISK_FULL_S
        while left:
            try:
                left = left[os.write(self._file, left) :]
            except OSError as error:
                full = error.errno in (errno.ENOSPC, errno.EDQUOT)
                if not full or time.monotonic() > deadline:
                    raise AmcastError(
                        f"{self._path} cannot be written: {error.strerror}"
                    ) from error
                _pause.wait(_TICK_S)


class Stop:
    """Whether the process is told to stop: by SIGTERM, or by the end of who started it."""

    def __init__(self) -> None:
        self._parent = os.getppid()
        self._told = False
        signal.signal(signal.SIGTERM, self._tell)

    @property
    def asked(self) -> bool:
        """Look now."""
        return self._told or os.getppid() != self._parent

    def _tell(self, *_: object) -> None:
        # No lock here: the handler runs in the main thread, which may hold it.
        self._told = True


def _opened(make: Callable[[], _Opened], stop: Stop) -> _Opened | None:
    """Open a client, as soon as the cluster answers; None where it is told to stop before."""
    while not stop.asked:
        try:
            return make()
        except AmcastError as error:
            if not error.retriable:
                raise
            _pause.wait(_AGAIN_S)
    return None


# -- producing ----------------------------------------------------------------------------------


def produce(order: Produce) -> None:
    """Multicast until told to stop; then see through what is outstanding."""
    stop, notes = Stop(), Notes(order.history)
    producer = _opened(
        lambda: Producer(
            order.bootstrap,
            topic=order.topic,
            driver=order.driver,
            client=order.client,
            block_s=0.0,
            delivery_timeout_s=order.delivery_timeout_s,
        ),
        stop,
    )
    if producer is None:
        return
    calling = _Calling(order, producer, notes)
    try:
        while not stop.asked:
            calling.turn()
    finally:
        calling.end()


class _Calling:
    """An open loop of calls: begun, sent, and their outcomes."""

    def __init__(self, order: Produce, producer: Producer, notes: Notes) -> None:
        self._order = order
        self._producer = producer
        self._notes = notes
        self._begun = 0
        self._settled = 0
        self._due = 0
        self._dropped = 0
        self._outcomes: deque[tuple[int, int, AppendOutcome]] = deque()
        self._logs: dict[int, str] = {}  # by call without an outcome
        notes.write([{"producer": order.name, "instance": order.instance, "ns": _now()}])
        self._began_ns = _now()

    def turn(self) -> None:
        """Wait for the next intended time, and make the calls that are due by then."""
        order = self._order
        wait_s = (self._began_ns - _now()) / _NS + self._due / order.rate
        if wait_s > 0:
            _pause.wait(min(wait_s, _TICK_S))
        due = int((_now() - self._began_ns) / _NS * order.rate) + 1 - self._due
        self._due += max(0, due)
        lines = self._take_outcomes()
        # After a freeze or with no room: the load goes on at its rate, and nothing is made up for.
        room = order.unsettled_max - (self._begun - self._settled)
        count = max(0, min(due, room, int(_LATE_S * order.rate) + 1))
        if due > count:
            self._dropped += due - count
            lines.append({"dropped": self._dropped})
        numbers = range(self._begun, self._begun + count)
        lines += [{"begun": n, "to": self._to(n), "ns": _now()} for n in numbers]
        self._notes.write(lines)
        self._begun += count
        for number in numbers:
            self._call(number)

    def end(self) -> None:
        """Wait for the outcomes, for as long as they may take, and note them."""
        with contextlib.suppress(TimedOut):  # closing gives up on what is left: it is unknown
            self._producer.flush(self._order.delivery_timeout_s + _CLOSE_S)
        self._producer.close(_CLOSE_S)
        self._notes.write([*self._take_outcomes(), {"end": True, "ns": _now()}])

    def _to(self, number: int) -> Sequence[str]:
        return self._order.sets[number % len(self._order.sets)]

    def _call(self, number: int) -> None:
        order = self._order
        value = f"{order.name}/{order.instance}/{number} ".encode().ljust(order.bytes, b".")
        try:
            receipt = self._producer.multicast(
                value, to=self._to(number), done=partial(self._done, number)
            )
        except AmcastError as error:
            if not error.retriable:
                raise
            # Nothing was sent. The next call is another message: none is ever sent twice by us.
            self._done(number, AppendFailed(error))
        else:
            self._logs[number] = receipt.log.name

    def _done(self, number: int, outcome: AppendOutcome) -> None:
        """Keep an outcome and its time; from the driver's thread."""
        self._outcomes.append((number, _now(), outcome))

    def _take_outcomes(self) -> list[dict[str, Any]]:
        lines = []
        for _ in range(len(self._outcomes)):
            number, ns, outcome = self._outcomes.popleft()
            line: dict[str, Any] = {"call": number, "outcome": _word(outcome), "ns": ns}
            log = self._logs.pop(number, "")
            if isinstance(outcome, Appended):
                line["message_id"] = f"{log}:{outcome.offset}"
            lines.append(line)
        self._settled += len(lines)
        return lines


def _word(outcome: AppendOutcome) -> str:
    if isinstance(outcome, Appended):
        return "accepted"
    return "failed" if outcome.error.definite else "unknown"


# -- consuming ----------------------------------------------------------------------------------


def consume(order: Consume) -> None:
    """Deliver until told to stop, then to the end of what there is."""
    stop, notes = Stop(), Notes(order.history)
    consumer = _opened(
        lambda: Consumer(
            order.bootstrap,
            topic=order.topic,
            name=order.name,
            driver=order.driver,
            client=order.client,
        ),
        stop,
    )
    if consumer is None:
        return
    with consumer:
        delivering = _Delivering(consumer, order.name, order.instance, notes)
        while not stop.asked:
            delivering.turn(lambda: consumer.poll(_POLL_S))
            delivering.commit(every_s=order.commit_every_s)
        delivering.to_end(order.end_timeout_s, late=order.late)
        delivering.commit(every_s=0.0)


def audit(order: ConsumerAudit) -> None:
    """Deliver all that there is by now, from the start, under a name of the auditor's own."""
    stop, notes = Stop(), Notes(order.history)
    consumer = _opened(
        lambda: Consumer(
            order.bootstrap,
            topic=order.topic,
            name=order.name,
            committed=False,
            driver=order.driver,
            client=order.client,
        ),
        stop,
    )
    if consumer is None:
        return
    with consumer:
        late = consumer.position.epoch > 1  # earlier epochs did not cover its interest
        delivering = _Delivering(consumer, order.name + AUDIT, order.instance, notes, values=True)
        delivering.to_end(order.timeout_s, late=late)


class _Delivering:
    """One process's deliveries: noted, then perhaps committed."""

    def __init__(
        self, consumer: Consumer, label: str, instance: str, notes: Notes, *, values: bool = False
    ) -> None:
        self._consumer = consumer
        self._who = {"consumer": label, "instance": instance}
        self._notes = notes
        self._values = values
        self._sequence = 0
        self._at = self._committed = consumer.position
        self._committed_at = time.monotonic()
        interest = {"interest": consumer.interest, "from": str(self._at), "ns": _now()}
        notes.write([{**self._who, **interest}])

    def turn(self, poll: Callable[[], Iterable[Batch]]) -> bool:
        """Note what the poll delivers; False where the cluster is away, as it may be for long."""
        try:
            for batch in poll():
                self._note(batch)
        except AmcastError as error:
            if not error.retriable:
                raise
            _pause.wait(_AGAIN_S)
            return False
        return True

    def commit(self, *, every_s: float) -> None:
        """Store the position where it has moved; one that fails is made up for by the next."""
        now = time.monotonic()
        if self._at == self._committed or now - self._committed_at < every_s:
            return
        self._committed_at = now
        at = self._at
        try:
            self._consumer.commit(at)
        except AmcastError as error:
            if not error.retriable:
                raise
        else:
            self._committed = at

    def to_end(self, timeout_s: float, *, late: bool) -> None:
        """Deliver all that there is by now, and say so; raises `TimedOut`."""
        deadline = time.monotonic() + timeout_s

        def batches() -> Iterator[Batch]:
            left_s = max(1.0, deadline - time.monotonic())
            for batch in self._consumer.until_end(timeout=left_s):
                yield batch
                if time.monotonic() > deadline:
                    break

        while not self.turn(batches):
            if time.monotonic() > deadline:
                break
        if time.monotonic() > deadline:
            raise TimedOut(f"the end was not reached within {timeout_s:g} s")
        end = {"end": True, "ns": _now()}
        self._notes.write([{**self._who, **end, **({"late": True} if late else {})}])

    def _note(self, batch: Batch) -> None:
        """Note a batch, AFTER that the position is behind it."""
        lines: list[dict[str, Any]] = []
        now_ns = _now()
        for record in batch.records:
            line = {
                **self._who,
                "sequence": self._sequence,
                "message_id": f"{batch.log.name}:{record.offset}",
                "to": batch.to,
                "epoch": batch.epoch,
                "ns": now_ns,
            }
            if self._values:
                line["value"] = (record.value or b"").partition(b" ")[0].decode(errors="replace")
            lines.append(line)
            self._sequence += 1
        cursor = batch.cursor()
        lines[-1]["cursor"] = str(cursor)
        self._notes.write(lines)
        self._at = cursor


def _now() -> int:
    return time.monotonic_ns()


# -- the command --------------------------------------------------------------------------------

_VERBS: dict[str, tuple[Any, Callable[[Any], None]]] = {
    "produce": (Produce, produce),
    "consume": (Consume, consume),
    "audit": (ConsumerAudit, audit),
}


def main(arguments: Sequence[str]) -> int:
    """Do what the arguments say; return the exit code. SIGUSR1 tells where every thread stands."""
    faulthandler.register(signal.SIGUSR1)
    try:
        if len(arguments) != 2 or arguments[0] not in _VERBS:
            raise UsageError(f"say one of {', '.join(_VERBS)}, and a JSON object")
        made, work = _VERBS[arguments[0]]
        try:
            order = made(**json.loads(arguments[1]))
        except (TypeError, ValueError) as error:
            raise UsageError(f"that is no {arguments[0]}: {error}") from error
        work(order)
    except AmcastError as error:
        sys.stderr.write(f"{' '.join(arguments[:1])}: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
