"""Where an instance takes announcements and serves its status; both go to the control topic.

Producers announce their messages to the address in the collector's newest `address` record.
An instance without one writes a `running` record instead: `amcast topology apply` waits for either
before it ends an epoch. Losing such a record costs time, never order.
"""

from __future__ import annotations

from collections.abc import Sequence

from collectors.engine.assignment import Assignment
from collectors.engine.engine import Engine
from collectors.engine.socket_loop import DatagramSink
from multicast.announcements import Address, Announcement, decode
from multicast.control import address_record, running_record


class AdvertisedAddress:
    """The address of one instance. Its methods are called with the core's lock held."""

    def __init__(self, engine: Engine, assignment: Assignment) -> None:
        self.address: Address | None = None
        self.advertised = False
        self.announcements = 0
        self._engine = engine
        self._assignment = assignment

    def listen(self, sink: DatagramSink) -> None:
        """Get an address of its own, where the engine takes announcements."""
        self.address = self._engine.listen(sink)

    def advertise(self) -> None:
        """Write to the control topic where producers announce to, or that an instance is open.

        Both name the web pages of this process. Writes nothing where the topic says so already, nor
        over the record of a later epoch.
        """
        name, epoch, page = self._assignment.name, self._assignment.plan.epoch, self._engine.page
        state = self._engine.control
        if self.address is None:
            newest = state.running.get(name, 0)
            is_new = newest < epoch or (newest == epoch and state.pages.get(name) != page)
            if is_new and not self.advertised:
                self._engine.write_control(*running_record(epoch, name, page))
        else:
            newest, address = state.addresses.get(name, (0, None))
            if newest <= epoch and address != self.address:
                self._engine.write_control(*address_record(epoch, name, self.address, page))
        self.advertised = True

    def has_dead_holder(self) -> bool:
        """Whether the process that advertised the newest address is known to have ended."""
        _, address = self._engine.control.addresses.get(self._assignment.name, (0, None))
        if address is None or address == self.address:
            return False
        return self._engine.ended_processes.has_ended(address)

    def decode(self, datagrams: Sequence[bytes]) -> list[Announcement]:
        """Read the announcements among these datagrams that carry our token."""
        token = b"" if self.address is None else self.address.token
        decoded = [decode(token, raw) for raw in datagrams]
        announcements = [announcement for announcement in decoded if announcement is not None]
        self.announcements += len(announcements)
        return announcements
