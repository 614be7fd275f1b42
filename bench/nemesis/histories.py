"""Reads the histories that the clients of a nemesis run wrote: JSON lines, a file a process.

`read_histories` takes the files of all processes, whether they ended or were killed, and returns a
`RunHistory`: a `multicast.history` for the guarantees, and the findings that need values and times.

A producer's file. `ns` is this machine's monotonic clock, the same for all its processes.

    {"producer": "p1", "instance": "a", "ns": 1}       the producer is open; "fifo": true: in order
    {"begun": 0, "to": ["P1"], "ns": 2}                before the call: numbers count 0, 1, 2, ...
    {"call": 0, "outcome": "accepted", "message_id": "P1:7", "ns": 3}     or failed, or unknown
    {"dropped": 12}                                    calls that were not made so far
    {"end": true, "ns": 4}                             every call has its outcome

A consumer's file has the lines of docs/history.md with `ns` and `epoch`, and more fields: its first
line, the interest, has `instance` and `from`, the cursor at which it began; a delivery after which
it may commit has its `cursor`; an auditor's delivery has the message's `value`.

    value   "PRODUCER/INSTANCE/NUMBER": the call that sent the message
    torn    of a file: the last line has no line end; the process was killed, or is still writing

Invariant: each call is begun before its outcome, and has at most one outcome.
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

# The suffix of an auditor's name: under the consumer's own name it would hide the losses.
AUDIT = ".audit"
_NOWHERE = -1
# A message ID packed into 63 bits: the log's number above, its offset in the lower 44 (2**44
# messages of one log, 2**19 logs).
_OFFSET_BITS = 44
_SHOWN_MAX = 10  # findings of a kind: one is a witness, a few more show a pattern


class HistoryFinding(NamedTuple):
    """A violation that message IDs alone do not show."""

    kind: str
    sentence: str


class AcceptedDeliveries(NamedTuple):
    """Of accepted messages: when each call began, had its outcome, and was delivered."""

    begun_ns: array[int]
    accepted_ns: array[int]
    at_ns: array[int]


@dataclass(slots=True)
class Counts:
    """Counts of a run; `unknown` includes calls whose process died before their outcome."""

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
    to: list[list[str]] = field(default_factory=list)  # equal sets share one object
    begun_ns: array[int] = field(default_factory=lambda: array("q"))
    outcomes: bytearray = field(default_factory=bytearray)  # 0: none was written
    accepted: array[int] = field(default_factory=lambda: array("q"))  # packed message IDs
    audited: array[int] = field(default_factory=lambda: array("q"))
    dropped: int = 0
    fifo: bool = False  # it keeps its own order, so its calls wait

    def name(self, number: int) -> str:
        """Name a call as its message's value does."""
        return f"{self.producer}/{self.instance}/{number}"


class _Begin(NamedTuple):
    """Where a consumer's process began."""

    consumer: str
    instance: str
    cursor: str


