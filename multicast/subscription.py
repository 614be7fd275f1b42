"""Which stream a consumer reads in which epoch, and from where.

Goes in: what the control topic says, a consumer's name or interest, a cursor. Comes out: a
`Delivery` for one epoch, and the next one when that is delivered to its end; and whether all is
delivered that stood in the logs at one moment (`End`, `missing`). No I/O, no clock.

    A consumer reads the collector that the plan names for it, else the one with the smallest bag
    that covers its interest. An interest that meets one log only reads that log alone.

Invariant: epochs are delivered one after the other, each from its start to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from multicast.control import ALONE, ControlState
from multicast.cursor import Cursor, single_log_cursor, start_cursor
from multicast.delivery import Delivery
from multicast.errors import UncoveredInterest, UsageError
from topology.tree import Log, Plan


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much a consumer holds in memory. Tiny values must change speed only."""

    buffer_bytes_max: int = 16 << 20  # of each log
    runs_max: int = 100_000


@dataclass(frozen=True, slots=True)
class SubscriptionRequest:
    """What a consumer subscribes to: a name from the plan, an interest, or a name for one."""

    name: str | None
    interest: tuple[str, ...] | None

    @staticmethod
    def of(name: str | None, interest: Iterable[str] | None) -> SubscriptionRequest:
        """Check the two together; raises `UsageError` where neither is given."""
        if name is None and interest is None:
            raise UsageError("a consumer needs a name from the plan, or an interest")
        if isinstance(interest, str):
            raise UsageError(f"an interest is a set of names, like {{{interest!r}}}, not a text")
        wanted = None if interest is None else tuple(sorted(set(interest)))
        if wanted == ():
            raise UsageError("an interest names at least one partition")
        return SubscriptionRequest(name, wanted)

    def resolve(self, plan: Plan) -> tuple[tuple[str, ...], str]:
        """Give the interest in that epoch, and its source as cursors name it.

        Raises `UncoveredInterest` with the command that mends it, or `UsageError`.
        """
        entry = plan.subscription(self.name) if self.name is not None else None
        if entry is not None and self.interest in (None, entry.interest):
            interest, named = entry.interest, entry.collector
        elif self.interest is not None:
            interest, named = self.interest, None
        else:
            raise UncoveredInterest(
                f"consumer {self.name} stands in no entry of epoch {plan.epoch}'s plan; add it to "
                f"the interest file and run 'amcast topology plan' and 'amcast topology apply', "
                f"or give an interest"
            )
        for partition in interest:
            if partition not in plan.partitions:
                raise UsageError(f"partition {partition} is not one of epoch {plan.epoch}'s")
        logs = plan.logs_of(interest)
        if len(logs) == 1:
            return interest, ALONE + logs[0].name
        if named is None:
            node = plan.collector_for(interest)
            if node is None:
                raise UncoveredInterest(
                    f"no collector of epoch {plan.epoch} decides the order of all of "
                    f"{', '.join(interest)}; add the interest to the interest file and run "
                    f"'amcast topology plan' and 'amcast topology apply'"
                )
            named = node.name
        return interest, named


def begin(
    control: ControlState, wanted: SubscriptionRequest, *, epoch: int, bounds: Bounds
) -> Delivery:
    """Open an epoch at its start: that of an earlier one, where what serves was carried over."""
    _, source = wanted.resolve(control.plan(epoch))
    epoch = control.first_epoch(epoch, source)
    plan = control.plan(epoch)
    if source.startswith(ALONE):
        name = source.removeprefix(ALONE)
        cursor = single_log_cursor(plan, name, control.alone_start(epoch, name))
    else:
        cursor = start_cursor(plan, source)
    return resume(control, wanted, cursor, bounds=bounds)


def earliest(control: ControlState, wanted: SubscriptionRequest, *, bounds: Bounds) -> Delivery:
    """Open the first of the newest epochs in a row that all cover the interest."""
    first = control.plan().epoch
    wanted.resolve(control.plan(first))
    while first > 1:
        try:
            wanted.resolve(control.plan(first - 1))
        except (UncoveredInterest, UsageError):
            break
        first -= 1
    return begin(control, wanted, epoch=first, bounds=bounds)


def resume(
    control: ControlState,
    wanted: SubscriptionRequest,
    cursor: Cursor,
    *,
    bounds: Bounds,
    checkpoints: bool = True,
) -> Delivery:
    """Open the cursor's epoch at the cursor.

    Reading begins at the last checkpoint before it; without `checkpoints`, at the epoch's start.

    A cursor that was made from a lone log's end needs a control state read after that end was.
    Raises `UsageError` where the cursor is not one of this interest's.
    """
    plan = control.plan(cursor.epoch)
    interest, source = wanted.resolve(plan)
    order = None
    if cursor.source.startswith(ALONE):
        if cursor.source != source:
            raise UsageError(f"the cursor {cursor} is of another interest: this one reads {source}")
    else:
        needed = {log.name for log in plan.logs_of(interest)}
        if not plan.has_collector(cursor.source) or not needed <= set(
            plan.collector(cursor.source).bag
        ):
            raise UsageError(f"the cursor {cursor} is of another interest: this one reads {source}")
        below = cursor.record if checkpoints else 0
        order = control.stream(cursor.epoch, cursor.source, below=below)
    delivery = Delivery(
        plan,
        interest,
        order,
        cursor,
        buffer_bytes_max=bounds.buffer_bytes_max,
        runs_max=bounds.runs_max,
    )
    # A cursor may stand beyond the marker at which a lone reader would stop.
    last = control.last_epoch(cursor.epoch, cursor.source) if order is None else None
    if last is not None:
        end = alone_end(control, delivery)
        if end is None:
            delivery.alone_waits()
        else:
            delivery.alone_ends(end)
    return delivery


