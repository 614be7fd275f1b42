"""What must be delivered: validity and uniform agreement.

A history's index goes in, a witness comes out, or nothing. Only what has ended can lack anything:
a message that an unfinished reading lacks may still come.

    complete   a consumer with a known interest and an `end` line that is not `late`: together its
               readings must have all that it is addressed by
    certain    a message certainly came after a reading began if some reading delivered it after
               one of that reading's messages, or if it follows one of them in the same log.
               That much must be delivered by every single reading that ended
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
    said,
)


def validity(index: HistoryIndex) -> Witness | None:
    """Find an acknowledged multicast that someone lacks who must have delivered it."""
    history = index.history
    twice = next((m for m, flags in enumerate(history.outcomes) if flags & ACCEPTED_TWICE), None)
    if twice is not None:
        return said(
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
            return said(
                "lost",
                f"{history.name(message)} was multicast to {joined(history.to(message))} and "
                f"acknowledged, but {name} did not deliver it and has read all that there was.",
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
    """By reading that ended and lacks something, and log: the least offset that it delivered."""
    lacking = 0
    for entry in index.classes:
        lacking |= entry.absent & index.ended
    found: dict[tuple[int, int], int] = {}
    for reading in bits(lacking):
        for message in index.sequences[reading]:
            key = (reading, index.logs.log_of[message])
            offset = index.logs.offset_of[message]
            if offset < found.get(key, offset + 1):
                found[key] = offset
    return found


def _lacking(index: HistoryIndex) -> list[str | None]:
    """By class: a consumer that must have delivered its messages, and did not."""
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
    """Say what is missing to check validity; "" where nothing is."""
    if not any(flags & ACCEPTED for flags in index.history.outcomes):
        return "no line says that a multicast was acknowledged"
    return _nobody_to_ask(index)


def uniform_agreement(index: HistoryIndex) -> Witness | None:
    """Find a message that one delivered, and another lacks who must have delivered it."""
    history = index.history
    lacking = _lacking(index)
    if any(name is not None for name in lacking):
        for reading, sequence in zip(history.readings, index.sequences, strict=True):
            for message in sequence:
                name = lacking[index.class_of[message]]
                if name is not None:
                    return said(
                        "not delivered by all",
                        f"{reading.name} delivered {history.name(message)}, which is addressed to "
                        f"{joined(history.to(message))}, but {name} did not deliver it "
                        "and has read all that there was.",
                    )
    if not any(entry.absent & index.ended for entry in index.classes):
        return None
    for at, sequence in enumerate(index.sequences):
        begun = 0
        for message in sequence:
            entry = index.classes[index.class_of[message]]
            if entry.absent & index.ended & begun:
                other = index.reading(entry.absent & index.ended & begun)[0]
                return _not_delivered(index, at, message, other)
            begun |= entry.delivered
    return None


def _not_delivered(index: HistoryIndex, at: int, message: int, other: int) -> Witness:
    history = index.history
    common = next(
        m for m in index.sequences[at] if index.classes[index.class_of[m]].delivered >> other & 1
    )
    lacks = history.readings[other].name
    return said(
        "not delivered by all",
        f"{delivered(history, history.readings[at], message)}, after {history.name(common)}; "
        f"{lacks} delivered {history.name(common)} and has read all that there was, but did not "
        f"deliver {history.name(message)}, by which it is addressed.",
    )


def uniform_agreement_unchecked(index: HistoryIndex) -> str:
    """Say what is missing to check agreement; "" where nothing is."""
    return no_delivery(index) or _nobody_to_ask(index)


def _nobody_to_ask(index: HistoryIndex) -> str:
    if not index.ended:
        return "no end line says that a consumer has read all that there was"
    # Two readings of one consumer have the same interest, whatever it is.
    several = any(mask & (mask - 1) and mask & index.ended for mask in index.readings_of.values())
    if several or index.interested & index.ended:
        return ""
    return "no interest is known of a consumer that ended"


def end_note(index: HistoryIndex) -> str:
    """Name the consumers of which nothing, or less, could be asked."""
    history = index.history
    ended = {reading.consumer for reading in history.readings if reading.ended}
    return notes(
        names_of("no end line", [name for name in history.consumers if name not in ended]),
        names_of("no interest", [n for n in history.consumers if n not in history.interests]),
        names_of("joined late", [n for n in history.interests if n in ended - set(index.complete)]),
    )
