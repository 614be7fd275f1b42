"""Where an instance takes announcements and serves its status; both go to the control topic.

Producers announce their messages to the address in the collector's newest `address` record.
An instance without one writes a `running` record instead: `amcast topology apply` waits for either
before it ends an epoch. An instance that is asked to end writes the same record again, with its
writer as `released`: a standby takes the collector over, and advertises itself. Losing any of these
records costs time, never order.
"""

from __future__ import annotations

from collections.abc import Sequence

from collectors.engine.assignment import Assignment
from collectors.engine.ended_processes import Place, place_of
from collectors.engine.engine import Engine
from collectors.engine.socket_loop import DatagramSink
from multicast.announcements import Address, Announcement, decode
from multicast.control import address_record, running_record
from topology.tree import ORDER_VERSION_FIRST


class AdvertisedAddress:
    """The address of one instance. Its methods are called with the core's lock held."""

    def __init__(self, engine: Engine, assignment: Assignment) -> None:
        self.address: Address | None = None
        self.advertised = False
        self.announcements = 0
        self._is_offered = False
        self._is_read = False  # what we wrote to the control topic last
        self._engine = engine
        self._assignment = assignment

    def listen(self, sink: DatagramSink) -> None:
        """Get an address of its own, where the engine takes announcements, and version 1 runs.

        In version 2 tickets have the place of announcements.
        """
        if self._assignment.plan.order_version == ORDER_VERSION_FIRST:
            self.address = self._engine.listen(sink)

    def advertise(self) -> None:
        """Write to the control topic where producers announce to, or that an instance is open.

        Both name the web pages of this process. Writes nothing where the topic says so already, nor
        over the record of a later epoch, nor over our own offer.
        """
        if self._is_offered:
            return
        name, epoch, page = self._assignment.name, self._assignment.plan.epoch, self._engine.page
        state = self._engine.control
        if self.address is None:
            newest = state.running.get(name, 0)
            is_other = state.pages.get(name) != page
            is_offered = state.offered_by(epoch, name) is not None
            if is_offered or (newest == epoch and is_other):
                self._is_read = False
                self._engine.write_control(*running_record(epoch, name, page))
        else:
            newest, address = state.addresses.get(name, (0, None))
            if newest <= epoch and address != self.address:
                self._engine.write_control(*address_record(epoch, name, self.address, page))
        self.advertised = True

    def offer(self, writer: int) -> None:
        """Write that this instance, with this writer, hands the collector over."""
        name, epoch, page = self._assignment.name, self._assignment.plan.epoch, self._engine.page
        if self.address is None:
            record = running_record(epoch, name, page, releases=writer)
        else:
            record = address_record(epoch, name, self.address, page, releases=writer)
        self._engine.write_control(*record)
        self._is_offered = True

    def is_taken(self, writer: int) -> bool:
        """Whether another instance has advertised itself since our `offer`."""
        offer = self._engine.control.offers.get(self._assignment.name)
        return offer is not None and offer.writer == writer and offer.is_taken

    def is_overtaken(self) -> bool:
        """Whether another instance has advertised itself after us; False with an address.

        With an address, so in version 1, its records tell. Each change of the control topic asks.
        """
        is_ours = self._engine.control.pages.get(self._assignment.name) == self._engine.page
        self._is_read = self._is_read or is_ours
        return self.address is None and self._is_read and not is_ours

    def is_superseded(self) -> bool:
        """Whether another instance was the last one to advertise itself.

        Without announcements and web pages instances look alike; then False.
        """
        name, state = self._assignment.name, self._engine.control
        if self.address is None:
            return state.pages.get(name) != self._engine.page
        return state.addresses.get(name, (0, None))[1] != self.address

    def has_dead_holder(self) -> bool:
        """Whether the process that advertised itself last is known to have ended."""
        place = self._holder_place()
        return place is not None and self._engine.ended_processes.has_ended(place)

    def is_holder_known_dead(self) -> bool:
        """Whether `has_dead_holder` said so of this holder's process a moment ago; never blocks."""
        place = self._holder_place()
        return place is not None and self._engine.ended_processes.is_known(place)

    def _holder_place(self) -> Place | None:
        """Say where to ask for the process that advertised itself last; None if it is ours."""
        name, state = self._assignment.name, self._engine.control
        if self.address is None:
            page = state.pages.get(name)
            return None if page is None or page == self._engine.page else place_of(page)
        _, address = state.addresses.get(name, (0, None))
        return None if address is None or address == self.address else place_of(address)

    def decode(self, datagrams: Sequence[bytes]) -> list[Announcement]:
        """Read the announcements among these datagrams that carry our token."""
        token = b"" if self.address is None else self.address.token
        decoded = [decode(token, raw) for raw in datagrams]
        announcements = [announcement for announcement in decoded if announcement is not None]
        self.announcements += len(announcements)
        return announcements
