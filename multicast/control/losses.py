"""What logs and order streams have lost, as collectors state it on the control topic. No I/O.

    loss/LOG/LIFE/FIRST           in this life the log has lost what was at FIRST, and all behind it
    lost-stream/COLLECTOR/EPOCH   the stream that began in this epoch has lost its end

A key says all; any empty or void value of it takes that back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from topology.documents import NotReadable, json_object, whole_text
from topology.tree import EPOCH_MAX, Plan

LOSSES_MAX = 100_000  # keys; ten for each log of the largest plan so far


def is_cut(plans: Sequence[Plan], epoch: int, log: str) -> bool:
    """Whether the plan after an epoch accepts that a log has lost its end: it has another life."""
    plan, following = plans[epoch - 1], plans[epoch]
    return following.has_log(log) and following.log(log).life > plan.log(log).life


def life_end(
    plans: Sequence[Plan], ends: Mapping[int, Mapping[str, int]], epoch: int, log: str
) -> int | None:
    """Give where a log ends at the latest, in the life that it has in an epoch; None: it goes on.

    A later life may lose what an earlier one held, so its end holds for this one, too.
    """
    held = [each for each in range(epoch, len(plans)) if plans[each - 1].has_log(log)]
    cuts = [ends.get(each, {}).get(log) for each in held if is_cut(plans, each, log)]
    return min((cut for cut in cuts if cut is not None), default=None)


class Losses:
    """All keys that stand; of those of a log in one life the lowest offset acts."""

    def __init__(
        self,
        stated: dict[tuple[str, int], set[int]] | None = None,
        streams: set[tuple[str, int]] | None = None,
    ) -> None:
        self._stated = stated or {}
        self._count = sum(map(len, self._stated.values()))
        self.streams = streams or set()  # collectors, with epochs

    def __eq__(self, other: object) -> bool:
        """Whether both have the same keys."""
        if not isinstance(other, Losses):
            return False
        return (self._stated, self.streams) == (other._stated, other.streams)

    __hash__ = None  # type: ignore[assignment]

    def copy(self) -> Losses:
        """Give a copy."""
        logs = {log: set(firsts) for log, firsts in self._stated.items()}
        return Losses(logs, set(self.streams))

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

    def first_in(self, plans: Sequence[Plan], epoch: int, log: str) -> int | None:
        """Give the first offset that a log has lost in this epoch's life or a later one."""
        lives = {plan.log(log).life for plan in plans[epoch - 1 :] if plan.has_log(log)}
        firsts = (self.first_of(log, life) for life in lives)
        return min((first for first in firsts if first is not None), default=None)

    def first_of(self, log: str, life: int) -> int | None:
        """Give the first offset that a log has lost in a life; None: nobody has stated a loss."""
        return min(self._stated.get((log, life), ()), default=None)

    def take_stream(self, rest: str, value: bytes | None) -> None:
        """Take the next statement of a stream, by its key behind its kind, as `take` does."""
        collector, _, epoch = rest.rpartition("/")
        key = collector, whole_text(epoch, EPOCH_MAX)
        if rest != f"{collector}/{key[1]}":
            raise NotReadable("it has leading zeros")
        self.streams.discard(key)
        if value is None:
            return
        json_object(value)
        if len(self.streams) >= LOSSES_MAX:
            raise NotReadable("too many streams are lost")
        self.streams.add(key)
