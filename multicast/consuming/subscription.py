"""Which stream a consumer reads in which epoch, where it begins, and when it has read everything.

From the control topic's state, a subscription and a cursor it makes the `Delivery` of one epoch,
and, once that is delivered to its end, the next epoch's. `End` and `missing` decide whether a
consumer has delivered everything that the logs contained at one moment. No I/O, no clock.

A consumer reads the stream of the collector that the plan names for it, else of the collector with
the smallest bag that covers its interest. If the interest meets one log only, the consumer reads
that log without a collector: a single-log subscription.

Invariant: epochs are delivered one after the other, each from its start to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

from multicast.consuming.cursor import Cursor, interest_digest, single_log_cursor, start_cursor
from multicast.consuming.delivery import BUFFER_BYTES_MAX, RUNS_MAX, Delivery
from multicast.consuming.stated_ends import single_log_end, tell, tell_log_end
from multicast.control import SINGLE_LOG, ControlState, log_partition, source_of, stream_partition
from multicast.drivers.protocol import TopicPartition
from multicast.errors import Truncated, UncoveredInterest, UsageError
from multicast.messages import name_set, refuse_no_name
from topology.tree import Log, Plan


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of a consumer's memory. They influence its speed, but never its deliveries."""

    buffer_bytes_max: int = BUFFER_BYTES_MAX  # of each log
    runs_max: int = RUNS_MAX  # for callers that ask `Delivery.order_paused`


@dataclass(frozen=True, slots=True)
class SubscriptionRequest:
    """What a consumer subscribes to: a consumer of the plan by name, an interest, or both.

    With both, the plan's entry counts as long as it has this interest.
    """

    name: str | None
    interest: tuple[str, ...] | None

    @staticmethod
    def of(name: str | None, interest: Iterable[str] | None) -> SubscriptionRequest:
        """Make a request; raises `UsageError` if both are missing or the interest is malformed."""
        if name is None and interest is None:
            raise UsageError("a consumer needs a name from the plan, or an interest")
        given = None if interest is None else name_set(interest, "an interest")
        for text in (*([] if name is None else [name]), *(given or ())):
            refuse_no_name(text, "a consumer or a partition")
        partitions = None if given is None else tuple(sorted(given))
        if partitions == ():
            raise UsageError("an interest is empty; name at least one partition")
        return SubscriptionRequest(name, partitions)

    def resolve(self, plan: Plan) -> tuple[tuple[str, ...], str]:
        """Give the interest in the plan's epoch, and its source as cursors name it.

        Raises `UncoveredInterest`, which names the command that helps, if the plan does not serve
        it, and `UsageError` for an unknown partition.
        """
        entry = plan.subscription(self.name) if self.name is not None else None
        if entry is not None and self.interest in (None, entry.interest):
            interest, named = entry.interest, entry.collector
        elif self.interest is not None:
            interest, named = self.interest, None
        else:
            raise UncoveredInterest(
                f"consumer {self.name} is missing from the plan of epoch {plan.epoch}; add it to "
                f"the interest file and run 'amcast topology plan --from-cluster' and "
                f"'amcast topology apply', or give an interest"
            )
        for partition in interest:
            if partition not in plan.partitions:
                raise UsageError(f"partition {partition} does not exist in epoch {plan.epoch}")
        source = source_of(plan, interest, named)
        if source is None:
            raise UncoveredInterest(
                f"no collector of epoch {plan.epoch} decides the order of all of "
                f"{', '.join(interest)}; add the interest to the interest file and run "
                f"'amcast topology plan --from-cluster' and 'amcast topology apply'"
            )
        return interest, source

    def resolve_at(self, control: ControlState, epoch: int) -> tuple[tuple[str, ...], str]:
        """Give what `resolve` gives in an epoch, whose plan may not know the request yet.

        A name that only later plans have means the interest of the first of them. Partitions that
        only the newest plan has are left out: no message of this epoch addresses them.
        """
        plan, interest = control.plan(epoch), self.interest
        if interest is None and self.name is not None and plan.subscription(self.name) is None:
            later = (each.subscription(self.name) for each in control.plans[epoch:])
            entry = next((entry for entry in later if entry is not None), None)
            interest = None if entry is None else entry.interest
        if interest is not None:
            new = set(control.plans[-1].partitions).difference(plan.partitions)
            interest = tuple(name for name in interest if name not in new) or interest
        return replace(self, interest=interest).resolve(plan)


def begin(
    control: ControlState, request: SubscriptionRequest, *, epoch: int, bounds: Bounds
) -> Delivery:
    """Open an epoch at its start; a retained source at the start of the epoch in which it began."""
    interest, source = request.resolve_at(control, epoch)
    start = _link(control, control.first_epoch(epoch, source), source, interest).start
    return resume(control, request, start, bounds=bounds)


