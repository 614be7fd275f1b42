"""Faults of single requests: held, doubled, cut, left without an answer, delivered much later.

They hit the clients of the host that reaches the brokers through the proxy.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

from bench.nemesis.faults.kinds import kind
from bench.nemesis.frames import Action, Api, RequestFault
from bench.nemesis.proxy import Armed
from bench.nemesis.system import System
from multicast.errors import TimedOut

_FIRED_S = 20.0  # for a matching request to come; clients send several a second
_CONSUMER = "C2"


@contextmanager
def armed(system: System, rule: RequestFault) -> Iterator[Armed]:
    """Arm a rule, and wait until it has caught a request."""
    caught = system.proxy.arm(rule)
    try:
        if not caught.fired.wait(_FIRED_S):
            raise TimedOut(f"no request matched within {_FIRED_S:g} s: {rule}")
        yield caught
    finally:
        system.proxy.disarm()


def _spoiled(system: System, api: Api, action: Action, nth: int | None) -> Iterator[str]:
    with armed(system, RequestFault(api=api, action=action, nth=nth)) as caught:
        yield f"{api.name} {action.value}"
        assert caught.count


@kind("produce-held", hold_s=(1.0, 4.0))
def produce_held(system: System, _: random.Random) -> Iterator[str]:
    """Hold every Produce until release: messages come late."""
    yield from _spoiled(system, Api.PRODUCE, Action.DELAY, None)


@kind("produce-doubled", hold_s=(1.0, 4.0))
def produce_doubled(system: System, _: random.Random) -> Iterator[str]:
    """Send each Produce to the broker twice."""
    yield from _spoiled(system, Api.PRODUCE, Action.DOUBLE, None)


@kind("produce-cut", hold_s=(0.5, 2.0))
def produce_cut(system: System, _: random.Random) -> Iterator[str]:
    """Break the connection at each Produce, before the broker gets it."""
    yield from _spoiled(system, Api.PRODUCE, Action.CUT, None)


@kind("produce-answer-lost", hold_s=(0.5, 2.0))
def produce_answer_lost(system: System, _: random.Random) -> Iterator[str]:
    """Break the connection instead of a Produce's answer: stored, but not acknowledged."""
    yield from _spoiled(system, Api.PRODUCE, Action.LOSE_ANSWER, None)


@kind("produce-answer-held", hold_s=(11.0, 14.0))
def produce_answer_held(system: System, _: random.Random) -> Iterator[str]:
    """Hold each Produce's answer until its producer gives up: stored, acknowledged too late."""
    yield from _spoiled(system, Api.PRODUCE, Action.HOLD_ANSWER, None)


@kind("produce-stranded", hold_s=(2.0, 4.0))
def produce_stranded(system: System, _: random.Random) -> Iterator[str]:
    """Break the connection at a Produce; the broker gets it later, after its retry."""
    yield from _spoiled(system, Api.PRODUCE, Action.STRAND, 1)


@kind("fetch-cut", hold_s=(0.5, 2.0))
def fetch_cut(system: System, _: random.Random) -> Iterator[str]:
    """Break the connection at each Fetch."""
    yield from _spoiled(system, Api.FETCH, Action.CUT, None)


@kind("fetch-held", hold_s=(1.0, 4.0))
def fetch_held(system: System, _: random.Random) -> Iterator[str]:
    """Hold every Fetch for a while."""
    yield from _spoiled(system, Api.FETCH, Action.DELAY, None)


@kind("commit-lost", hold_s=(1.0, 3.0))
def commit_lost(system: System, _: random.Random) -> Iterator[str]:
    """Lose every commit of a cursor, then kill the consumer: it resumes from an older cursor."""
    program = system.programs[_CONSUMER]
    rule = RequestFault(api=Api.OFFSET_COMMIT, action=Action.CUT, nth=None, client_id=_CONSUMER)
    with armed(system, rule) as caught:
        yield program.name
        program.kill()
        assert caught.count
    program.start()
