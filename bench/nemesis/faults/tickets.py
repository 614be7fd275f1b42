"""A producer that dies between a message and its ticket: one of the two is stored, the other never.

They are two requests only where the message's log and its collector's stream have different
leaders. The fault strikes the producer that reaches the brokers through the proxy.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial

from bench.nemesis.faults.kinds import kind
from bench.nemesis.frames import Action, Api, RequestFault
from bench.nemesis.running import until
from bench.nemesis.system import SETS, System
from multicast.control import stream_partition
from multicast.errors import TimedOut
from topology.tree import ORDER_VERSION_FIRST

_PRODUCER = "p2"
_CAUGHT_S = 20.0  # for the requests to come; the producer sends several a second
# Requests to the working broker before the kill. The producer multicasts to its sets in turns, so
# some of them have a message, or a ticket, whose other half went to the broken one.
_STORED_MIN = len(SETS)


def _apart(system: System) -> list[tuple[int, int]]:
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


def _break_one(system: System, *, lost: int, stored: int) -> None:
    """Break each Produce to one broker, until another one has got several."""
    produce = partial(RequestFault, api=Api.PRODUCE, nth=None, client_id=_PRODUCER)
    broken = system.proxy.arm(produce(action=Action.CUT, broker=lost))
    passing = system.proxy.arm(produce(action=Action.DELAY, delay_s=0.0, broker=stored))

    def caught() -> bool:
        return broken.count > 0 and passing.count > _STORED_MIN

    if not until(caught, timeout_s=_CAUGHT_S):
        raise TimedOut(
            f"{_PRODUCER} sent {broken.count} requests to b{lost} and {passing.count} to b{stored} "
            f"within {_CAUGHT_S:g} s"
        )


def _killed(system: System, pick: random.Random, *, before: str) -> Iterator[str]:
    program = system.programs[_PRODUCER]
    pairs = _apart(system)
    if pairs:
        of_log, of_stream = pick.choice(pairs)
        has, misses = (of_log, of_stream) if before == "ticket" else (of_stream, of_log)
        _break_one(system, lost=misses, stored=has)
        victim = f"{_PRODUCER}, b{misses} misses what belongs to records of b{has}"
    else:
        victim = f"{_PRODUCER}, no ticket apart from its message"
    program.kill()
    system.proxy.disarm()
    yield victim
    program.start()


@kind("producer-killed-before-ticket", hold_s=(0.5, 2.0))
def producer_killed_before_ticket(system: System, pick: random.Random) -> Iterator[str]:
    """SIGKILL a producer with messages stored whose tickets are lost: collectors order them."""
    yield from _killed(system, pick, before="ticket")


@kind("producer-killed-before-message", hold_s=(0.5, 2.0))
def producer_killed_before_message(system: System, pick: random.Random) -> Iterator[str]:
    """SIGKILL a producer with tickets stored whose messages are lost: they count too early."""
    yield from _killed(system, pick, before="message")
