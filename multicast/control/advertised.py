"""What instances of collectors say of themselves: the newest `running/NAME` of each name. No I/O.

Nothing of the order depends on it: only waits, reports, and how soon a standby acts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from multicast.control.documents import Offer, StatusPage, page_of, writer_of
from topology.documents import NotReadable, part, whole
from topology.tree import EPOCH_MAX

NOBODY = 0  # no writer: theirs are random numbers of 8 bytes
RUNNING_MAX = 100_000  # names of collectors, ten times what any plan has had so far


@dataclass
class Advertised:
    """By name: the epoch that an instance has opened, its web page, the newest offer."""

    running: dict[str, int] = field(default_factory=dict)
    pages: dict[str, StatusPage | None] = field(default_factory=dict)
    offers: dict[str, Offer] = field(default_factory=dict)

    def copy(self) -> Advertised:
        """Give a copy."""
        return Advertised(dict(self.running), dict(self.pages), dict(self.offers))

    def take(self, name: str, document: Mapping[str, Any]) -> None:
        """Take the next statement; raises `NotReadable`."""
        if name not in self.running and len(self.running) >= RUNNING_MAX:
            raise NotReadable("too many collectors are named")
        epoch, page = whole(part(document, "epoch"), EPOCH_MAX), page_of(document)
        writer = writer_of(document)
        self.running[name], self.pages[name] = epoch, page
        if writer is not None:
            self.offers[name] = Offer(epoch, writer)
        elif name in self.offers:
            self.offers[name] = self.offers[name]._replace(is_taken=True)

    def collectors_open(self, epoch: int) -> set[str]:
        """Give the collectors that some instance has opened in this epoch or a later one."""
        return {name for name, opened in self.running.items() if opened >= epoch}

    def offered_by(self, epoch: int, name: str) -> int | None:
        """Give who leaves a collector that began in this epoch to the next instance; None: nobody.

        It is the writer that hands it over, or `NOBODY` where no instance has opened it so far.
        """
        offer = self.offers.get(name)
        if offer is not None and not offer.is_taken and offer.epoch == epoch:
            return offer.writer
        return NOBODY if self.running.get(name, 0) < epoch else None
