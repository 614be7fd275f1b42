"""The events, and how they change the state: the same function for decisions and projections.

    restocked   {"kind": "restocked", "item": "apple", "quantity": 5}       to stock
    placed      {"kind": "placed", "order": "7", "item": …, "quantity": …}  to orders and stock
    shipped     {"kind": "shipped", "order": "7"}                           to orders

One event may change two aggregates, an order and an item: it is one message to both partitions, so
every reader sees both changes or none.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from typing import Any

from amcast import AmcastError, Message

ALL = ("orders", "stock")  # the declared set: all events stand in its log
_FIELDS: dict[str, dict[str, type]] = {
    "restocked": {"item": str, "quantity": int},
    "placed": {"order": str, "item": str, "quantity": int},
    "shipped": {"order": str},
}

NESTED_MAX = 100  # brackets of an event: how many a parser can nest depends on its stack


class UnknownEvent(AmcastError):
    """An event that this program cannot apply; to pass over it would lose what it says."""


def event_of(message: Message) -> dict[str, Any] | None:
    """Read a message's event; None, and a line on stderr: a foreign message, which has no kind.

    Raises `UnknownEvent` for an event of another kind or form.
    """
    text = message.payload or b"null"
    try:
        nested = text.count(b"{") + text.count(b"[") > NESTED_MAX
        event = None if nested else json.loads(text.decode())
    except ValueError:
        event = None
    kind = event.get("kind") if isinstance(event, dict) else None
    if not isinstance(kind, str):
        sys.stderr.write(f"{message.message_id} is no event, and changes nothing\n")
        return None
    fields = _FIELDS.get(kind)
    if fields is None or any(type(event.get(name)) is not form for name, form in fields.items()):
        raise UnknownEvent(
            f"{message.message_id} is an event of an unknown kind or form; a newer shop may have "
            "appended it: upgrade this program, and start it again"
        )
    return event


@dataclass
class ShopState:
    """What the events up to some position add up to."""

    stock: dict[str, int] = field(default_factory=dict)
    orders: dict[str, str] = field(default_factory=dict)

    def apply(self, event: dict[str, Any]) -> None:
        """Take the next event. A reader of one partition uses its part of the state only."""
        match event:
            case {"kind": "restocked", "item": item, "quantity": quantity}:
                self.stock[item] = self.stock.get(item, 0) + quantity
            case {"kind": "placed", "order": order, "item": item, "quantity": quantity}:
                self.stock[item] = self.stock.get(item, 0) - quantity
                self.orders[order] = "placed"
            case {"kind": "shipped", "order": order}:
                self.orders[order] = "shipped"
            case _:
                raise AssertionError(event)
