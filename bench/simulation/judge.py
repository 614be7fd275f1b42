"""Judges a simulated run: collects its history, and finds the first violated guarantee.

`multicast.properties` judges the complete history. These checks are made here, because only the
simulator knows the cursors, and which consumers must have read everything:

    conditions      all consumers decide alike whether a message takes effect
    same cursor     after a given cursor, every process of a consumer delivers the same message
    all read        at rest, after the faults have ended, no seat has a cursor after which another
                    process of the same consumer delivered a message
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from bench.simulation.trees import Scene
from multicast.conditional.judge import Decision
from multicast.consuming.batches import Batch
from multicast.consuming.cursor import Cursor
from multicast.control import ControlState
from multicast.history import History, HistoryBuilder
from multicast.messages import MessageID
from multicast.properties import check_all
from multicast.verification.audit import epoch_at, epochs_of

# A header: which producer sent the message, and its place among all that it sends.
SENT = "sent"

Label = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Violation:
    """A violated guarantee, and a witness in words."""

    guarantee: str
    witness: str


class _Kept(NamedTuple):
    """One delivery, and the cursors before and after it."""

    batch: Batch
    number: int  # of the record in it
    before: Cursor
    after: Cursor


class Gone(NamedTuple):
    """What a log has lost below an end that a source's stream says was seen."""

    epoch: int
    source: str
    log: str
    first: int
    end: int
    leader_epoch: int  # from this one on other messages are there


