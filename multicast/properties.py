"""The guarantees, one function each: takes a history, gives a witness of a violation, or None.

These are the README's guarantees. The demo, `amcast verify`, the simulator and the tests all call
these functions, so each guarantee has one definition. No I/O, clock, randomness or logging here.
docs/history.md says exactly what is checked.

    holds        nothing in the history contradicts it
    violated     the witness says, in words, which deliveries contradict each other
    not checked  the history does not say enough to decide, and the reason says what is missing

Each check takes time linear in the number of deliveries, for a given number of readings. (Only if
there is a cycle, the search for a shortest one takes more, and that is bounded.)
Invariant: a verdict has a witness iff it is "violated", and a reason iff it is "not checked".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from multicast.history import FAILED, History, joined, shown
from multicast.messages import log_and_life
from multicast.verification import completeness
from multicast.verification import replay as replays
from multicast.verification.acyclic import disagreement, shortest_cycle
from multicast.verification.index import HistoryIndex
from multicast.verification.report import (
    HOLDS,
    NOT_CHECKED,
    VIOLATED,
    OrderViolation,
    Report,
    Verdict,
    Witness,
    cycle_witness,
    delivered,
    names_of,
    no_delivery,
    notes,
    witness_of,
)

__all__ = [
    "OrderViolation",
    "Report",
    "Verdict",
    "Witness",
    "check_all",
    "fifo_order",
    "genuineness",
    "log_order",
    "replay",
    "uniform_acyclic_order",
    "uniform_agreement",
    "uniform_integrity",
    "uniform_prefix_order",
    "validity",
    "verify",
]

# -- the guarantees ---------------------------------------------------------------------------


def validity(history: History) -> Witness | None:
    """Every acknowledged multicast is delivered by every consumer whose interest meets `to`.

    Checked for consumers with an `end` line and a known interest.
    """
    return completeness.validity(HistoryIndex(history))


def uniform_agreement(history: History) -> Witness | None:
    """If any consumer delivers a message, every correct consumer that it addresses does.

    A consumer with an `end` line is correct: it has read everything before it stopped.
    """
    return completeness.uniform_agreement(HistoryIndex(history))


def uniform_integrity(history: History) -> Witness | None:
    """Each reading delivers a message at most once, only if multicast, only if it is addressed."""
    return _uniform_integrity(HistoryIndex(history))


def uniform_prefix_order(history: History) -> Witness | None:
    """Two readings agree on the messages that address both, from where both began.

    At every moment, neither reading has two of these messages in the opposite order, and neither
    has one of them without another one that precedes it in the other reading.
    """
    return _uniform_prefix_order(HistoryIndex(history))


def uniform_acyclic_order(history: History) -> Witness | None:
    """No cycle exists in "delivered before, somewhere", over all consumers, epochs and restarts."""
    return _uniform_acyclic_order(HistoryIndex(history))


def log_order(history: History) -> Witness | None:
    """Messages of one log are delivered in offset order, in every reading."""
    return _log_order(HistoryIndex(history))


def fifo_order(history: History) -> Witness | None:
    """Messages of one producer are delivered in the order in which it sent them, in every reading.

    Only of producers that keep their own order (`Producer(fifo=True)`): their lines have `sent`.
    """
    return _fifo_order(HistoryIndex(history))


def genuineness(history: History) -> Witness | None:
    """Only processes to which the plans give a log have handled its messages.

    These are the producers that multicast to it, the collectors whose bags contain it, and the
    consumers whose interest meets it.
    """
    return _genuineness(HistoryIndex(history))


def replay(history: History) -> Witness | None:
    """All readings of one consumer are parts of one sequence: a cursor has one continuation."""
    return replays.replay(HistoryIndex(history))


def check_all(history: History) -> Report:
    """Check every guarantee; give all verdicts. Never raises because of a history's content."""
    index = HistoryIndex(history)
    verdicts = []
    for guarantee, check, unchecked, note in _GUARANTEES:
        reason = unchecked(index)
        witness = None if reason else check(index)
        verdict = NOT_CHECKED if reason else VIOLATED if witness else HOLDS
        verdicts.append(Verdict(guarantee, verdict, witness, reason, "" if reason else note(index)))
    return Report(
        verdicts=tuple(verdicts),
        messages=len(history.messages),
        deliveries=history.deliveries,
        consumers=len(history.consumers),
        readings=len(history.readings),
    )


def verify(history: History) -> Report:
    """Check every guarantee; raise `OrderViolation` if one is violated.

    A guarantee that could not be checked does not raise: the report says so.
    """
    report = check_all(history)
    if report.violations:
        raise OrderViolation(report)
    return report


# -- integrity ---------------------------------------------------------------------------------


