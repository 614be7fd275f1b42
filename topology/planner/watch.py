"""Who looks on while a plan is searched for: is told what is tried, and may end the search."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class Watch:
    """`show` gets what is tried and the best cost so far; the search ends once `stopped` says so.

    `part` and `cost` are the solver's: the part that is searched, and the cost of those before it.
    """

    show: Callable[[str, float], None] = lambda _sentence, _cost: None
    stopped: Callable[[], bool] = lambda: False
    part: str = ""
    cost: float = 0.0

    def begin(self, part: str) -> None:
        """Say that a part is searched."""
        self.part = part
        self.show(part, self.cost)

    def best(self, cost: float, what: str) -> None:
        """Tell the best cost of the part that is searched, and what is tried."""
        self.show(f"{self.part}: {what}", self.cost + cost)

    def end(self, cost: float) -> None:
        """Say that a part's tree is found."""
        self.cost += cost
        self.show(self.part, self.cost)
