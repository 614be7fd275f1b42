"""An audit: the deliveries of a running system up to one end, as a history to check.

`AuditCollector` takes one `End` for all consumers, the deliveries of each, the messages of the
logs, and the control topic's state. It gives a `History` without anything beyond the end, in which
every message has its epoch. No I/O, no clock.

    seat     a consumer whose deliveries are checked; it may be read several times
    epoch    of a message: the epoch of its log that contains its offset. A log that an epoch
             retains from the one before keeps the earlier number, as in cursors. After a recovery a
             consumer may get a message in the next epoch; that changes nothing here

All seats are compared with the same end: messages that came later, and those that a later epoch
delivers, are left out of the logs and out of the deliveries. A seat's interest is that of each
message's epoch: an interest that grows with an epoch does not include messages of earlier epochs.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from contextlib import suppress

from multicast.conditional.judge import LogJudge
from multicast.consuming.batches import Batch
from multicast.consuming.subscription import End, SubscriptionRequest
from multicast.control import SINGLE_LOG, ControlState
from multicast.drivers.protocol import Record
from multicast.errors import UncoveredInterest, UsageError
from multicast.history import History, HistoryBuilder
from multicast.messages import Covered, MessageID, special
from topology.tree import Log


class AuditCollector:
    """Collects a history up to an end: first the deliveries, then the logs' messages."""

    def __init__(self, end: End) -> None:
        self.end = end
        self._builder = HistoryBuilder()
        self._begun: dict[str, tuple[SubscriptionRequest, int]] = {}
        # Seat, instance, log, destination set, offsets. Their epochs are known only at the end.
        self._delivered: list[tuple[str, str, Log, tuple[str, ...], array[int]]] = []
        self._ended: list[tuple[str, str, bool]] = []
        self._judges: dict[str, LogJudge] = {}

    def begins(self, seat: str, request: SubscriptionRequest, epoch: int) -> None:
        """Add a seat, and the epoch of its first position."""
        self._begun.setdefault(seat, (request, epoch))

    def delivered(self, seat: str, instance: str, batch: Batch) -> None:
        """Add the deliveries of a seat; those beyond the end, and void ones, are left out."""
        if batch.decision.takes_effect:
            offsets = [record.offset for record in batch.records]
            self.delivered_offsets(seat, instance, batch.log, batch.to, offsets)

    def delivered_offsets(
        self, seat: str, instance: str, log: Log, to: tuple[str, ...], offsets: Iterable[int]
    ) -> None:
        """Add the deliveries of messages of one log to one set; those beyond the end are left out.

        They follow what the instance delivered so far.
        """
        end = self.end.positions.get(log.name, 0)
        kept = array("q", [offset for offset in offsets if offset < end])
        if kept:
            self._delivered.append((seat, instance, log, to, kept))

    def ended(self, seat: str, instance: str, *, late: bool = False) -> None:
        """Report that a reading of a seat has reached the end; `late`: it lacks a beginning."""
        self._ended.append((seat, instance, late))

    def logged(self, control: ControlState, log: Log, records: Iterable[Record]) -> None:
        """Add the messages of a log, from its start on, in order; void ones are left out.

        `control` must have been read after all deliveries.
        """
        end = self.end.positions.get(log.name, 0)
        epochs = epochs_of(control, log.name)
        for record in records:
            if record.offset >= end or (epoch := epoch_at(epochs, record.offset)) > self.end.epoch:
                break
            life = control.plans[epoch - 1].log(log.name).life
            meaning = special(log.name, record.headers) if record.headers else None
            judge = self._judges.setdefault(log.name, LogJudge(log.name, record.offset))
            decision = judge.replay(record)
            if decision is not None and not decision.takes_effect:
                continue
            if meaning is None or isinstance(meaning, Covered):
                self._builder.acknowledgement(
                    producer="log",
                    message_id=str(MessageID(log.name, record.offset, life)),
                    to=log.to if meaning is None else meaning.to,
                    # Retention may have removed what decides: then it may be delivered, or not.
                    outcome="unknown" if decision is None else "accepted",
                    epoch=epoch,
                )

    def history(self, control: ControlState) -> History:
        """Give the history; the audit must not be used afterwards."""
        self._note_deliveries(control)
        for seat, (request, begun) in self._begun.items():
            for plan in control.plans[begun - 1 :]:
                # A seat whose interest an epoch does not cover was read up to that epoch only.
                with suppress(UncoveredInterest, UsageError):
                    interest, _ = request.resolve_at(control, plan.epoch)
                    self._builder.interest(consumer=seat, interest=interest, epoch=plan.epoch)
        return self._builder.history(plans=[control.plan()], other_producers=True)

    def _note_deliveries(self, control: ControlState) -> None:
        epochs: dict[str, list[tuple[int | None, int]]] = {}
        for seat, instance, log, to, offsets in self._delivered:
            if log.label not in epochs:
                epochs[log.label] = epochs_of(control, log.name, log.life)
            for offset in offsets:
                epoch = epoch_at(epochs[log.label], offset)
                if epoch <= self.end.epoch:
                    self._builder.delivery(
                        consumer=seat,
                        instance=instance,
                        message_id=f"{log.label}:{offset}",
                        to=to,
                        epoch=epoch,
                    )
        for seat, instance, late in self._ended:
            self._builder.end(consumer=seat, instance=instance, late=late)


def epoch_at(epochs: Iterable[tuple[int | None, int]], offset: int) -> int:
    """Give the epoch of an offset, from what `epochs_of` gives."""
    return next(epoch for below, epoch in epochs if below is None or offset < below)


def epochs_of(
    control: ControlState, log: str, life: int | None = None
) -> list[tuple[int | None, int]]:
    """List a log's epochs: the offset at which each ends (None: not ended), and its number.

    With a life, those of this life, of which the last one contains what was lost behind its end.
    """
    epochs: list[tuple[int | None, int]] = []
    for epoch, plan in enumerate(control.plans, 1):
        if not plan.has_log(log):
            continue
        if control.last_epoch(epoch, SINGLE_LOG + log) not in (epoch, None):
            continue
        if life is not None and plan.log(log).life != life:
            continue
        below, cut = control.ends.get(epoch, {}).get(log), control.cut_of(epoch, log)
        if below is not None and cut is not None and life is None:
            below = min(below, cut)
        epochs.append((below, control.first_epoch(epoch, SINGLE_LOG + log)))
        if below is None:
            break
    if life is not None and epochs:
        epochs[-1] = None, epochs[-1][1]
    return epochs