class RunHistory:
    """The histories of all processes of a run. Made by `read_histories`."""

    def __init__(self) -> None:
        self.counts = Counts()
        self.load: dict[str, array[int]] = {}
        """By destination set ("P1+P3"): when its accepted calls began, in no order."""
        self.delivered: dict[tuple[str, str], AcceptedDeliveries] = {}
        """By consumer (without auditors) and destination set."""
        self.interests: dict[str, tuple[str, ...]] = {}
        """By consumer (without auditors)."""
        self.present: dict[str, list[tuple[int, int]]] = {}
        """By consumer: the times of the first and the last delivery of each of its processes."""
        self._builder = HistoryBuilder()
        self._calls: dict[str, _Calls] = {}
        self._logs: dict[str, int] = {}
        # By log and offset, when a call began and was accepted; 0: no accepted call.
        self._times: list[tuple[array[int], array[int]]] = []
        self._sets: dict[tuple[str, ...], list[str]] = {}
        self._begins: list[_Begin] = []
        self._after: dict[tuple[str, str], str] = {}  # consumer, cursor: the message before it
        self._cursors: set[str] = set()
        self._audited: set[str] = set()  # partitions
        self._findings: list[HistoryFinding] = []

    def history(self, plans: Sequence[Plan] = ()) -> History:
        """Return the history for the guarantees. Call it once: it consumes the lines."""
        return self._builder.history(plans=plans)

    def findings(self, history: History) -> list[HistoryFinding]:
        """List violations that the guarantees do not cover; `history` is the result of `history()`.

        These are messages that a log holds twice, under another ID than the acknowledged one, or
        although their append failed for certain; and restarts that did not resume exactly at their
        cursor. Both need auditors.
        """
        findings = [*self._findings, *self._misplaced(), *self._begun_elsewhere(history)]
        kinds = dict.fromkeys(finding.kind for finding in findings)
        return [
            finding
            for kind in kinds
            for finding in [f for f in findings if f.kind == kind][:_SHOWN_MAX]
        ]

    def begins_at(self, cursors: Iterable[str]) -> None:
        """Set the cursors at which processes began; BEFORE any line is added."""
        self._cursors.update(cursors)

    def add(self, lines: Iterator[dict[str, Any]]) -> None:
        """Add the lines of one process; all producers BEFORE any consumer."""
        first = next(lines)
        self.counts.instances += 1
        if "producer" in first:
            self._produced(first, lines)
        else:
            self._consumed(first, lines)

    # -- producers --------------------------------------------------------------------------

    def _produced(self, first: dict[str, Any], lines: Iterator[dict[str, Any]]) -> None:
        calls = _Calls(first["producer"], first["instance"], fifo=first.get("fifo", False))
        key = f"{calls.producer}/{calls.instance}"
        if self._calls.setdefault(key, calls) is not calls:
            raise HistoryError(f"{key} wrote two files: give each process its own instance")
        for line in lines:
            if "begun" in line:
                self._begun(calls, line)
            elif "call" in line:
                self._outcome(calls, line)
            elif "dropped" in line:
                calls.dropped = int(line["dropped"])
            elif "end" not in line:
                raise HistoryError("the line is not a begun, call, dropped or end line")
        self._settle(calls)

    def _settle(self, calls: _Calls) -> None:
        """Close a process's calls: those without an outcome are unknown."""
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
            raise HistoryError(f"call {number} was not begun, or {outcome!r} is not an outcome")
        if calls.outcomes[number]:
            raise HistoryError(f"call {number} has a second outcome")
        calls.outcomes[number] = OUTCOMES[outcome]
        self._acknowledge(calls, number, outcome, line.get("message_id"))
        if outcome == "accepted":
            self.counts.accepted += 1
            calls.accepted[number] = packed = self._packed(line["message_id"])
            if not calls.fifo:
                self._note_times(packed, calls.begun_ns[number], line["ns"])
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
            # A producer that begins anew is another one, with an order of its own.
            producer=f"{calls.producer}/{calls.instance}" if calls.fifo else calls.producer,
            to=calls.to[number],
            outcome=outcome,
            message_id=message_id,
            sent=number if calls.fifo else None,
        )

    def _note_times(self, packed: int, *both_ns: int) -> None:
        offset = packed & (1 << _OFFSET_BITS) - 1
        for times, ns in zip(self._times[packed >> _OFFSET_BITS], both_ns, strict=True):
            if offset >= len(times):
                times.extend([0] * (offset + 1 - len(times)))
            times[offset] = ns

    # -- consumers --------------------------------------------------------------------------

    def _consumed(self, first: dict[str, Any], lines: Iterator[dict[str, Any]]) -> None:
        name, instance = first["consumer"], first["instance"]
        audits = name.endswith(AUDIT)
        if any(begin[:2] == (name, instance) for begin in self._begins):
            raise HistoryError(
                f"{name}/{instance} wrote two files: give each process its own instance"
            )
        self._builder.interest(consumer=name, interest=first["interest"])
        self._begins.append(_Begin(name, instance, first["from"]))
        if audits:
            self._audited.update(first["interest"])
        else:
            self.interests[name] = tuple(first["interest"])
        first_ns = last_ns = 0
        for line in lines:
            if "message_id" in line:
                packed = self._deliver(name, instance, line)
                if audits:
                    self._audit(packed, line)
                else:
                    first_ns, last_ns = first_ns or line["ns"], line["ns"]
                    self._time(name, packed, line)
            elif "end" in line:
                self._builder.end(consumer=name, instance=instance, late=line.get("late", False))
            else:
                raise HistoryError("the line is not a delivery or end line")
        if first_ns:
            self.present.setdefault(name, []).append((first_ns, last_ns))

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

    def _time(self, name: str, packed: int, line: dict[str, Any]) -> None:
        """Note when a message was sent and delivered, if its call was accepted."""
        self.counts.deliveries += 1
        begun, accepted = self._times[packed >> _OFFSET_BITS]
        offset = packed & (1 << _OFFSET_BITS) - 1
        if offset < len(begun) and begun[offset]:
            key = (name, joined(line["to"]))
            deliveries = self.delivered.get(key)
            if deliveries is None:
                arrays = (array("q"), array("q"), array("q"))
                deliveries = self.delivered[key] = AcceptedDeliveries(*arrays)
            deliveries.begun_ns.append(begun[offset])
            deliveries.accepted_ns.append(accepted[offset])
            deliveries.at_ns.append(line["ns"])

    def _audit(self, packed: int, line: dict[str, Any]) -> None:
        """Compare a stored message with the call that its value names."""
        self.counts.audited += 1
        value, message_id = line.get("value"), line["message_id"]
        process, _, digits = str(value).rpartition("/")
        calls = self._calls.get(process)
        number = int(digits) if digits.isdecimal() else -1
        if calls is None or not 0 <= number < len(calls.outcomes):
            self._find("invented", f"{message_id} holds {value!r}, which no call sent.")
            return
        if sorted(calls.to[number]) != sorted(line["to"]):
            self._find(
                "other destination",
                f"{message_id} holds {value}, which was multicast to {joined(calls.to[number])}, "
                f"and was delivered as addressed to {joined(line['to'])}.",
            )
        before = calls.audited[number]
        if before not in (_NOWHERE, packed):
            places = " and ".join(map(self._name, sorted((before, packed))))
            self._find("appended twice", f"{value} is stored as {places}.")
        elif calls.accepted[number] not in (_NOWHERE, packed):
            self._find(
                "value at another ID",
                f"{value} was accepted as {self._name(calls.accepted[number])}, "
                f"and is stored as {message_id}.",
            )
        calls.audited[number] = packed
        if calls.outcomes[number] == OUTCOMES["failed"]:
            self._find(
                "failed but stored", f"{value} failed for certain, and is stored as {message_id}."
            )

    # -- findings ---------------------------------------------------------------------------

    def _find(self, kind: str, sentence: str) -> None:
        same = [earlier for earlier in self._findings if earlier.kind == kind]
        finding = HistoryFinding(kind, sentence)
        if len(same) < _SHOWN_MAX and finding not in same:  # several auditors see one message
            self._findings.append(finding)

    def _misplaced(self) -> Iterator[HistoryFinding]:
        """Find accepted calls whose value no auditor has read."""
        for calls in self._calls.values():
            for number, packed in enumerate(calls.accepted):
                if packed == _NOWHERE or calls.audited[number] != _NOWHERE:
                    continue
                if not self._audited.isdisjoint(calls.to[number]):
                    yield HistoryFinding(
                        "not at its ID",
                        f"{calls.name(number)} was accepted as {self._name(packed)}, "
                        "and no auditor read it there or anywhere.",
                    )

    def _begun_elsewhere(self, history: History) -> Iterator[HistoryFinding]:
        """Find processes whose first delivery is not the message after their first cursor.

        If another process of the consumer delivered up to that cursor, the auditor's sequence says
        which message follows. Otherwise the cursor must be the one at which the auditor began.
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
                with suppress(ValueError):  # the auditor lacks it, which violates agreement
                    due = audit.index(history.messages.index(before)) + 1
            elif begin.cursor != starts[begin.consumer + AUDIT]:
                yield HistoryFinding(
                    "began elsewhere",
                    f"{process} began at {begin.cursor}, which no other process had reached.",
                )
                continue
            if due < len(audit) and audit[due] != messages[0]:
                yield HistoryFinding(
                    "began elsewhere",
                    f"{process} began at {begin.cursor} with {history.name(messages[0])}, "
                    f"but {history.name(audit[due])} follows there.",
                )

    def _packed(self, message_id: str) -> int:
        log, _, offset = message_id.rpartition(":")
        number = self._logs.setdefault(log, len(self._logs))
        if number == len(self._times):
            self._times.append((array("q"), array("q")))
        return number << _OFFSET_BITS | int(offset)

    def _name(self, packed: int) -> str:
        return f"{list(self._logs)[packed >> _OFFSET_BITS]}:{packed & (1 << _OFFSET_BITS) - 1}"


def read_histories(paths: Iterable[Path]) -> RunHistory:
    """Read the files of all processes of one run, in any order.

    A torn last line is dropped and counted; a file without a complete line is ignored. Raises
    `HistoryError` ("file:line: ...") for a line that no process writes. Takes about 50 bytes of
    memory for each call and delivery, in addition to the history itself.
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
    """One process's file; `torn` says whether its last line is torn."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._line = 0
        self.torn = False

    def first(self) -> Mapping[str, Any]:
        """Return the first line; {} if there is no complete line."""
        with self._named():
            line = next(self._lines(), {})
            if line and "producer" not in line and "consumer" not in line:
                raise HistoryError("the first line names neither a producer nor a consumer")
            return line

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
        """Name the file and the line in errors."""
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
            raise HistoryError(
                f"{where}{self._line}: no client writes such a line: {wrong}"
            ) from None
