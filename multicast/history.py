"""The history of a run, as JSON lines: what was multicast, and what each consumer delivered.

`amcast send`, `amcast receive`, the simulator or any other system write the lines. `HistoryBuilder`
makes one `History` of them, which is compact enough for millions of deliveries: message IDs and
destination sets are numbered, and a reading is one array of numbers. No files, no clock and no
verdicts here: `cli/verify.py` opens files, `properties.py` judges. docs/history.md describes every
line.

    consumer   a name that stands for one interest, or for one interest in each epoch
    instance   one process of that consumer; "" if there is only one
    sequence   the position of a delivery in its instance: 0, 1, 2, ...
    reading    deliveries of one instance with consecutive sequences. A sequence that goes back
               begins another reading: the instance restarted from a cursor, or sought
    end        the instance has read everything

Invariant: the number of a message is its index in `History.messages`; every number in a reading is
below their count.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from multicast.errors import UsageError
from topology.tree import Plan

ACCEPTED, FAILED, UNKNOWN, ACCEPTED_TWICE = 1, 2, 4, 8
OUTCOMES = {"accepted": ACCEPTED, "failed": FAILED, "unknown": UNKNOWN}
# A line names a message and does not contain its payload; a longer one is not a line of a history,
# and must not fill the memory.
LINE_BYTES_MAX = 1 << 20
# A sequence that goes back on every line is a mistake, not 65,536 restarts. The checks keep one bit
# for each reading and class of messages, so more readings would cost memory and time.
READINGS_MAX = 1 << 16
_CONTRADICTIONS_MAX = 10  # one is a witness, a few more show the pattern
_EPOCH_DIGITS_MAX = 8  # the epoch of a cursor; more digits need not fit into an `array("i")`


class HistoryError(UsageError):
    """A line is malformed or contradicts another one; the text says where and why."""


@dataclass(slots=True)
class UnbrokenDeliveries:
    """A reading: deliveries of one instance with consecutive sequences, as message numbers.

    The delivery at index `i` has the sequence `first + i`. `ended` and `late` come from the `end`
    line: the instance has read everything; it joined late, so it need not have the messages before
    its first delivery.
    """

    consumer: str
    instance: str
    first: int = 0
    messages: array[int] = field(default_factory=lambda: array("i"))
    ended: bool = False
    late: bool = False

    @property
    def name(self) -> str:
        """The name for sentences: "C1/a", or "C1" if the instance has no name."""
        return shown(f"{self.consumer}/{self.instance}" if self.instance else self.consumer)


@dataclass(frozen=True)
class History:
    """The content of all lines. `HistoryBuilder` makes it; it does not change afterwards."""

    messages: Sequence[str]  # the message ID of each number
    destination_of: array[int]  # by message: an index into `destinations`
    destinations: Sequence[tuple[str, ...]]  # sorted, each once
    outcomes: bytearray  # by message: ACCEPTED | FAILED | UNKNOWN | ACCEPTED_TWICE; 0: no line
    readings: Sequence[UnbrokenDeliveries]  # in the order in which they began
    interests: Mapping[str, tuple[str, ...]]  # by consumer, if known: the union over all epochs
    producers: Mapping[str, Mapping[int, None]]  # the destination sets that each multicast to
    unnamed: Mapping[int, int]  # by destination set: unknown outcomes without a message ID
    work: Mapping[tuple[str, str], int]  # records by (process, log)
    contradictions: Sequence[str]  # in words: lines that give one message two destination sets
    plans: Sequence[Plan] = ()
    other_producers: bool = False  # some producers wrote no lines
    # For consumers whose interest changes: by the first epoch of each interest.
    changing: Mapping[str, Mapping[int, tuple[str, ...]]] = field(default_factory=dict)
    epoch_of: array[int] = field(default_factory=lambda: array("i"))  # by message; 0: unknown
    sent: Mapping[int, tuple[str, int]] = field(default_factory=dict)  # producer, place among its

    @property
    def deliveries(self) -> int:
        """The number of deliveries in all readings."""
        return sum(len(reading.messages) for reading in self.readings)

    @property
    def consumers(self) -> list[str]:
        """All consumers with a delivery or an end line, in the order of their first line."""
        return list(dict.fromkeys(reading.consumer for reading in self.readings))

    def interest(self, consumer: str, epoch: int) -> tuple[str, ...]:
        """Give a consumer's interest in an epoch; () if it is unknown.

        For epoch 0 (unknown) it is the part of the interest that all epochs have.
        """
        by_epoch = self.changing.get(consumer)
        if by_epoch is None:
            return self.interests.get(consumer, ())
        if epoch:
            begun = [begin for begin in by_epoch if begin <= epoch]
            return by_epoch[max(begun)] if begun else ()
        first = by_epoch.get(1, ())
        return tuple(name for name in first if all(name in each for each in by_epoch.values()))

    def name(self, message: int) -> str:
        """Give a message's ID as sentences show it."""
        return shown(self.messages[message])

    def to(self, message: int) -> tuple[str, ...]:
        """Give a message's destination set."""
        return self.destinations[self.destination_of[message]]


