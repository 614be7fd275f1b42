"""What the clients of a nemesis run noted, read back: one file a process, one JSON object a line.

In go the files, of processes that ended and of processes that were killed; out comes a
`RunHistory`: a `multicast.history` for the guarantees, and what only the values and the times tell.

A producer's file. `ns` is this machine's monotonic clock, the same for all its processes.

    {"producer": "p1", "instance": "a", "ns": 1}       it is open
    {"begun": 0, "to": ["P1"], "ns": 2}                before the call: numbers count 0, 1, 2, ...
    {"call": 0, "outcome": "accepted", "message_id": "P1:7", "ns": 3}     or failed, or unknown
    {"dropped": 12}                                    calls that it did not make so far
    {"end": true, "ns": 4}                             nothing is outstanding

A consumer's file has the lines of docs/history.md, with `ns` and `epoch` and these: its first line,
the interest, has `instance` and `from`, the cursor at which it began; a delivery after which it may
commit has its `cursor`; an auditor's delivery has the message's `value`.

    value   "PRODUCER/INSTANCE/NUMBER": which call the message is of
    torn    a last line without an end: its process was killed, or is still writing

Invariant: a call was begun before its outcome, and has at most one.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from multicast.history import OUTCOMES, History, HistoryBuilder, HistoryError, joined
from topology.tree import Plan

AUDIT = ".audit"  # an auditor's name ends so: under the consumer's own it would hide its losses
_NOWHERE = -1
_OFFSET_BITS = 44
_SHOWN_MAX = 10  # of a kind: one is a witness, a few more help to see a pattern


class HistoryFinding(NamedTuple):
    """Something that is wrong and that message IDs alone do not show."""

    kind: str
    sentence: str


class AcceptedDeliveries(NamedTuple):
    """Deliveries of accepted messages: when each was begun, and when it was delivered."""

    begun_ns: array[int]
    at_ns: array[int]


@dataclass(slots=True)
class Counts:
    """How much there was; `unknown` counts calls whose process died before their outcome, too."""

    begun: int = 0
    accepted: int = 0
    failed: int = 0
    unknown: int = 0
    dropped: int = 0
    deliveries: int = 0
    audited: int = 0
    torn: int = 0
    instances: int = 0


@dataclass(slots=True)
class _Calls:
    """The calls of one producer's process, by number."""

    producer: str
    instance: str
    to: list[list[str]] = field(default_factory=list)  # equal ones are one object
    begun_ns: array[int] = field(default_factory=lambda: array("q"))
    outcomes: bytearray = field(default_factory=bytearray)  # 0: none was written
    accepted: array[int] = field(default_factory=lambda: array("q"))  # where: a packed message ID
    audited: array[int] = field(default_factory=lambda: array("q"))
    dropped: int = 0

    def name(self, number: int) -> str:
        """Say which call, as its value does."""
        return f"{self.producer}/{self.instance}/{number}"


class _Begin(NamedTuple):
    """Where a consumer's process began."""

    consumer: str
    instance: str
    cursor: str


