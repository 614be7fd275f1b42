"""A shop: decides on commands from the events so far, and appends new events.

    python examples/event_sourcing/shop.py --bootstrap HOST:PORT --topic event_sourcing \
        --name a --orders 20

Any number of shops may run. A decision is valid only if no event of the same aggregate came after
the position at which the shop has read; else the event has no effect, and the shop decides again.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from typing import Any

from events import ALL, ShopState, event_of

from amcast import AmcastError, Consumer, Message, Producer, TimedOut, nothing_after

_ITEMS = ("apple", "pear")
_POLL_S = 0.5  # one wait; a longer one would only be said later if nothing comes
_POLLS_MAX = 120  # a reader that does not come past its own event within a minute is stuck


class EventStore:
    """Reads all events into a state, and appends events on condition."""

    def __init__(self, producer: Producer, consumer: Consumer) -> None:
        self._producer = producer
        self._consumer = consumer
        self.state = ShopState()

    def read(self, batches: Any) -> None:
        """Apply what was delivered."""
        for batch in batches:
            for record in batch.records:
                event = event_of(Message(batch, record))
                if event is not None:
                    self.state.apply(event)

    def append(self, event: dict[str, Any], to: set[str], aggregates: set[str]) -> bool:
        """Append an event; False: an event of one of the aggregates came first, decide again."""
        receipt = self._producer.multicast(
            json.dumps(event).encode(),
            to=to,
            tags=aggregates,
            expect=nothing_after(
                self._consumer.seen(ALL), any_of=[{name} for name in sorted(aggregates)]
            ),
        )
        message, decision = receipt.accepted(), receipt.decided()
        for _ in range(_POLLS_MAX):  # read up to the event, and what came before it
            if self._consumer.seen(ALL).next > message.offset:
                return decision.takes_effect
            self.read(self._consumer.poll(_POLL_S))
        raise TimedOut(f"the consumer did not come past {message}")


def restock(store: EventStore, item: str, quantity: int) -> None:
    """Add to an item's stock; no decision, so other events do not matter."""
    event = {"kind": "restocked", "item": item, "quantity": quantity}
    while not store.append(event, {"stock"}, {f"item:{item}"}):
        pass


def place(store: EventStore, order: str, item: str, quantity: int) -> bool:
    """Place an order; False: there is not enough in stock, or an order of this name."""
    while store.state.stock.get(item, 0) >= quantity and order not in store.state.orders:
        event = {"kind": "placed", "order": order, "item": item, "quantity": quantity}
        if store.append(event, {"orders", "stock"}, {f"item:{item}", f"order:{order}"}):
            return True
    return False


def ship(store: EventStore, order: str) -> bool:
    """Ship an order that is placed; False: it is shipped already, perhaps by another shop."""
    while store.state.orders.get(order) == "placed":
        if store.append({"kind": "shipped", "order": order}, {"orders"}, {f"order:{order}"}):
            return True
    return False


def first_number(store: EventStore, name: str) -> int:
    """Give the number after those of this shop's orders: it may have been killed and restarted."""
    own = (re.fullmatch(rf"{re.escape(name)}-([0-9]{{1,9}})", each) for each in store.state.orders)
    return 1 + max((int(found[1]) for found in own if found), default=-1)


def main() -> None:
    """Give some commands at random."""
    parser = argparse.ArgumentParser(description="A shop on events")
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--name", required=True, help="orders of this shop begin with it")
    parser.add_argument("--orders", type=int, default=20)
    options = parser.parse_args()
    rng = random.Random(options.name)  # noqa: S311 -- a simulation
    cluster = {"bootstrap": options.bootstrap, "topic": options.topic}
    try:
        with (
            Producer(**cluster) as producer,
            Consumer(**cluster, name="both", group=options.name, committed=False) as consumer,
        ):
            store = EventStore(producer, consumer)
            store.read(consumer.until_end())
            first = first_number(store, options.name)
            for number in range(first, first + options.orders):
                item = rng.choice(_ITEMS)
                if number % 4 == 0:
                    restock(store, item, 5)
                order = f"{options.name}-{number}"
                placed = place(store, order, item, rng.randint(1, 3))
                waiting = sorted(o for o, state in store.state.orders.items() if state == "placed")
                shipped = bool(waiting) and ship(store, waiting[0])
                line = {"order": order, "placed": placed, "shipped": shipped and waiting[0]}
                sys.stdout.write(f"{json.dumps(line)}\n")
                sys.stdout.flush()
    except KeyboardInterrupt:
        sys.exit(130)
    except AmcastError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