class HistoryBuilder:
    """Collects the lines of a history, from `read` or from calls with plain values.

    Lines may come in any order, except that those of one instance keep theirs. Every method raises
    `HistoryError` for values that no line may have.
    """

    def __init__(self) -> None:
        self._messages: dict[str, int] = {}
        self._destination_of = array("i")
        self._destinations: dict[tuple[str, ...], int] = {}
        self._spellings: dict[tuple[str, ...] | None, int] = {}  # as written, perhaps unsorted
        self._outcomes = bytearray()
        self._readings: list[UnbrokenDeliveries] = []
        self._current: dict[tuple[str, str], UnbrokenDeliveries] = {}
        self._interests: dict[str, dict[int, tuple[str, ...]]] = {}  # by the first epoch of each
        self._epoch_of = array("i")
        self._producers: dict[str, dict[int, None]] = {}
        self._unnamed: dict[int, int] = {}
        self._work: dict[tuple[str, str], int] = {}
        self._contradictions: list[str] = []
        self._sent: dict[int, tuple[str, int]] = {}

    def delivery(
        self,
        *,
        consumer: str,
        message_id: str,
        to: Collection[str],
        instance: str | None = None,
        sequence: int | None = None,
        epoch: int = 0,
    ) -> None:
        """Add a delivery; it follows the instance's earlier ones.

        `epoch` is the epoch in the message's cursor; 0: unknown.
        """
        try:
            reading = self._current[consumer, instance or ""]
        except KeyError:
            reading = self._begin(_text("consumer", consumer), _text("instance", instance or ""))
        except TypeError:
            raise HistoryError("consumer or instance is not a string") from None
        number = self._number(message_id, to)
        if sequence is not None and sequence != reading.first + len(reading.messages):
            reading = self._jump(reading, sequence)
        reading.messages.append(number)
        if epoch:
            self._epoch_of[number] = epoch

    def acknowledgement(
        self,
        *,
        producer: str,
        to: Collection[str],
        outcome: str,
        message_id: str | None = None,
        epoch: int = 0,
        sent: int | None = None,
    ) -> None:
        """Add the outcome of a multicast: "accepted", "failed" (certainly) or "unknown"."""
        flag = OUTCOMES.get(outcome) if isinstance(outcome, str) else None
        if flag is None:
            raise HistoryError(f"outcome is {outcome!r}, not accepted, failed or unknown")
        if message_id is None:
            if flag == ACCEPTED:
                raise HistoryError("an accepted multicast has no message_id")
            destination = self._destination(to)
            if flag == UNKNOWN:
                self._unnamed[destination] = self._unnamed.get(destination, 0) + 1
        else:
            number = self._number(message_id, to)
            if flag == ACCEPTED and self._outcomes[number] & ACCEPTED:
                flag = ACCEPTED_TWICE
            self._outcomes[number] |= flag
            self._epoch_of[number] = self._epoch_of[number] or epoch
            destination = self._destination_of[number]
            if sent is not None:
                self._sent[number] = _text("producer", producer), _count("sent", sent)
        self._producers.setdefault(_text("producer", producer), {})[destination] = None

    def interest(self, *, consumer: str, interest: Collection[str], epoch: int = 1) -> None:
        """Add a consumer's interest from an epoch on. The same statement may be repeated.

        Before the first epoch that is given, the consumer subscribes to nothing.
        """
        if not _count("epoch", epoch):
            raise HistoryError("epoch is 0; epochs count from 1")
        partitions = _partitions("interest", interest)
        known = self._interests.setdefault(_text("consumer", consumer), {}).setdefault(
            epoch, partitions
        )
        if known != partitions:
            raise HistoryError(
                f"the interest of {shown(consumer)} was {', '.join(known)} on an earlier line: "
                "give a consumer with another interest another name"
            )

    def work(self, *, process: str, log: str, records: int) -> None:
        """Add a number of records of a log that a process has handled."""
        key = (_text("process", process), _text("log", log))
        self._work[key] = self._work.get(key, 0) + _count("records", records)

    def end(self, *, consumer: str, instance: str | None = None, late: bool = False) -> None:
        """Add the end of an instance: it has read everything.

        `late`: the consumer joined late, so messages ordered before its first delivery are not
        missing. (An instance that continues from a cursor is not late: another one has read the
        beginning.)
        """
        key = (_text("consumer", consumer), _text("instance", instance or ""))
        reading = self._current.get(key) or self._begin(*key)
        reading.ended = True
        reading.late = late

    def history(self, *, plans: Sequence[Plan] = (), other_producers: bool = False) -> History:
        """Give the history; the builder must not be used afterwards.

        Interests without a line are taken from the plans. `other_producers`: some messages may come
        from producers that have no lines.
        """
        changing = {
            name: by_epoch
            for name, by_epoch in self._interests.items()
            if 1 not in by_epoch or len(set(by_epoch.values())) > 1
        }
        interests = {
            name: tuple(sorted(set().union(*by_epoch.values())))
            for name, by_epoch in self._interests.items()
        }
        for plan in plans:
            for entry in plan.consumers:
                known = interests.setdefault(entry.name, tuple(sorted(entry.interest)))
                if known != entry.interest and entry.name not in self._interests:
                    raise HistoryError(
                        f"two plans give {shown(entry.name)} different interests: "
                        "add an interest line that says which one applies"
                    )
        return History(
            messages=list(self._messages),
            destination_of=self._destination_of,
            destinations=list(self._destinations),
            outcomes=self._outcomes,
            readings=self._readings,
            interests=interests,
            producers=self._producers,
            unnamed=self._unnamed,
            work=self._work,
            contradictions=self._contradictions,
            plans=tuple(plans),
            other_producers=other_producers,
            changing=changing,
            epoch_of=self._epoch_of,
            sent=self._sent,
        )

    def _begin(self, consumer: str, instance: str) -> UnbrokenDeliveries:
        if len(self._readings) == READINGS_MAX:
            raise HistoryError(f"more than {READINGS_MAX} readings: a sequence counts 0, 1, 2, ...")
        reading = UnbrokenDeliveries(consumer, instance)
        self._readings.append(reading)
        self._current[consumer, instance] = reading
        return reading

    def _jump(self, reading: UnbrokenDeliveries, sequence: int) -> UnbrokenDeliveries:
        _count("sequence", sequence)
        expected = reading.first + len(reading.messages)
        if reading.messages:
            if sequence > expected:
                raise HistoryError(
                    f"sequence {sequence} of {reading.name} follows {expected - 1}: "
                    "the lines between are missing"
                )
            reading = self._begin(reading.consumer, reading.instance)
        reading.first = sequence
        return reading

    def _number(self, message_id: str, to: Collection[str]) -> int:
        destination = self._destination(to)
        if type(message_id) is not str:
            raise HistoryError(f"message_id is {message_id!r}, not a string")
        number = self._messages.setdefault(message_id, len(self._messages))
        if number == len(self._destination_of):
            self._destination_of.append(destination)
            self._outcomes.append(0)
            self._epoch_of.append(0)
        elif self._destination_of[number] != destination:
            self._contradict(message_id, number, destination)
        return number

    def _contradict(self, message_id: str, number: int, destination: int) -> None:
        if len(self._contradictions) < _CONTRADICTIONS_MAX:
            names = list(self._destinations)
            first, other = names[self._destination_of[number]], names[destination]
            self._contradictions.append(
                f"{shown(message_id)} is addressed to {joined(first)} on one line "
                f"and to {joined(other)} on another"
            )

    def _destination(self, to: Collection[str]) -> int:
        written = tuple(to) if type(to) is list else None
        try:
            return self._spellings[written]
        except (KeyError, TypeError):
            sorted_to = _partitions("to", to)
        number = self._destinations.setdefault(sorted_to, len(self._destinations))
        if written is not None:
            self._spellings[written] = number
        return number