def _uniform_integrity(index: HistoryIndex) -> Witness | None:
    history = index.history
    if history.contradictions:
        return witness_of("two destination sets", f"{history.contradictions[0]}.")
    for reading, sequence in zip(history.readings, index.sequences, strict=True):
        if len(sequence) != len(reading.messages):
            seen: dict[int, int] = {}
            for place, message in enumerate(reading.messages, reading.first):
                if message in seen:
                    return witness_of(
                        "delivered twice",
                        f"{reading.name} delivered {history.name(message)} twice: "
                        f"at position {seen[message]} and at position {place}.",
                    )
                seen[message] = place
    return _not_addressed(index) or _not_multicast(index)


def _not_addressed(index: HistoryIndex) -> Witness | None:
    history = index.history
    for number, entry in enumerate(index.classes):
        wrong = entry.delivered & index.interested & ~entry.addressed
        if wrong and not entry.epoch:
            wrong &= ~index.addressed_at_times(entry.destination)
        if wrong:
            place, reading = index.reading(wrong)
            message = next(m for m in index.sequences[place] if index.class_of[m] == number)
            interest = history.interest(reading.consumer, entry.epoch)
            return witness_of(
                "not addressed",
                f"{delivered(history, reading, message)}, which is addressed to "
                f"{joined(history.to(message))}; the interest of {shown(reading.consumer)} is "
                f"{joined(interest) if interest else f'unknown in epoch {entry.epoch}'}.",
            )
    return None


def _not_multicast(index: HistoryIndex) -> Witness | None:
    history = index.history
    if not history.producers:
        return None
    unlisted: dict[int, int] = {}  # by destination set: delivered messages that no line names
    for message, flags in enumerate(history.outcomes):
        if flags and not flags & FAILED:
            continue
        entry = index.classes[index.class_of[message]]
        if not entry.delivered:
            continue
        where = delivered(history, index.reading(entry.delivered)[1], message)
        if flags & FAILED:
            return witness_of("not multicast", f"{where}, but its multicast failed for certain.")
        unlisted[entry.destination] = unlisted.get(entry.destination, 0) + 1
        unnamed = history.unnamed.get(entry.destination, 0)
        if unlisted[entry.destination] > unnamed and not history.other_producers:
            more = f", and only {unnamed} unknown outcomes could explain it" if unnamed else ""
            return witness_of(
                "not multicast", f"{where}, but no line says that it was multicast{more}."
            )
    return None


def _integrity_note(index: HistoryIndex) -> str:
    history = index.history
    unknown = [name for name in history.consumers if name not in history.interests]
    multicast = "" if history.producers else "no line says what was multicast"
    if history.producers and history.other_producers:
        multicast = "messages of producers without lines are taken as multicast"
    return notes(multicast, names_of("no interest", unknown))


# -- order -------------------------------------------------------------------------------------


def _uniform_prefix_order(index: HistoryIndex) -> Witness | None:
    """Look for two messages in opposite orders, then for a hole between two deliveries.

    A hole of reading q is a message that addresses q and is missing from q, and that some reading
    has between two messages of q. A message before q's first delivery is no hole, because q may
    have begun later; one after its last delivery is none, because it may still come.
    """
    if index.core:
        steps = disagreement(index.core)
        if steps is not None:
            return cycle_witness("opposite orders", index, steps)
    classes, class_of = index.classes, index.class_of
    if not any(entry.absent for entry in classes):
        return None
    for number, sequence in enumerate(index.sequences):
        begun = passed_over = 0
        for place, message in enumerate(sequence):
            _, delivered, absent, _, _ = classes[class_of[message]]
            if passed_over & delivered:
                other = index.reading(passed_over & delivered)[0]
                return _hole(index, number, place, other)
            if absent:
                passed_over |= absent & begun
            begun |= delivered
    return None


def _hole(index: HistoryIndex, number: int, place: int, other: int) -> Witness:
    """Describe the hole of reading `other` before that place of reading `number`."""
    history = index.history
    sequence = index.sequences[number][: place + 1]
    common = set(index.sequences[other])
    absent = [index.classes[index.class_of[m]].absent >> other & 1 for m in sequence]
    first = next(i for i, message in enumerate(sequence) if message in common)
    missing = next(i for i in range(first, place) if absent[i])
    names = [history.name(sequence[i]) for i in (first, missing, place)]
    reading, lacks = history.readings[number], history.readings[other]
    return witness_of(
        "hole",
        f"{reading.name} delivered {names[0]}, then {names[1]}, then {names[2]}.",
        f"{lacks.name} delivered {names[0]} and {names[2]}, but not {names[1]}, "
        f"which is addressed to {joined(history.to(sequence[missing]))}, and so to it as well.",
    )


def _uniform_acyclic_order(index: HistoryIndex) -> Witness | None:
    if not index.core:
        return None
    return cycle_witness("cycle", index, shortest_cycle(index.core))


def _order_unchecked(index: HistoryIndex) -> str:
    reason = no_delivery(index)
    several = sum(1 for sequence in index.sequences if sequence) > 1
    return reason or ("" if several else "a single reading has no other to agree with")


def _prefix_note(index: HistoryIndex) -> str:
    history = index.history
    unknown = [name for name in history.consumers if name not in history.interests]
    return names_of("no interest, so only the messages that they delivered are compared", unknown)