class RunHistory:
    """All that the processes of a run noted. Made by `read_histories`."""

    def __init__(self) -> None:
        self.counts = Counts()
        self.load: dict[str, array[int]] = {}
        """By destination set ("P1+P3"): when its accepted calls were begun, in no order."""
        self.delivered: dict[tuple[str, str], AcceptedDeliveries] = {}
        """By consumer (no auditor) and destination set."""
        self.interests: dict[str, tuple[str, ...]] = {}
        """By consumer (no auditor)."""
        self._builder = HistoryBuilder()
        self._calls: dict[str, _Calls] = {}
        self._logs: dict[str, int] = {}
        self._begun_ns: list[array[int]] = []  # by log and offset; 0: of no accepted call
        self._sets: dict[tuple[str, ...], list[str]] = {}
        self._begins: list[_Begin] = []
        self._after: dict[tuple[str, str], str] = {}  # consumer, cursor: the message before it
        self._cursors: set[str] = set()
        self._audited: set[str] = set()  # partitions
        self._findings: list[HistoryFinding] = []

    def history(self, plans: Sequence[Plan] = ()) -> History:
        """Return what the guarantees are judged on; once, the lines are gone after it."""
        return self._builder.history(plans=plans)

    def findings(self, history: History) -> list[HistoryFinding]:
        """Tell what is wrong beside the guarantees; `history` is what `history()` gave.

        Whether a message stands in the logs twice, under another ID than its producer was told, or
        though its append failed for certain; and whether each restart went on exactly at its
        cursor. Both need auditors.
        """
        found = [*self._findings, *self._misplaced(), *self._begun_elsewhere(history)]
        kinds = dict.fromkeys(one.kind for one in found)
        return [one for kind in kinds for one in [f for f in found if f.kind == kind][:_SHOWN_MAX]]

    def begins_at(self, cursors: Iterable[str]) -> None:
        """Say at which cursors processes began; BEFORE any line is added."""
        self._cursors.update(cursors)

    def add(self, lines: Iterator[dict[str, Any]]) -> None:
        """Take the lines of one process; all producers BEFORE any consumer."""
        first = next(lines)
        self.counts.instances += 1
        if "producer" in first:
            self._produced(first, lines)
        else:
            self._consumed(first, lines)

    # -- producers --------------------------------------------------------------------------

    def _produced(self, first: dict[str, Any], lines: Iterator[dict[str, Any]]) -> None:
        calls = _Calls(first["producer"], first["instance"])
        key = f"{calls.producer}/{calls.instance}"
        if self._calls.setdefault(key, calls) is not calls:
            raise HistoryError(f"{key} wrote another file: give each process an instance")
        for line in lines:
            if "begun" in line:
                self._begun(calls, line)
            elif "call" in line:
                self._outcome(calls, line)
            elif "dropped" in line:
                calls.dropped = int(line["dropped"])
            elif "end" not in line:
                raise HistoryError("the line is no begun, call, dropped or end line")
        self._settle(calls)

    def _settle(self, calls: _Calls) -> None:
        """Take what a process did until its death: calls without an outcome are unknown."""
        counts = self.counts
        counts.dropped += calls.dropped
        counts.begun += len(calls.outcomes)
        unsettled = [n for n, outcome in enumerate(calls.outcomes) if not outcome]
        counts.unknown += len(unsettled)
        for number in unsettled:
            self._acknowledge(calls, number, "unknown", None)

    def _begun(self, calls: _Calls, line: dict[str, Any]) -> None:
        if line["begun"] != len(calls.outcomes):
            raise HistoryError(f"call {line['begun']} follows {len(calls.outcomes) - 1}")
        to: list[str] = line["to"]
        calls.to.append(self._sets.setdefault(tuple(to), to))
        calls.begun_ns.append(line["ns"])
        calls.outcomes.append(0)
        calls.accepted.append(_NOWHERE)
        calls.audited.append(_NOWHERE)

    def _outcome(self, calls: _Calls, line: dict[str, Any]) -> None:
        number, outcome = line["call"], line["outcome"]
        if not 0 <= number < len(calls.outcomes) or outcome not in OUTCOMES:
            raise HistoryError(f"call {number} was not begun, or {outcome!r} is no outcome")
        if calls.outcomes[number]:
            raise HistoryError(f"call {number} has a second outcome")
        calls.outcomes[number] = OUTCOMES[outcome]
        self._acknowledge(calls, number, outcome, line.get("message_id"))
        if outcome == "accepted":
            self.counts.accepted += 1
            calls.accepted[number] = at = self._packed(line["message_id"])
            self._note_begun(at, calls.begun_ns[number])
            to = joined(sorted(calls.to[number]))
            self.load.setdefault(to, array("q")).append(calls.begun_ns[number])
        elif outcome == "failed":
            self.counts.failed += 1
        else:
            self.counts.unknown += 1

    def _acknowledge(
        self, calls: _Calls, number: int, outcome: str, message_id: str | None
    ) -> None:
        self._builder.acknowledgement(
            producer=calls.producer, to=calls.to[number], outcome=outcome, message_id=message_id
        )

    def _note_begun(self, at: int, begun_ns: int) -> None:
        times, offset = self._begun_ns[at >> _OFFSET_BITS], at & (1 << _OFFSET_BITS) - 1
        if offset >= len(times):
            times.extend([0] * (offset + 1 - len(times)))
        times[offset] = begun_ns

    # -- consumers --------------------------------------------------------------------------

    def _consumed(self, first: dict[str, Any], lines: Iterator[dict[str, Any]]) -> None:
        name, instance = first["consumer"], first["instance"]
        audits = name.endswith(AUDIT)
        if any(begin[:2] == (name, instance) for begin in self._begins):
            raise HistoryError(f"{name}/{instance} wrote another file: give each an instance")
        self._builder.interest(consumer=name, interest=first["interest"])
        self._begins.append(_Begin(name, instance, first["from"]))
        if audits:
            self._audited.update(first["interest"])
        else:
            self.interests[name] = tuple(first["interest"])
        for line in lines:
            if "message_id" in line:
                at = self._deliver(name, instance, line)
                if audits:
                    self._audit(at, line)
                else:
                    self._time(name, at, line)
            elif "end" in line:
                self._builder.end(consumer=name, instance=instance, late=line.get("late", False))
            else:
                raise HistoryError("the line is no delivery and no end line")

    def _deliver(self, name: str, instance: str, line: dict[str, Any]) -> int:
        message_id = line["message_id"]
        self._builder.delivery(
            consumer=name,
            instance=instance,
            sequence=line["sequence"],
            message_id=message_id,
            to=line["to"],
        )
        cursor = line.get("cursor")
        if cursor in self._cursors:
            self._after[name, cursor] = message_id
        return self._packed(message_id)

    def _time(self, name: str, at: int, line: dict[str, Any]) -> None:
        """Note when a message was begun and delivered, where an accepted call was it."""
        self.counts.deliveries += 1
        times, offset = self._begun_ns[at >> _OFFSET_BITS], at & (1 << _OFFSET_BITS) - 1
        if offset < len(times) and times[offset]:
            key = (name, joined(line["to"]))
            found = self.delivered.get(key)
            if found is None:
                found = self.delivered[key] = AcceptedDeliveries(array("q"), array("q"))
            found.begun_ns.append(times[offset])
            found.at_ns.append(line["ns"])

    def _audit(self, at: int, line: dict[str, Any]) -> None:
        """Compare a message that stands in a log with the call that its value names."""
        self.counts.audited += 1
        value, message_id = line.get("value"), line["message_id"]
        process, _, digits = str(value).rpartition("/")
        calls = self._calls.get(process)
        number = int(digits) if digits.isdecimal() else -1
        if calls is None or not 0 <= number < len(calls.outcomes):
            self._find("invented", f"{message_id} holds {value!r}, and no call is of that name.")
            return
        if sorted(calls.to[number]) != sorted(line["to"]):
            self._find(
                "other destination",
                f"{message_id} holds {value}, which was multicast to {joined(calls.to[number])}, "
                f"and was delivered as addressed to {joined(line['to'])}.",
            )
        before = calls.audited[number]
        if before not in (_NOWHERE, at):
            places = " and ".join(map(self._name, sorted((before, at))))
            self._find("appended twice", f"{value} stands in the logs as {places}.")
        elif calls.accepted[number] not in (_NOWHERE, at):
            self._find(
                "value at another ID",
                f"{value} was accepted as {self._name(calls.accepted[number])}, "
                f"and stands in the logs as {message_id}.",
            )
        calls.audited[number] = at
        if calls.outcomes[number] == OUTCOMES["failed"]:
            self._find("failed but stored", f"{value} failed for certain, and is {message_id}.")

    # -- what is wrong ----------------------------------------------------------------------

    def _find(self, kind: str, sentence: str) -> None:
        same = [one for one in self._findings if one.kind == kind]
        finding = HistoryFinding(kind, sentence)
        if len(same) < _SHOWN_MAX and finding not in same:  # several auditors see one message
            self._findings.append(finding)

    def _misplaced(self) -> Iterator[HistoryFinding]:
        """Find accepted calls whose value no auditor came across."""
        for calls in self._calls.values():
            for number, at in enumerate(calls.accepted):
                if at == _NOWHERE or calls.audited[number] != _NOWHERE:
                    continue
                if not self._audited.isdisjoint(calls.to[number]):
                    yield HistoryFinding(
                        "not at its ID",
                        f"{calls.name(number)} was accepted as {self._name(at)}, "
                        "and no auditor found it there or anywhere.",
                    )

    def _begun_elsewhere(self, history: History) -> Iterator[HistoryFinding]:
        """Find processes whose first delivery is not what follows the cursor they began at.

        Where that cursor is one that a process of the same consumer delivered up to, the auditor's
        sequence tells what follows; else it must be where the auditor began.
        """
        audits = {r.consumer: r.messages for r in history.readings if r.consumer.endswith(AUDIT)}
        starts = {begin.consumer: begin.cursor for begin in self._begins}
        firsts = {(r.consumer, r.instance): r.messages for r in reversed(history.readings)}
        for begin in self._begins:
            messages = firsts.get((begin.consumer, begin.instance))
            audit = audits.get(begin.consumer + AUDIT)
            if not messages or audit is None:
                continue
            process = f"{begin.consumer}/{begin.instance}"
            due = 0
            before = self._after.get((begin.consumer, begin.cursor))
            if before is not None:
                with suppress(ValueError):  # the auditor lacks it: agreement says so
                    due = audit.index(history.messages.index(before)) + 1
            elif begin.cursor != starts[begin.consumer + AUDIT]:
                yield HistoryFinding(
                    "began elsewhere",
                    f"{process} began at {begin.cursor}, up to which nobody had delivered.",
                )
                continue
            if due < len(audit) and audit[due] != messages[0]:
                yield HistoryFinding(
                    "began elsewhere",
                    f"{process} began at {begin.cursor} with {history.name(messages[0])}, "
                    f"and there stands {history.name(audit[due])}.",
                )

    def _packed(self, message_id: str) -> int:
        log, _, offset = message_id.rpartition(":")
        number = self._logs.setdefault(log, len(self._logs))
        if number == len(self._begun_ns):
            self._begun_ns.append(array("q"))
        return number << _OFFSET_BITS | int(offset)

    def _name(self, at: int) -> str:
        return f"{list(self._logs)[at >> _OFFSET_BITS]}:{at & (1 << _OFFSET_BITS) - 1}"