def read(lines: Iterable[bytes], builder: HistoryBuilder, *, source: str) -> None:
    """Add the JSON lines of one source, for example a file opened for bytes, to the builder.

    Skips a byte order mark and blank lines, ignores unknown fields. Raises `HistoryError` at the
    first malformed line; its text begins with "source:line".
    """
    decode = json.JSONDecoder().raw_decode
    for count, raw in enumerate(lines, 1):
        try:
            if len(raw) > LINE_BYTES_MAX:
                raise HistoryError(f"the line is longer than {LINE_BYTES_MAX} bytes")  # noqa: TRY301
            text = raw.decode("utf-8-sig" if count == 1 else "utf-8").strip()
            if not text:
                continue
            line, stop = decode(text)
            if stop != len(text):
                raise HistoryError("the line has more than one JSON document")  # noqa: TRY301
            _add(line, builder)
        except HistoryError as wrong:
            raise HistoryError(f"{source}:{count}: {wrong}") from None
        except UnicodeDecodeError:
            raise HistoryError(f"{source}:{count}: the line is not UTF-8") from None
        except (ValueError, RecursionError):
            cut = "" if raw.endswith(b"\n") else ", it is cut off"
            raise HistoryError(f"{source}:{count}: the line is not a JSON object{cut}") from None