class SourceLink(NamedTuple):
    """A source that a consumer reads, in the epoch in which it began; `starts` are by log name."""

    plan: Plan
    logs: tuple[Log, ...]
    start: Cursor
    starts: Mapping[str, int]

    @property
    def alone(self) -> bool:
        """Whether it is a log that is read without a collector."""
        return self.start.source.startswith(SINGLE_LOG)

    @property
    def source(self) -> TopicPartition:
        """The Kafka partition of the order, which may be the log itself."""
        if self.alone:
            return log_partition(self.logs[0])
        return stream_partition(self.plan, self.start.source)

    def cursor_at(self, offset: int) -> Cursor:
        """Give the cursor at an offset of what is read: of the order stream, or of the log."""
        place = (0, 0, offset) if self.alone else (offset, 0, 0)
        return Cursor(self.plan.epoch, self.start.source, *place)


def chain_back(
    control: ControlState, request: SubscriptionRequest, epoch: int, *, least: int = 1
) -> tuple[list[SourceLink], str]:
    """List what a consumer reads from an epoch back to `least`, and say why if it ends earlier.

    It ends before an epoch that does not cover the interest; that is no loss if none of its
    partitions existed then. Raises what `resolve` raises for the first epoch, and
    `UncoveredInterest` if no epoch of the chain has begun.
    """
    interest, source = request.resolve_at(control, epoch)
    links: list[SourceLink] = []
    why = ""
    while True:
        first = control.first_epoch(epoch, source)
        if first <= control.begun_epoch:
            links.append(_link(control, first, source, interest))
        epoch = first - 1
        if epoch < least:
            break
        try:
            interest, source = request.resolve_at(control, epoch)
        except UncoveredInterest:
            why = (
                f"no collector of epoch {epoch} orders all of {', '.join(interest)}: no message of "
                f"that epoch, or of one before, is delivered"
            )
            break
        except UsageError:
            break
    if not links:
        control.begun(first)  # raises
    return links, why


def _link(control: ControlState, epoch: int, source: str, interest: tuple[str, ...]) -> SourceLink:
    plan = control.plan(epoch)
    logs = plan.logs_of(interest)
    if source.startswith(SINGLE_LOG):
        start = control.single_log_start(epoch, logs[0].name)
        return SourceLink(
            plan, logs, single_log_cursor(plan, logs[0].name, start), {logs[0].name: start}
        )
    return SourceLink(plan, logs, start_cursor(plan, source), control.begun(epoch))


def interest_at(
    control: ControlState, request: SubscriptionRequest, cursor: Cursor
) -> tuple[str, ...]:
    """Give the interest in a cursor's epoch.

    Raises `UsageError` if the cursor's source does not serve it, `Truncated` if a consumer has made
    it in an epoch of which the control topic says nothing more, and what `resolve` raises.
    """
    if cursor.interest and cursor.epoch > control.begun_epoch:
        raise Truncated(
            f"the control topic has lost its end: cursor {cursor} was made in epoch "
            f"{cursor.epoch}, and only {control.begun_epoch} have begun by what is stated there; "
            f"restore it, or begin anew with committed=False"
        )
    plan = control.plan(cursor.epoch)
    if control.first_epoch(cursor.epoch, cursor.source) != cursor.epoch:
        raise UsageError(f"cursor {cursor} names another epoch than that in which its source began")
    interest, source = request.resolve_at(control, cursor.epoch)
    if cursor.source.startswith(SINGLE_LOG):
        serves = cursor.source == source
    else:
        needed = {log.name for log in plan.logs_of(interest)}
        serves = plan.has_collector(cursor.source) and needed <= set(
            plan.collector(cursor.source).bag
        )
    if not serves:
        raise UsageError(f"cursor {cursor} is of another interest; this one reads {source}")
    if cursor.interest not in ("", interest_digest(interest)):
        raise UsageError(
            f"cursor {cursor} was made by a consumer of another interest than "
            f"{', '.join(interest)}, which may have passed messages that this one lacks"
        )
    return interest


def resume(
    control: ControlState,
    request: SubscriptionRequest,
    cursor: Cursor,
    *,
    bounds: Bounds,
    checkpoints: bool = True,
) -> Delivery:
    """Open the cursor's epoch at the cursor.

    The order stream is read from the last checkpoint before the cursor; without `checkpoints`, from
    the epoch's start. If the cursor was made from the end of a single log, `control` must have been
    read after that end was taken. Raises `UsageError` if the cursor is of another interest.
    """
    interest = interest_at(control, request, cursor)
    plan = control.plan(cursor.epoch)
    order = None
    if not cursor.source.startswith(SINGLE_LOG):
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
    tell(control, delivery)
    if order is None:
        tell_log_end(control, delivery)
    return delivery


def pass_marker(
    control: ControlState, delivery: Delivery, refresh: Callable[[], ControlState]
) -> bool:
    """Continue a single-log subscription that has stopped at an apparent marker.

    False: it must wait for the control topic to say more. Anybody may write a record that looks
    like a marker, so it counts only if some plan ends the log's epoch. Then the subscription waits
    for the epoch's `ends`, and delivers up to the end that they give, whoever wrote the marker. A
    plan is in the control topic before its markers are in the logs. So if `refresh`, which reads
    the control topic to its end, finds no such plan, no record received before is a marker.
    """
    end = single_log_end(control, delivery)
    if end is not None:
        delivery.end_log_at(end)
        return True
    source = delivery.position.source
    if control.last_epoch(delivery.plan.epoch, source) is not None:
        return False
    if refresh().last_epoch(delivery.plan.epoch, source) is None:
        delivery.ignore_markers()
    return True


