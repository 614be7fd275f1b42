"""A producer that dies between a message and its ticket: one of the two is stored, the other never.

They are two requests only where the message's log and its collector's stream have different
leaders. The fault strikes the producer that reaches the brokers through the proxy.

    losing    the broker that gets no Produce of the producer any more
    keeping   the other one: it still stores what the producer sends
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from typing import Literal

from bench.nemesis.faults.kinds import kind
from bench.nemesis.faults.proxy import armed
from bench.nemesis.frames import Action, Api, RequestFault
from bench.nemesis.system import SETS, System
from multicast.control import stream_partition
from multicast.errors import TimedOut
from topology.tree import ORDER_VERSION_FIRST

_PRODUCER = "p2"
_produce = partial(RequestFault, api=Api.PRODUCE, client_id=_PRODUCER)
_STORED_S = 20.0  # for the keeping broker to answer a request
# Requests that the keeping broker stores before the kill. The producer multicasts to its sets in
# turns, so some of them hold a message, or a ticket, whose other half went to the losing broker.
_STORED_MIN = len(SETS)


def _leaders_apart(system: System) -> list[tuple[int, int]]:
    """Return pairs of brokers: a log's leader, and another one that leads the log's stream."""
    plan = system.plans()[-1]
    if plan.order_version == ORDER_VERSION_FIRST:
        return []  # only collectors write to the streams
    pairs = []
    for to in SETS:
        top = plan.top("+".join(to))
        if top is not None:  # without a collector, a log's offsets are its order
            stream = system.leader(stream_partition(plan, top.name))
            pairs.append((system.leader_of(to), stream))
    return [(log, stream) for log, stream in pairs if log != stream]


def _kill_between(system: System, *, losing: int, keeping: int) -> None:
    """Break each Produce to one broker until the other has stored several; then SIGKILL."""
    breaks = _produce(action=Action.CUT, nth=None, broker=losing)
    last = _produce(action=Action.DELAY, nth=_STORED_MIN, delay_s=0.0, broker=keeping)
    with armed(system, breaks), armed(system, last) as caught:
        if not caught.answered.wait(_STORED_S):
            raise TimedOut(f"b{keeping} answered {_PRODUCER} nothing within {_STORED_S:g} s")
        system.programs[_PRODUCER].kill()


def _killed(
    system: System, pick: random.Random, *, lost: Literal["tickets", "messages"]
) -> Iterator[str]:
    pairs = _leaders_apart(system)
    if pairs:
        log, stream = pick.choice(pairs)
        losing, keeping = (stream, log) if lost == "tickets" else (log, stream)
        _kill_between(system, losing=losing, keeping=keeping)
        yield f"{_PRODUCER}, its {lost} to b{losing} lost, what goes with them stored on b{keeping}"
    else:
        system.programs[_PRODUCER].kill()
        yield f"{_PRODUCER}, no ticket apart from its message"
    system.programs[_PRODUCER].start()


@kind("producer-killed-before-ticket", hold_s=(0.5, 2.0))
def producer_killed_before_ticket(system: System, pick: random.Random) -> Iterator[str]:
    """SIGKILL a producer with messages stored whose tickets are lost: collectors order them."""
    yield from _killed(system, pick, lost="tickets")


@kind("producer-killed-before-message", hold_s=(0.5, 2.0))
def producer_killed_before_message(system: System, pick: random.Random) -> Iterator[str]:
    """SIGKILL a producer with tickets stored whose messages are lost: they count too early."""
    yield from _killed(system, pick, lost="messages")