def _add(line: Any, builder: HistoryBuilder) -> None:
    if type(line) is not dict:
        raise HistoryError("the line is not a JSON object")
    try:
        if "consumer" in line and "message_id" in line:
            builder.delivery(
                consumer=line["consumer"],
                message_id=line["message_id"],
                to=line["to"],
                instance=line.get("instance"),
                sequence=line.get("sequence"),
                epoch=_epoch_of(line.get("cursor")),
            )
        elif "producer" in line and "outcome" in line:
            builder.acknowledgement(
                producer=line["producer"],
                message_id=line.get("message_id"),
                to=line["to"],
                outcome=line["outcome"],
                sent=line.get("sent"),
            )
        elif "consumer" in line and "interest" in line:
            builder.interest(
                consumer=line["consumer"], interest=line["interest"], epoch=line.get("epoch", 1)
            )
        elif "consumer" in line and "end" in line:
            if line["end"] is not True or line.get("late", False) not in (True, False):
                raise HistoryError("end can only be true, late only true or false")
            builder.end(
                consumer=line["consumer"],
                instance=line.get("instance"),
                late=line.get("late", False),
            )
        elif "process" in line:
            builder.work(process=line["process"], log=line["log"], records=line["records"])
        else:
            raise HistoryError(
                "the line is not a delivery, acknowledgement, interest, end or work line"
            )
    except KeyError as missing:
        raise HistoryError(f"the field {missing} is missing") from None


# -- writing ----------------------------------------------------------------------------------


def delivery_line(
    *,
    consumer: str,
    instance: str,
    sequence: int,
    message_id: str,
    to: Iterable[str],
    cursor: str | None = None,
) -> str:
    """Give the line for one delivery, with a line feed.

    `sequence` counts the instance's deliveries from 0, and again from 0 after each start and each
    seek. `cursor` is the position after the message; the checks use only its epoch.
    """
    line = {"consumer": consumer, "instance": instance, "sequence": sequence}
    return _line(line | {"message_id": message_id, "to": sorted(to), "cursor": cursor})


def acknowledgement_line(
    *,
    producer: str,
    message_id: str | None,
    to: Iterable[str],
    outcome: str,
    sent: int | None = None,
) -> str:
    """Give the line for one multicast, with a line feed; "accepted", "failed" or "unknown".

    "failed" is for definite errors only. `message_id` is None if the message was not accepted.
    """
    assert outcome in OUTCOMES
    assert message_id is not None or outcome != "accepted"
    line = {"producer": producer, "message_id": message_id, "to": sorted(to), "outcome": outcome}
    return _line(line | {"sent": sent})


def interest_line(*, consumer: str, interest: Iterable[str], epoch: int | None = None) -> str:
    """Give the line for a consumer's interest from an epoch on, with a line feed."""
    return _line({"consumer": consumer, "interest": sorted(interest), "epoch": epoch})


def work_line(*, process: str, log: str, records: int) -> str:
    """Give the line for the records of a log that a process has handled, with a line feed."""
    return _line({"process": process, "log": log, "records": records})


def end_line(*, consumer: str, instance: str, late: bool = False) -> str:
    """Give the line for an instance that has read everything, with a line feed."""
    line = {"consumer": consumer, "instance": instance, "end": True}
    return _line(line | {"late": True} if late else line)


def _line(fields: dict[str, Any]) -> str:
    return json.dumps({name: value for name, value in fields.items() if value is not None}) + "\n"


def shown(name: str) -> str:
    """Give a name as sentences show it: as JSON if it could corrupt a terminal."""
    return name if name.isprintable() and name else json.dumps(name)


def joined(names: Iterable[str]) -> str:
    """Give a sorted set of partitions as sentences show it: joined by "+", like a log's name."""
    return shown("+".join(names))


def _epoch_of(cursor: Any) -> int:
    """Give the epoch in a cursor's text form; 0 if the value is not a cursor of amcast."""
    if type(cursor) is not str:
        return 0
    epoch = cursor.partition("/")[0]
    is_epoch = epoch.isascii() and epoch.isdecimal() and len(epoch) <= _EPOCH_DIGITS_MAX
    return int(epoch) if is_epoch else 0


def _text(field_name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise HistoryError(f"{field_name} is {value!r}, not a string")
    return value


def _count(field_name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise HistoryError(f"{field_name} is {value!r}, not a whole number of 0 or more")
    return value


def _partitions(field_name: str, value: Any) -> tuple[str, ...]:
    # A string is a sequence of strings: "P1" must not become the set {"1", "P"}.
    names = list(value) if isinstance(value, list | tuple | set | frozenset) else []
    if not names or not all(isinstance(name, str) for name in names):
        raise HistoryError(f"{field_name} is {value!r}, not a list of one or more partitions")
    return tuple(sorted(set(names)))
