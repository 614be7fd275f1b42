"""Validity and uniform agreement: which messages must be delivered.

Only a reading that has ended can lack a message: in an unfinished one it may still come.

    complete   a consumer with a known interest and an `end` line that is not `late`: its readings
               together must contain all messages that address it
    certain    a message certainly came after a reading began if some reading delivered it after one
               of that reading's messages, or if it follows one of them in the same log. Every
               single reading that has ended must contain these messages
"""

from __future__ import annotations

from multicast.history import ACCEPTED, ACCEPTED_TWICE, joined, shown
from multicast.verification.index import HistoryIndex, bits
from multicast.verification.report import (
    Witness,
    delivered,
    names_of,
    no_delivery,
    notes,
    witness_of,
)


def validity(index: HistoryIndex) -> Witness | None:
    """Find an acknowledged multicast that a consumer lacks, but must have delivered."""
    history = index.history
    twice = next((m for m, flags in enumerate(history.outcomes) if flags & ACCEPTED_TWICE), None)
    if twice is not None:
        return witness_of(
            "acknowledged twice",
            f"Two multicasts were acknowledged with the message ID {history.name(twice)}: "
            "at most one of them can be delivered.",
        )
    lacking = _lacking(index)
    begun = _first_offsets(index)
    for message, flags in enumerate(history.outcomes):
        number = index.class_of[message]
        if not flags & ACCEPTED or not index.classes[number].absent & index.ended:
            continue
        name = lacking[number]
        if name is None:
            name = _passed_over(index, message, begun)
        if name is not None:
            return witness_of(
                "lost",
                f"{history.name(message)} was multicast to {joined(history.to(message))} and "
                f"acknowledged, but {name} did not deliver it and has read everything.",
            )
    return None


def _passed_over(
    index: HistoryIndex, message: int, begun: dict[tuple[int, int], int]
) -> str | None:
    """Name a reading that ended without the message and delivered an earlier one of its log."""
    log, offset = index.logs.log_of[message], index.logs.offset_of[message]
    for reading in bits(index.classes[index.class_of[message]].absent & index.ended):
        if log >= 0 and begun.get((reading, log), offset) < offset:
            return index.history.readings[reading].name
    return None


def _first_offsets(index: HistoryIndex) -> dict[tuple[int, int], int]:
    """Give, by (reading, log), the lowest offset that an ended, incomplete reading delivered."""
    lacking = 0
    for entry in index.classes:
        lacking |= entry.absent & index.ended
    first: dict[tuple[int, int], int] = {}
    for reading in bits(lacking):
        for message in index.sequences[reading]:
            key = (reading, index.logs.log_of[message])
            offset = index.logs.offset_of[message]
            if offset < first.get(key, offset + 1):
                first[key] = offset
    return first


def _lacking(index: HistoryIndex) -> list[str | None]:
    """Give, by class, a consumer that must have delivered the class's messages and did not."""
    return [
        next(
            (
                shown(name)
                for name, readings in index.complete.items()
                if readings & entry.addressed and not readings & entry.delivered
            ),
            None,
        )
        for entry in index.classes
    ]


def validity_unchecked(index: HistoryIndex) -> str:
    """Say what is missing to check validity; "" if nothing is."""
    if not any(flags & ACCEPTED for flags in index.history.outcomes):
        return "no line says that a multicast was acknowledged"
    return _no_ended_consumer(index)


def uniform_agreement(index: HistoryIndex) -> Witness | None:
    """Find a message that one consumer delivered and another one lacks, but must have delivered."""
    history = index.history
    lacking = _lacking(index)
    if any(name is not None for name in lacking):
        for reading, sequence in zip(history.readings, index.sequences, strict=True):
            for message in sequence:
                name = lacking[index.class_of[message]]
                if name is not None:
                    return witness_of(
                        "not delivered by all",
                        f"{reading.name} delivered {history.name(message)}, which is addressed to "
                        f"{joined(history.to(message))}, but {name} did not deliver it "
                        "and has read everything.",
                    )
    if not any(entry.absent & index.ended for entry in index.classes):
        return None
    for number, sequence in enumerate(index.sequences):
        begun = 0
        for message in sequence:
            entry = index.classes[index.class_of[message]]
            if entry.absent & index.ended & begun:
                other = index.reading(entry.absent & index.ended & begun)[0]
                return _not_delivered(index, number, message, other)
            begun |= entry.delivered
    return None


def _not_delivered(index: HistoryIndex, number: int, message: int, other: int) -> Witness:
    """Describe a message that reading `number` delivered and reading `other` lacks."""
    history = index.history
    common = next(
        m
        for m in index.sequences[number]
        if index.classes[index.class_of[m]].delivered >> other & 1
    )
    lacks = history.readings[other].name
    return witness_of(
        "not delivered by all",
        f"{delivered(history, history.readings[number], message)}, after {history.name(common)}; "
        f"{lacks} delivered {history.name(common)} and has read everything, but did not deliver "
        f"{history.name(message)}, which is addressed to it.",
    )


def uniform_agreement_unchecked(index: HistoryIndex) -> str:
    """Say what is missing to check agreement; "" if nothing is."""
    return no_delivery(index) or _no_ended_consumer(index)


def _no_ended_consumer(index: HistoryIndex) -> str:
    if not index.ended:
        return "no end line says that a consumer has read everything"
    # Two readings of one consumer have the same interest, whatever it is.
    several = any(mask & (mask - 1) and mask & index.ended for mask in index.readings_of.values())
    if several or index.interested & index.ended:
        return ""
    return "no consumer with an end line has a known interest"


def end_note(index: HistoryIndex) -> str:
    """Name the consumers that were checked less, or not at all."""
    history = index.history
    ended = {reading.consumer for reading in history.readings if reading.ended}
    return notes(
        names_of("no end line", [name for name in history.consumers if name not in ended]),
        names_of("no interest", [n for n in history.consumers if n not in history.interests]),
        names_of("joined late", [n for n in history.interests if n in ended - set(index.complete)]),
    )
