"""An audit: what consumers of a running system delivered up to one end, as a history to judge.

Goes in: one `End` for all, what stands in the logs, what each consumer delivers, what the control
topic says. Comes out: a `History` in which nothing beyond the end stands, and every message has its
epoch. No I/O, no clock.

    seat     a consumer whose deliveries are judged; it may be read several times
    epoch    of a message: that of its log where it stands. What an epoch retains of the one before
             keeps that one's number, as in cursors. After a recovery a consumer may be given a
             message in the epoch after it: that changes nothing here

All seats are held against the same end: a message that came later, or that an epoch after the end's
delivers, is in no log, and delivered by nobody. And each seat's interest is that of the message's
epoch: an interest that grows with an epoch is owed nothing of the epochs before.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from contextlib import suppress

from multicast.control import ALONE, ControlState
from multicast.delivery import Batch
from multicast.drivers.protocol import Record
from multicast.errors import UncoveredInterest, UsageError
from multicast.history import History, HistoryBuilder
from multicast.messages import Covered, special
from multicast.subscription import End, SubscriptionRequest
from topology.tree import Log


class AuditCollector:
    """Collects a history up to an end. First the deliveries, then what stands in the logs."""

    def __init__(self, end: End) -> None:
        self.end = end
        self._builder = HistoryBuilder()
        self._begun: dict[str, tuple[SubscriptionRequest, int]] = {}
        # Their epochs are known at last: seat, instance, log, destination set, offsets.
        self._delivered: list[tuple[str, str, str, tuple[str, ...], array[int]]] = []
        self._ended: list[tuple[str, str]] = []

    def begins(self, seat: str, wanted: SubscriptionRequest, epoch: int) -> None:
        """Note that a seat is read, and in which epoch its first position is."""
        self._begun.setdefault(seat, (wanted, epoch))

    def delivered(self, seat: str, instance: str, batch: Batch) -> None:
        """Note what a seat delivered; what stands beyond the end is left out."""
        end = self.end.positions.get(batch.log.name, 0)
        offsets = array("q", [one.offset for one in batch.records if one.offset < end])
        if offsets:
            self._delivered.append((seat, instance, batch.log.name, batch.to, offsets))

    def ended(self, seat: str, instance: str) -> None:
        """Note that a reading of a seat has come to the end."""
        self._ended.append((seat, instance))

    def logged(self, control: ControlState, log: Log, records: Iterable[Record]) -> None:
        """Note messages that stand in a log; `control` is read at last, after every reading."""
        end = self.end.positions.get(log.name, 0)
        epochs = _epochs_of(control, log.name)
        for record in records:
            if record.offset >= end or (epoch := _epoch_at(epochs, record.offset)) > self.end.epoch:
                break
            found = special(log.name, record.headers) if record.headers else None
            if found is None or isinstance(found, Covered):
                self._builder.acknowledgement(
                    producer="log",
                    message_id=f"{log.name}:{record.offset}",
                    to=log.to if found is None else found.to,
                    outcome="accepted",
                    epoch=epoch,
                )

    def history(self, control: ControlState) -> History:
        """Give the history; the audit must not be used afterwards."""
        self._note_deliveries(control)
        for seat, (wanted, begun) in self._begun.items():
            for plan in control.plans[begun - 1 :]:
                # One that no epoch covers any longer was read as far as the epochs before.
                with suppress(UncoveredInterest, UsageError):
                    interest, _ = wanted.resolve(plan)
                    self._builder.interest(consumer=seat, interest=interest, epoch=plan.epoch)
        return self._builder.history(plans=[control.plan()], other_producers=True)

    def _note_deliveries(self, control: ControlState) -> None:
        epochs: dict[str, list[tuple[int | None, int]]] = {}
        for seat, instance, log, to, offsets in self._delivered:
            if log not in epochs:
                epochs[log] = _epochs_of(control, log)
            for offset in offsets:
                epoch = _epoch_at(epochs[log], offset)
                if epoch <= self.end.epoch:
                    self._builder.delivery(
                        consumer=seat,
                        instance=instance,
                        message_id=f"{log}:{offset}",
                        to=to,
                        epoch=epoch,
                    )
        for seat, instance in self._ended:
            self._builder.end(consumer=seat, instance=instance)


def epoch_of(control: ControlState, message_id: str) -> int:
    """Give the epoch of a message, by its ID "LOG:OFFSET"."""
    log, _, offset = message_id.rpartition(":")
    return _epoch_at(_epochs_of(control, log), int(offset))


def _epoch_at(epochs: Iterable[tuple[int | None, int]], offset: int) -> int:
    return next(epoch for below, epoch in epochs if below is None or offset < below)


def _epochs_of(control: ControlState, log: str) -> list[tuple[int | None, int]]:
    """List a log's epochs: where each ends (None: it has not ended), and its number."""
    found: list[tuple[int | None, int]] = []
    for epoch, plan in enumerate(control.plans, 1):
        if not plan.has_log(log) or control.last_epoch(epoch, ALONE + log) not in (epoch, None):
            continue
        below = control.ends.get(epoch, {}).get(log)
        found.append((below, control.first_epoch(epoch, ALONE + log)))
        if below is None:
            break
    return found
