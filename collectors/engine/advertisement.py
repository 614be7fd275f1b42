"""What an instance says of itself on the control topic: that it is open, and where its page is.

`amcast topology apply` waits for this `running` record before it ends an epoch; operators' commands
read the page that it names, and a standby asks there whether the process has ended. An instance
that is asked to end writes the record again, with its writer as `released`: a standby takes the
collector over, and advertises itself. Losing any of these records costs time, never order.
"""

from __future__ import annotations

from collectors.engine.assignment import Assignment
from collectors.engine.ended_processes import ProcessPlace, place_of
from collectors.engine.engine import Engine
from multicast.control import running_record


class Advertisement:
    """The advertisement of one instance. Its methods are called with the core's lock held."""

    def __init__(self, engine: Engine, assignment: Assignment) -> None:
        self.advertised = False
        self._is_offered = False
        self._is_read = False  # what we wrote to the control topic last
        self._engine = engine
        self._assignment = assignment

    def advertise(self) -> None:
        """Write to the control topic that an instance is open, with the pages of this process.

        Writes nothing where the topic says so already, nor over the record of a later epoch, nor
        over our own offer.
        """
        if self._is_offered:
            return
        name, epoch, page = self._assignment.name, self._assignment.plan.epoch, self._engine.page
        said = self._engine.control.advertised
        is_other = said.running.get(name) == epoch and said.pages.get(name) != page
        if is_other or said.offered_by(epoch, name) is not None:
            self._is_read = False
            self._engine.write_control(*running_record(epoch, name, page))
        self.advertised = True

    def renew(self) -> None:
        """Advertise again where the record of an earlier epoch's instance came after ours."""
        opened = self._engine.control.advertised.running.get(self._assignment.name, 0)
        if self.advertised and 0 < opened < self._assignment.plan.epoch:
            self.advertise()

    def offer(self, writer: int) -> None:
        """Write that this instance, with this writer, hands the collector over."""
        name, epoch, page = self._assignment.name, self._assignment.plan.epoch, self._engine.page
        self._engine.write_control(*running_record(epoch, name, page, releases=writer))
        self._is_offered = True

    def is_taken(self, writer: int) -> bool:
        """Whether another instance has advertised itself since our `offer`."""
        offer = self._engine.control.advertised.offers.get(self._assignment.name)
        return offer is not None and offer.writer == writer and offer.is_taken

    def is_overtaken(self) -> bool:
        """Whether another instance has advertised itself after us.

        Each change of the control topic asks, because the answer depends on the last one.
        """
        pages = self._engine.control.advertised.pages
        is_ours = pages.get(self._assignment.name) == self._engine.page
        self._is_read = self._is_read or is_ours
        return self._is_read and not is_ours

    def is_superseded(self) -> bool:
        """Whether another instance was the last one to advertise itself.

        Without web pages instances look alike; then False.
        """
        return self._engine.control.advertised.pages.get(self._assignment.name) != self._engine.page

    def has_dead_holder(self) -> bool:
        """Whether the process that advertised itself last is known to have ended."""
        place = self._holder_place()
        return place is not None and self._engine.ended_processes.has_ended(place)

    def is_holder_known_dead(self) -> bool:
        """Whether `has_dead_holder` said so of this holder's process a moment ago; never blocks."""
        place = self._holder_place()
        return place is not None and self._engine.ended_processes.is_known(place)

    def _holder_place(self) -> ProcessPlace | None:
        """Say where to ask for the process that advertised itself last; None if it is ours."""
        page = self._engine.control.advertised.pages.get(self._assignment.name)
        return None if page is None or page == self._engine.page else place_of(page)