def alone_end(control: ControlState, delivery: Delivery) -> int | None:
    """Say where the epoch of a lone log ends; None while that is not known."""
    source = delivery.position.source
    last = control.last_epoch(delivery.plan.epoch, source)
    if last is None:
        return None
    return control.alone_end(last, source.removeprefix(ALONE))


def pass_marker(
    control: ControlState, delivery: Delivery, refresh: Callable[[], ControlState]
) -> bool:
    """Go on where a lone reader stands at what looks like a marker; False: wait for the control.

    Anybody may write a record that looks like a marker. It is believed where a plan ends the log's
    epoch: then the reader waits for `ends`, and delivers to there, whosever the markers are. A plan
    is in the control topic before its markers are written. So where `refresh`, which reads the
    control topic to its end, finds no such plan, nothing that was read before is a marker.
    """
    end = alone_end(control, delivery)
    if end is not None:
        delivery.alone_ends(end)
        return True
    source = delivery.position.source
    if control.last_epoch(delivery.plan.epoch, source) is not None:
        return False
    if refresh().last_epoch(delivery.plan.epoch, source) is None:
        delivery.alone_goes_on()
    return True


def follow(
    control: ControlState, wanted: SubscriptionRequest, ended: Delivery, *, bounds: Bounds
) -> Delivery | None:
    """Open the epoch after those that are delivered to their end; None while it has not begun.

    Raises `UncoveredInterest` where the next epoch does not cover the interest: only an explicit
    seek leaves it out.
    """
    assert ended.ended
    last = control.last_epoch(ended.plan.epoch, ended.position.source)
    if last is None or control.starts(last + 1) is None:
        return None
    return begin(control, wanted, epoch=last + 1, bounds=bounds)


# -- the end --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class End:
    """Where all that stands in the logs at one moment ends, whatever epoch delivers it.

    `epoch` is the newest plan's and `begun` the newest epoch that has begun, as the control topic
    says then; `positions` are the ends of the newest plan's logs (it has every log of the plans
    before), by name, read after that.

    A consumer has reached the end (`missing` says None) when

    -   it reads in epoch `begun` or a later one, so all epochs before are delivered to their end;
    -   in every log that it reads there, all below the log's position is delivered or dropped;
    -   where plan `epoch` had not begun: it reads in that epoch, or that plan gives it no log in
        which something stands that the epoch may deliver.

    So the end waits for a change that is under way, and one that was interrupted keeps it from
    being reached only where messages depend on it. All is then delivered that stood below the
    positions and that an epoch up to `epoch` delivers. What a plan that came later adds to the
    interest is not part of the end, also where it stood in a log before: whether a later epoch
    delivers it was not decided then.
    """

    epoch: int
    begun: int
    positions: Mapping[str, int]


def logs_wanted(control: ControlState, wanted: SubscriptionRequest | None) -> tuple[Log, ...]:
    """List the logs of the newest plan that a consumer reads in some epoch; all: None is given."""
    newest = control.plan()
    if wanted is None:
        return newest.logs
    partitions: dict[str, None] = {}
    for plan in control.plans:
        with suppress(UncoveredInterest, UsageError):
            partitions.update(dict.fromkeys(wanted.resolve(plan)[0]))
    return tuple(newest.logs_of(list(partitions)))


def missing(
    control: ControlState, wanted: SubscriptionRequest, delivery: Delivery, end: End
) -> str | None:
    """Say what a consumer still has to deliver or to wait for up to an end; None: nothing.

    `control` must have been read at least as far as when the end was taken.
    """
    last = control.last_epoch(delivery.plan.epoch, delivery.position.source)
    progress = delivery.progress()
    for name, reached in progress.items():
        if reached < end.positions.get(name, 0):
            waits = delivery.ended or delivery.marker is not None
            if waits and last is not None and control.starts(last + 1) is None:
                return _not_begun(last + 1)
            return (
                f"log {name} is ordered up to {reached} of {end.positions[name]}; "
                f"'amcast collectors status' tells whether its collector runs"
            )
    if last is None:
        return None
    if last < end.begun:
        return f"epoch {last} is not delivered to its end; 'amcast collectors status' tells more"
    for epoch in range(last + 1, end.epoch + 1):
        for name, first in _joining(control, wanted, epoch, progress).items():
            if first < end.positions.get(name, 0):
                return _not_begun(epoch)
    return None


def _not_begun(epoch: int) -> str:
    return (
        f"epoch {epoch} has not begun: its apply is under way or was interrupted; "
        f"run 'amcast topology apply' of its plan again"
    )


def _joining(
    control: ControlState, wanted: SubscriptionRequest, epoch: int, known: Mapping[str, int]
) -> dict[str, int]:
    """Name the logs that an epoch adds to what a consumer reads, each with its first offset.

    Where the epoch has not begun: an offset that its first one cannot be below.
    """
    plan = control.plan(epoch)
    try:
        interest, _ = wanted.resolve(plan)
    except (UncoveredInterest, UsageError):
        return {}  # nothing of that epoch is for this consumer
    begun = control.begun_epoch
    starts = control.begun(min(begun, epoch))
    marked = control.markers.get(begun, {}) if begun < epoch else {}
    return {
        log.name: max(starts.get(log.name, log.first), marked.get(log.name, 0))
        for log in plan.logs_of(interest)
        if log.name not in known
    }
