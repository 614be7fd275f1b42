"""Plans the faults of a run: one seed gives one schedule, on any machine.

`schedule` takes a seed and the kinds of faults, and returns the planned faults; `run.py` injects
them one after the other. No clock and no system is used here.

    deck    every kind once or twice, shuffled. Decks are dealt one after the other, so each kind
            comes before any comes a third time
    hold    how long a fault lasts before it is healed
    quiet   the pause after a fault: at least a third of its hold, so that a quarter of the planned
            time is quiet

`at_s` is when a fault begins if every recovery is immediate; the run waits for each recovery.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

QUIET_SHARE = 0.25  # of a run: enough to see faults that take effect late
_QUIET_MIN_S = 0.8  # also after the shortest fault: hundreds of messages at the default rate
_DIGITS = 3  # milliseconds: schedules are printed and compared


@dataclass(frozen=True, slots=True)
class Card:
    """A kind of fault in a deck: its name, the bounds of its hold, how often the deck has it.

    `calm_s` is the least quiet after it.
    """

    kind: str
    hold_s: tuple[float, float] = (1.0, 3.0)
    times: int = 1
    calm_s: float = 0.0

    def __post_init__(self) -> None:
        assert 0 <= self.hold_s[0] <= self.hold_s[1]
        assert self.times in (1, 2), "a third card could come before the first of another kind"


@dataclass(frozen=True, slots=True)
class Planned:
    """One fault; `seed` decides all that the kind leaves open, such as the victim."""

    number: int
    at_s: float
    kind: str
    seed: int
    hold_s: float
    quiet_s: float


def schedule(seed: int, cards: Sequence[Card], *, faults: int) -> list[Planned]:
    """Plan a number of faults; a longer schedule of the same seed begins with the shorter one."""
    planned = []
    chance = random.Random(seed)  # noqa: S311 - repeatable, not secret
    dealt = _dealt(chance, cards)
    at_s = 0.0
    for number in range(faults):
        card = next(dealt)
        hold_s = round(chance.uniform(*card.hold_s), _DIGITS)
        pause_s = quiet_after(hold_s) * chance.uniform(1.0, 1.3)
        quiet_s = round(max(card.calm_s, pause_s), _DIGITS)
        fault_seed = chance.getrandbits(32)
        begins = round(at_s, _DIGITS)
        planned.append(Planned(number, begins, card.kind, fault_seed, hold_s, quiet_s))
        at_s += hold_s + quiet_s
    return planned


def quiet_after(busy_s: float) -> float:
    """Return the pause, in seconds, after a fault and its recovery took `busy_s`."""
    return max(_QUIET_MIN_S, busy_s * QUIET_SHARE / (1 - QUIET_SHARE))


def _dealt(chance: random.Random, cards: Sequence[Card]) -> Iterator[Card]:
    assert cards, "a schedule needs at least one kind of fault"
    while True:
        # In two rounds, each kind in the first, so that none comes twice before another comes once.
        deck = [[card for card in cards if card.times > turn] for turn in range(2)]
        for some in deck:
            chance.shuffle(some)
            yield from some
