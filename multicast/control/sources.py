"""Which source is read in which epoch, and where each log begins and ends there: the rules.

A *source* is what a consumer gets its order from: a collector's stream, or a single log that is its
own order ("@" and the log's name).

    1  A consumer whose interest meets one log reads that log. Any other reads the collector that
       the plan names for it, else the one with the smallest bag that covers its interest
                                                                                `source_of`
    2  A source that the next plan retains (`topology/carry_over.py`) goes on unchanged: it keeps
       the stream, the plan and the starts of the epoch in which it began       `first_epoch`
    3  A source is read to the end of the last epoch that has it; in the next epoch rule 1 names
       the source anew                                                          `last_epoch`
    4  Epoch e has begun once the `ends` of all epochs before it are written. A log begins where its
       last epoch ended, and a new log at the `first` of its plan               `log_starts`
    5  A single-log consumer reads an epoch to its marker, and never back from where an earlier
       epoch ended for it; of a log whose end an operator has given up as lost (`is_cut`) to its
       `ends`. Where a stream froze too early, the log ends before the marker, and its other readers
       find what lies between in the next epoch
                                                             `single_log_end`, `single_log_start`

Invariants, of a source s of epoch e:
    first_epoch(e, s) <= e <= last_epoch(e, s);
    both are the same for every epoch between them;
    a log begins epoch e + 1 where it ended epoch e, so for each reader an offset is in one epoch.

Everything is a function of the control topic: plans, `markers` and `ends`, as `ControlState`
accepts them. `retained(e)` says what goes on from epoch e into the next. No I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from multicast.control.documents import Ended, SawEnd
from multicast.control.topics import SINGLE_LOG
from topology.carry_over import Retained
from topology.tree import Plan

Positions = Mapping[str, int]  # an offset by a log's name


def source_of(plan: Plan, interest: Sequence[str], named: str | None) -> str | None:
    """Name what a consumer reads in a plan's epoch; None where no collector covers its interest.

    `named` is the collector that the plan names for the consumer, if it names one.
    """
    logs = plan.logs_of(interest)
    if len(logs) == 1:
        return SINGLE_LOG + logs[0].name
    if named is not None:
        return named
    collector = plan.collector_for(interest)
    return None if collector is None else collector.name


def retained_whole(plan: Plan) -> Retained:
    """Give what goes on from the newest epoch while no next plan exists: all of it."""
    return Retained(
        frozenset(collector.name for collector in plan.collectors),
        frozenset(log.name for log in plan.logs),
    )


def first_epoch(retained: Callable[[int], Retained], epoch: int, source: str) -> int:
    """Give the epoch in which a source of this epoch began."""
    while epoch > 1 and _goes_on(retained(epoch - 1), source):
        epoch -= 1
    return epoch


def last_epoch(
    retained: Callable[[int], Retained], epoch: int, source: str, *, newest: int
) -> int | None:
    """Give the last epoch of a source of this epoch; None where the newest plan still has it."""
    while _goes_on(retained(epoch), source):
        if epoch == newest:
            return None
        epoch += 1
    return epoch


def _goes_on(retained: Retained, source: str) -> bool:
    if source.startswith(SINGLE_LOG):
        return source.removeprefix(SINGLE_LOG) in retained.logs
    return source in retained.collectors


def log_starts(plan: Plan, ends: Mapping[int, Positions]) -> dict[str, int] | None:
    """Give each log's first offset in a plan's epoch; None while the epoch has not begun.

    For a retained log, ask about the epoch in which it began.
    """
    starts = {log.name: log.first for log in plan.logs}
    for earlier in range(1, plan.epoch):
        if earlier not in ends:
            return None
        ended = ends[earlier]
        starts.update({name: ended[name] for name in starts if name in ended})
    return starts


def log_sights(
    epoch: int,
    ends: Mapping[int, Positions],
    ended: Mapping[int, Ended],
    is_cut: Callable[[int, str], bool],
) -> tuple[dict[str, Sequence[SawEnd]], dict[str, int]]:
    """Give what was seen, and what is lost, of logs before an epoch: each log's last `ends` say.

    Nothing of a log of which an operator has accepted that its end is lost.
    """
    seen: dict[str, Sequence[SawEnd]] = {}
    lost: dict[str, int] = {}
    for earlier in range(1, epoch):
        said = ended[earlier]
        for name in ends[earlier]:
            seen.pop(name, None)
            lost.pop(name, None)
            if not is_cut(earlier, name):
                seen[name] = said.seen.get(name, ())
                lost.update({each: at for each, at in said.lost.items() if each == name})
    return seen, lost


def single_log_end(
    ends: Mapping[int, Positions],
    markers: Mapping[int, Positions],
    is_cut: Callable[[int, str], bool],
    epoch: int,
    log: str,
) -> int | None:
    """Give where an epoch of a single-log subscription ends; None while that is not known."""
    return single_log_start(ends, markers, is_cut, epoch + 1, log) if epoch in ends else None


def single_log_start(
    ends: Mapping[int, Positions],
    markers: Mapping[int, Positions],
    is_cut: Callable[[int, str], bool],
    epoch: int,
    log: str,
) -> int | None:
    """Give where an epoch of a single-log subscription begins; None: at the log's own start."""
    start = None
    for earlier in range(1, epoch):
        end = ends.get(earlier, {}).get(log)
        if end is not None and is_cut(earlier, log):
            start = end
        elif end is not None:
            start = max(start or 0, end, markers.get(earlier, {}).get(log, 0))
    return start
