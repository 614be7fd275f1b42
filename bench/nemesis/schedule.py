"""Which fault comes when: one seed, one schedule, on any machine.

In go a seed and the kinds there are; out comes a list of planned faults. No clock and no system
lives here: `run.py` carries the list out, one fault after the other.

    deck    every kind once or twice, shuffled. One deck after the other is dealt, so each kind
            comes before any comes a third time
    hold    how long a fault lasts before it is healed
    quiet   how long nothing is done after it. A fault's quiet is at least a third of its hold, so
            that a quarter of the planned time is quiet

`at_s` is when a fault would begin if the system recovered at once; the run waits until it has.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

QUIET_SHARE = 0.25
_QUIET_MIN_S = 0.8
_DIGITS = 3  # a schedule is printed and compared


@dataclass(frozen=True, slots=True)
class Card:
    """A kind as the schedule sees it: its name, its hold's bounds, how often it is in a deck."""

    kind: str
    hold_s: tuple[float, float] = (1.0, 3.0)
    times: int = 1

    def __post_init__(self) -> None:
        assert 0 <= self.hold_s[0] <= self.hold_s[1]
        assert self.times in (1, 2), "a third time in one deck would come before others' first"


@dataclass(frozen=True, slots=True)
class Planned:
    """One fault; `seed` decides about whatever else the kind leaves open, such as the victim."""

    number: int
    at_s: float
    kind: str
    seed: int
    hold_s: float
    quiet_s: float


def schedule(seed: int, cards: Sequence[Card], *, faults: int) -> list[Planned]:
    """Plan so many faults; a longer schedule begins as a shorter one of the same seed does."""
    planned = []
    chance = random.Random(seed)  # noqa: S311 - to be repeated, not to be secret
    dealt = _dealt(chance, cards)
    at_s = 0.0
    for number in range(faults):
        card = next(dealt)
        hold_s = round(chance.uniform(*card.hold_s), _DIGITS)
        quiet_s = round(quiet_after(hold_s) * chance.uniform(1.0, 1.3), _DIGITS)
        seed_of_one = chance.getrandbits(32)
        begins = round(at_s, _DIGITS)
        planned.append(Planned(number, begins, card.kind, seed_of_one, hold_s, quiet_s))
        at_s += hold_s + quiet_s
    return planned


def quiet_after(busy_s: float) -> float:
    """Return how long to leave the system alone after it was troubled for so many seconds."""
    return max(_QUIET_MIN_S, busy_s * QUIET_SHARE / (1 - QUIET_SHARE))


def _dealt(chance: random.Random, cards: Sequence[Card]) -> Iterator[Card]:
    assert cards, "a schedule of nothing has no next fault"
    while True:
        # In two rounds, each kind in the first: else one could come twice before another's first.
        deck = [[card for card in cards if card.times > turn] for turn in range(2)]
        for some in deck:
            chance.shuffle(some)
            yield from some