def follow(
    control: ControlState, request: SubscriptionRequest, ended: Delivery, *, bounds: Bounds
) -> Delivery | None:
    """Open the epoch after a delivery that has ended; None while it has not begun.

    Raises `UncoveredInterest` if the next epoch does not cover the interest: only an explicit seek
    may skip an epoch.
    """
    assert ended.ended
    last = control.last_epoch(ended.plan.epoch, ended.position.source)
    if last is None or control.starts(last + 1) is None:
        return None
    return begin(control, request, epoch=last + 1, bounds=bounds)


# -- the end --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class End:
    """The end of all logs at one moment, whichever epoch delivers their messages.

    `epoch` is the newest plan's epoch and `begun` the newest epoch that has begun, as the control
    topic says at that moment. `positions` gives the ends of the newest plan's logs by name, taken
    after that; the newest plan has every log of the plans before it.

    A consumer has reached the end (`missing` gives None) when

    -   it reads epoch `begun` or a later one, so all earlier epochs are delivered to their ends;
    -   in every log that it reads there, all records below the offset in `positions` are delivered
        or dropped;
    -   if epoch `epoch` had not begun: it reads that epoch, or the plan of that epoch adds no log
        for it that contains records which the epoch may deliver.

    So a change of the plan that is under way delays the end. One that was interrupted keeps a
    consumer from the end only if messages depend on it. At the end all messages are delivered that
    were below the positions and that an epoch up to `epoch` delivers. Messages that only a later
    plan adds to the interest do not belong to the end, even if their log contained them at that
    moment: no plan had decided then that they would be delivered.
    """

    epoch: int
    begun: int
    positions: Mapping[str, int]


def logs_wanted(control: ControlState, request: SubscriptionRequest | None) -> tuple[Log, ...]:
    """List the newest plan's logs that a consumer reads in some epoch; without a request, all."""
    newest = control.plan()
    if request is None:
        return newest.logs
    partitions: dict[str, None] = {}
    for plan in control.plans:
        with suppress(UncoveredInterest, UsageError):
            partitions.update(dict.fromkeys(request.resolve_at(control, plan.epoch)[0]))
    return tuple(newest.logs_of(list(partitions)))


def missing(
    control: ControlState, request: SubscriptionRequest, delivery: Delivery, end: End
) -> str | None:
    """Say what a consumer lacks, or waits for, up to an end; None if it has reached the end.

    `control` must have been read at least as far as when the end was taken.
    """
    where = Reached(
        delivery.plan.epoch,
        delivery.position.source,
        delivery.progress(),
        stopped=delivery.ended or delivery.marker is not None,
    )
    return lacking(control, request, where, end)


@dataclass(frozen=True, slots=True)
class Reached:
    """How far a reader of the order is: its source in an epoch, and its logs' offsets by name.

    `stopped`: it has read the source to the end of the epoch, as far as it knows.
    """

    epoch: int
    source: str
    progress: Mapping[str, int]
    stopped: bool


def lacking(
    control: ControlState, request: SubscriptionRequest, where: Reached, end: End
) -> str | None:
    """Say what `missing` says, of any reader of the order."""
    last = control.last_epoch(where.epoch, where.source)
    progress = where.progress
    for name, reached in progress.items():
        if reached < end.positions.get(name, 0):
            if where.stopped and last is not None and control.starts(last + 1) is None:
                return _not_begun(last + 1)
            return (
                f"log {name} is delivered up to {reached} of {end.positions[name]}; "
                f"'amcast collectors status' shows whether its collector is running"
            )
    if last is None:
        return None
    if last < end.begun:
        return f"epoch {last} is not delivered to its end; 'amcast collectors status' shows more"
    for epoch in range(last + 1, end.epoch + 1):
        for name, first in _added_logs(control, request, epoch, progress).items():
            if first < end.positions.get(name, 0):
                return _not_begun(epoch)
    return None


def _not_begun(epoch: int) -> str:
    return (
        f"epoch {epoch} has not begun: applying its plan is under way or was interrupted; "
        f"run 'amcast topology apply' with that plan again"
    )


def _added_logs(
    control: ControlState, request: SubscriptionRequest, epoch: int, known: Mapping[str, int]
) -> dict[str, int]:
    """Give the logs that an epoch adds to those a consumer knows, each with its first offset.

    For an epoch that has not begun it is a lower bound of that offset.
    """
    plan = control.plan(epoch)
    try:
        interest, _ = request.resolve_at(control, epoch)
    except (UncoveredInterest, UsageError):
        return {}  # that epoch does not serve this consumer
    begun = control.begun_epoch
    starts = control.begun(min(begun, epoch))
    marked = control.markers.get(begun, {}) if begun < epoch else {}
    return {
        log.name: max(starts.get(log.name, log.first), marked.get(log.name, 0))
        for log in plan.logs_of(interest)
        if log.name not in known
    }