def _log_order(index: HistoryIndex) -> Witness | None:
    history = index.history
    names, log_of, offset_of = index.logs
    later = _later_lives(names)
    for reading, sequence in zip(history.readings, index.sequences, strict=True):
        last: dict[int, int] = {}
        for message in sequence:
            log = log_of[message]
            if log < 0:
                continue
            offset = offset_of[message]
            after = next((life for life in later[log] if life in last), log)
            if after != log or last.get(log, -1) >= offset:
                earlier = f"{names[after]}:{last[after]}"
                return witness_of(
                    "against the log",
                    f"{delivered(history, reading, message)}, after {shown(earlier)}, "
                    f"though it precedes that one in the log {shown(names[log])}.",
                )
            last[log] = offset
    return None


def _later_lives(names: Sequence[str]) -> list[list[int]]:
    """Give, by the number of a log in one of its lives, the numbers of its later ones."""
    lives = [log_and_life(name) or (name, 0) for name in names]
    return [
        [number for number, (other, later) in enumerate(lives) if other == name and later > life]
        if any(later for _, later in lives)
        else []
        for name, life in lives
    ]


def _log_order_unchecked(index: HistoryIndex) -> str:
    reason = no_delivery(index)
    if reason or index.logs.names:
        return reason
    return "no message ID has the form LOG:OFFSET with a log that holds its destination set"


def _log_order_note(index: HistoryIndex) -> str:
    others = sum(1 for log in index.logs.log_of if log < 0)
    return f"{others} message IDs do not have the form LOG:OFFSET" if others else ""


def _fifo_order(index: HistoryIndex) -> Witness | None:
    history, sent = index.history, index.history.sent
    for reading, sequence in zip(history.readings, index.sequences, strict=True):
        last: dict[str, tuple[int, int]] = {}  # by producer: the place, and the message there
        for message in sequence:
            if message not in sent:
                continue
            producer, place = sent[message]
            before, earlier = last.get(producer, (-1, message))
            if place < before:
                return witness_of(
                    "against its sender",
                    f"{delivered(history, reading, message)}, after {history.name(earlier)}, "
                    f"though {shown(producer)} sent that one later: "
                    f"as its message {before}, not {place}.",
                )
            last[producer] = place, message
    return None


def _fifo_order_unchecked(index: HistoryIndex) -> str:
    reason = no_delivery(index)
    return reason or ("" if index.history.sent else "no producer says that it keeps its own order")


# -- genuineness -------------------------------------------------------------------------------


def _genuineness(index: HistoryIndex) -> Witness | None:
    for (process, log), records in index.history.work.items():
        if records and not _may_work(index.history, process, log):
            return witness_of(
                "foreign process",
                f"{shown(process)} handled {records} records of the log {shown(log)}, but it is "
                "not a collector whose bag holds that log, not a consumer whose interest meets "
                "it, and did not multicast to it.",
            )
    return None


def _may_work(history: History, process: str, log: str) -> bool:
    name = process.partition("/")[0]  # the rest names the instance
    to = set(log.split("+"))
    if any(not to.isdisjoint(history.interests.get(label, ())) for label in (process, name)):
        return True
    for label in (process, name):
        multicast = history.producers.get(label, {})
        if any(to.issuperset(history.destinations[number]) for number in multicast):
            return True
    return any(
        plan.has_collector(label) and log in plan.collector(label).bag
        for plan in history.plans
        for label in (process, name)
    )


def _genuineness_unchecked(index: HistoryIndex) -> str:
    if not any(index.history.work.values()):
        return "no line says which process worked on which log"
    return "" if index.history.plans else "no plan says which collector has which logs"


def _genuineness_note(index: HistoryIndex) -> str:
    """Say what was checked. Histories do not hold what is measured as foreign work."""
    total = sum(index.history.work.values())
    return f"{total} records handled, each by a process to which a plan gives the record's log"


# -- all of them -----------------------------------------------------------------------------


def _no_note(_: HistoryIndex) -> str:
    return ""


_Check = Callable[[HistoryIndex], Witness | None]
_Words = Callable[[HistoryIndex], str]
_GUARANTEES: tuple[tuple[str, _Check, _Words, _Words], ...] = (
    ("validity", completeness.validity, completeness.validity_unchecked, completeness.end_note),
    (
        "uniform agreement",
        completeness.uniform_agreement,
        completeness.uniform_agreement_unchecked,
        completeness.end_note,
    ),
    ("uniform integrity", _uniform_integrity, no_delivery, _integrity_note),
    ("uniform prefix order", _uniform_prefix_order, _order_unchecked, _prefix_note),
    ("uniform acyclic order", _uniform_acyclic_order, _order_unchecked, _no_note),
    ("log order", _log_order, _log_order_unchecked, _log_order_note),
    ("fifo order", _fifo_order, _fifo_order_unchecked, _no_note),
    ("genuineness", _genuineness, _genuineness_unchecked, _genuineness_note),
    ("replay", replays.replay, replays.replay_unchecked, _no_note),
)
