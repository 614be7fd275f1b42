"""The events, and how they change the state: the same function for decisions and projections.

    restocked   {"kind": "restocked", "item": "apple", "quantity": 5}       to stock
    placed      {"kind": "placed", "order": "7", "item": …, "quantity": …}  to orders and stock
    shipped     {"kind": "shipped", "order": "7"}                           to orders

One event may change two aggregates, an order and an item: it is one message to both partitions, so
every reader sees both changes or none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

ALL = ("orders", "stock")  # the declared set: all events stand in its log


@dataclass
class ShopState:
    """What the events up to some position add up to."""

    stock: dict[str, int] = field(default_factory=dict)
    orders: dict[str, str] = field(default_factory=dict)

    def apply(self, event: dict[str, Any]) -> None:
        """Take the next event. A reader of one partition uses its part of the state only."""
        match event:
            case {"kind": "restocked", "item": str(item), "quantity": int(quantity)}:
                self.stock[item] = self.stock.get(item, 0) + quantity
            case {"kind": "placed", "order": str(order), "item": str(item), "quantity": int(taken)}:
                self.stock[item] = self.stock.get(item, 0) - taken
                self.orders[order] = "placed"
            case {"kind": "shipped", "order": str(order)}:
                self.orders[order] = "shipped"
            case _:
                raise ValueError(f"{event} is no event of this shop")
