"""What logs have lost, as collectors state it on the control topic. No I/O.

A key says all, `loss/LOG/LIFE/FIRST`: in this life the log has lost what was at offset FIRST, and
all behind it. Any empty or void value of the key takes that back.
"""

from __future__ import annotations

from topology.documents import NotReadable, json_object, whole_text

LOSSES_MAX = 100_000  # keys; ten for each log of the largest plan so far


class Losses:
    """All keys that stand; of those of a log in one life the lowest offset acts."""

    def __init__(self, stated: dict[tuple[str, int], set[int]] | None = None) -> None:
        self._stated = stated or {}
        self._count = sum(map(len, self._stated.values()))

    def __eq__(self, other: object) -> bool:
        """Whether both have the same keys."""
        return isinstance(other, Losses) and self._stated == other._stated

    __hash__ = None  # type: ignore[assignment]

    def copy(self) -> Losses:
        """Give a copy."""
        return Losses({log: set(firsts) for log, firsts in self._stated.items()})

    def take(self, rest: str, value: bytes | None) -> None:
        """Take the next statement, by its key behind `loss/`; raises `NotReadable`."""
        name, _, first_text = rest.rpartition("/")
        log, _, life_text = name.rpartition("/")
        key, first = (log, whole_text(life_text)), whole_text(first_text)
        if rest != f"{log}/{key[1]}/{first}":
            raise NotReadable("it has leading zeros")
        stated = self._stated.get(key, set())
        # Compaction removes what is replaced, so it does not count, whatever replaces it.
        self._count -= first in stated
        stated.discard(first)
        if not stated:
            self._stated.pop(key, None)
        if value is None:
            return
        json_object(value)
        if self._count >= LOSSES_MAX:
            raise NotReadable("too many losses are stated")
        self._stated.setdefault(key, stated).add(first)
        self._count += 1

    def names(self) -> list[str]:
        """Name the logs of which a loss is stated, in some life; one for each life."""
        return [log for log, _ in self._stated]

    def first_of(self, log: str, life: int) -> int | None:
        """Give the first offset that a log has lost in a life; None: nobody has stated a loss."""
        return min(self._stated.get((log, life), ()), default=None)