class Judge:
    """Collects a history and judges it."""

    def __init__(self, scene: Scene, *, loses: bool = False) -> None:
        self.builder = HistoryBuilder()
        # With losses nothing is judged before the end: what each label has then, and by which its
        # application goes on. No cursor stands behind what a crashed process had delivered last.
        self._kept: dict[Label, list[_Kept]] = {}
        # And what it had, by its place, up to the last commit: it may go on from there, although it
        # has begun at the start in between.
        self._had: dict[Label, dict[tuple[int, int, int, int], _Kept]] = {}
        self.gone: list[Gone] = []
        self._loses = loses
        self.deliveries = 0
        self.violation: Violation | None = None
        self._after: dict[tuple[str, Cursor], str] = {}
        self._decisions: dict[str, Decision] = {}  # by message: whether it takes effect
        self._there: dict[tuple[str, int], str] = {}  # by log and offset: which message
        self._sequences: dict[Label, int] = {}
        self._ends: list[tuple[Label, Cursor]] = []
        self._scene = scene
        self._acknowledged: list[tuple[str, tuple[str, ...], str, str | None]] = []

    def begins(self, label: Label, start: Cursor, committed: Cursor | None) -> None:
        """Note that a process of the seat starts at a cursor: its sequence begins at 0."""
        self._sequences[label] = 0
        last = max(_place(start), _place(committed or start))
        had = sorted(self._had.get(label, {}).items())
        self._had[label] = {place: each for place, each in had if _place(each.after) <= last}
        kept = self._had[label].values()
        self._kept[label] = [each for each in kept if _place(each.after) <= _place(start)]

    def gives_up(self, label: Label) -> None:
        """Note that a seat has no successor, or was told of a loss: it agrees with nobody."""
        self._kept.pop(label, None)
        self._had.pop(label, None)

    def delivered(self, label: Label, batch: Batch, index: int, *, before: Cursor) -> str:
        """Note a delivery by a process whose cursor was `before`; return the message's ID."""
        if not self._loses:
            return self._judge(label, batch, index, before)
        self._refuse_gone(label, batch, index, before)
        kept = self._had[label][_place(before)] = _Kept(batch, index, before, batch.cursor(index))
        self._kept[label].append(kept)
        self.deliveries += 1
        return _message_id(batch, index)

    def _refuse_gone(self, label: Label, batch: Batch, index: int, before: Cursor) -> None:
        """Below an end that its stream says was seen, nobody delivers another message."""
        record, source = batch.records[index], (before.epoch, before.source, batch.log.name)
        for gone in self.gone:
            is_other = record.leader_epoch >= gone.leader_epoch
            if gone[:3] == source and gone.first <= record.offset < gone.end and is_other:
                self.violation = self.violation or Violation(
                    "replaced", f"{'/'.join(label)} delivered {_message_id(batch, index)}: {gone}."
                )

    def refuse_lost(self, label: Label, message_id: str, offset: int, first: int | None) -> None:
        """Nobody delivers what its stream says is lost."""
        if first is not None and offset >= first and self.violation is None:
            self.violation = Violation(
                "lost", f"{'/'.join(label)} delivered {message_id}, and lost is {first} and more."
            )

    def _judge(self, label: Label, batch: Batch, index: int, before: Cursor) -> str:
        message_id = _message_id(batch, index)
        expected = self._after.setdefault((label[0], before), message_id)
        if expected != message_id and self.violation is None:
            self.violation = Violation(
                "replay",
                f"{'/'.join(label)} delivered {message_id} after the cursor {before}; "
                f"another process of {label[0]} delivered {expected} after the same cursor.",
            )
        place = batch.log.name, batch.records[index].offset
        there = self._there.setdefault(place, message_id)
        if there != message_id and self.violation is None:
            self.violation = Violation(
                "replaced",
                f"{'/'.join(label)} delivered {message_id}, and another consumer, which goes on, "
                f"too, {there}.",
            )
        decided = self._decisions.setdefault(message_id, batch.decision)
        if decided != batch.decision and self.violation is None:
            self.violation = Violation(
                "conditions",
                f"of {message_id}, {'/'.join(label)} decided: {batch.decision}; another consumer "
                f"decided: {decided}.",
            )
        sequence = self._sequences[label]
        self._sequences[label] = sequence + 1
        self.deliveries += 1
        self.builder.delivery(
            consumer=label[0],
            instance=label[1],
            message_id=message_id,
            to=batch.to,
            sequence=sequence,
            epoch=batch.epoch,
        )
        for name, value in batch.records[index].headers:
            if name == SENT:  # also of a message whose outcome its producer does not know
                producer, sent = (value or b"").decode().split()
                self.builder.acknowledgement(
                    producer=producer,
                    to=batch.to,
                    outcome="unknown",
                    message_id=message_id,
                    sent=int(sent),
                )
        return message_id

    def acknowledged(
        self, producer: str, to: tuple[str, ...], outcome: str, message_id: str | None
    ) -> None:
        """Note the outcome of a multicast; with losses nobody says what is at an offset."""
        if self._loses and outcome == "accepted":
            outcome, message_id = "unknown", None
        self._acknowledged.append((producer, to, outcome, message_id))

    def ended(self, label: Label, last: Cursor, *, late: bool) -> None:
        """Note that a seat has, or should have, read everything, and its last cursor."""
        self.builder.end(consumer=label[0], instance=label[1], late=late)
        self._ends.append((label, last))

    def verdict(
        self, control: ControlState, work: Mapping[tuple[str, str], int]
    ) -> Violation | None:
        """Judge the whole history by the final control state; None if every guarantee holds."""
        for label, kept in self._kept.items() if self._loses else ():
            self._sequences[label] = 0
            for each in kept:
                self._judge(label, each.batch, each.number, each.before)
        if self.violation is not None:
            return self.violation
        for label, last in self._ends:
            following = self._after.get((label[0], last))
            if following is not None:
                return Violation(
                    "validity",
                    f"{'/'.join(label)} came to rest at the cursor {last}, after which another "
                    f"process of {label[0]} delivered {following}.",
                )
        # The plan by which a collector handled a log may be lost.
        for (process, log), records in () if self._loses else work.items():
            self.builder.work(process=process, log=log, records=records)
        for producer, to, outcome, message_id in self._acknowledged:
            self.builder.acknowledgement(
                producer=producer,
                to=to,
                outcome=outcome,
                message_id=message_id,
                epoch=0 if message_id is None else _epoch_of(control, message_id),
            )
        for name, interest in self._scene.interests:
            for plan in control.plans:
                entry = plan.subscription(name)
                self.builder.interest(
                    consumer=name,
                    interest=interest if entry is None else entry.interest,
                    epoch=plan.epoch,
                )
        return judge(self.builder.history(plans=control.plans))


def _message_id(batch: Batch, index: int) -> str:
    """Name a message; after a loss another one, of a later leader, may have its offset."""
    record = batch.records[index]
    label = f"{batch.log.name}~{record.leader_epoch}" if record.leader_epoch > 0 else batch.log.name
    return f"{label}:{record.offset}"


def _place(cursor: Cursor) -> tuple[int, int, int, int]:
    return cursor.epoch, cursor.record, cursor.run, cursor.next


def judge(history: History) -> Violation | None:
    """Return the first guarantee that does not hold, by `multicast.properties`."""
    for verdict in check_all(history).violations:
        return Violation(verdict.guarantee, str(verdict.witness))
    return None


def _epoch_of(control: ControlState, message_id: str) -> int:
    message = MessageID.parse(message_id)
    return epoch_at(epochs_of(control, message.log, message.life), message.offset)