def read_histories(paths: Iterable[Path]) -> RunHistory:
    """Read what the processes of one run wrote, in any order of the files.

    A torn last line is dropped and counted; a file without a whole line says nothing. Raises
    `HistoryError` ("file:line: ...") for a line that no process writes. Takes some 50 bytes of
    memory a call and a delivery, beside the history's own.
    """
    run = RunHistory()
    files = [_File(path) for path in sorted(paths)]
    firsts = [file.first() for file in files]
    run.begins_at(str(first["from"]) for first in firsts if "from" in first)
    for kind in ("producer", "consumer"):  # deliveries are compared with the calls
        for file, first in zip(files, firsts, strict=True):
            if kind in first:
                file.into(run)
    run.counts.torn = sum(file.torn for file in files)
    return run


class _File:
    """One process's file; `line` is where it is read at, `torn` whether its last line is."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._line = 0
        self.torn = False

    def first(self) -> Mapping[str, Any]:
        """Return the first line; an empty one where there is no whole line."""
        with self._named():
            found = next(self._lines(), {})
            if found and "producer" not in found and "consumer" not in found:
                raise HistoryError("the first line names no producer and no consumer")
            return found

    def into(self, run: RunHistory) -> None:
        """Add all lines to the run."""
        with self._named():
            run.add(self._lines())

    def _lines(self) -> Iterator[dict[str, Any]]:
        with self._path.open("rb") as raw:
            for self._line, text in enumerate(raw, 1):
                if not text.endswith(b"\n"):
                    self.torn = True
                    return
                yield json.loads(text)

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Name the file and the line in what is raised."""
        where = f"{self._path}:"
        try:
            yield
        except OSError as wrong:
            raise HistoryError(f"{where} {wrong.strerror}") from wrong
        except HistoryError as wrong:
            raise HistoryError(f"{where}{self._line}: {wrong}") from None
        except KeyError as missing:
            raise HistoryError(f"{where}{self._line}: the field {missing} is missing") from None
        except (TypeError, ValueError, OverflowError) as wrong:
            raise HistoryError(f"{where}{self._line}: the line is none of ours: {wrong}") from None
