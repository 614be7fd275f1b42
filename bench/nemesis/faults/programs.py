"""Faults of collectors, consumers and producers: killed, frozen, joining and leaving.

Standbys and placement take over automatically, so most faults of collectors heal themselves.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from bench.nemesis.faults.kinds import kind
from bench.nemesis.running import until
from bench.nemesis.system import CONSUMERS, INSTANCES, STRUCK, System
from multicast.errors import TimedOut

_JOIN_S = 120.0  # for a new Python process to join the group on a loaded machine


def busy_instance(system: System, pick: random.Random) -> str:
    """Choose an instance that is the primary of some collector, if one is known."""
    busy = [name for name, nodes in sorted(system.primaries().items()) if nodes]
    return pick.choice(busy or list(INSTANCES))


@kind("collector-killed", hold_s=(2.0, 4.0), heals_itself=True, times=2)
def collector_killed(system: System, pick: random.Random) -> Iterator[str]:
    """SIGKILL an instance that orders: a standby takes over. It is restarted later."""
    program = system.programs[busy_instance(system, pick)]
    program.kill()
    yield program.name
    program.start()


@kind("collector-frozen", hold_s=(2.0, 5.0), heals_itself=True, times=2)
def collector_frozen(system: System, pick: random.Random) -> Iterator[str]:
    """SIGSTOP an instance until its successor works, then resume it as a zombie."""
    program = system.programs[busy_instance(system, pick)]
    program.freeze()
    yield program.name
    program.thaw()


@kind("collector-frozen-past-session", hold_s=(7.5, 9.0), heals_itself=True)
def collector_frozen_past_session(system: System, pick: random.Random) -> Iterator[str]:
    """Freeze an instance beyond its group session: the others take over its collectors."""
    program = system.programs[pick.choice(list(INSTANCES))]
    program.freeze()
    yield program.name
    program.thaw()


@kind("all-collectors-killed", hold_s=(0.5, 1.5))
def all_collectors_killed(system: System, _: random.Random) -> Iterator[str]:
    """SIGKILL every instance: nothing is ordered until they are restarted."""
    for name in INSTANCES:
        system.programs[name].kill()
    yield ", ".join(INSTANCES)
    for name in INSTANCES:
        system.programs[name].start()


@kind("group-rebalanced", hold_s=(3.0, 5.0), heals_itself=True)
def group_rebalanced(system: System, _: random.Random) -> Iterator[str]:
    """Let one more instance join, and leave cleanly: collectors move there and back."""
    system.spare.start()
    if not until(system.spare_takes_part, timeout_s=_JOIN_S, pause_s=0.2):
        raise TimedOut(f"{system.spare.name} did not join within {_JOIN_S:g} s")
    yield system.spare.name
    system.spare.stop()


@kind("consumer-killed", hold_s=(0.5, 2.0))
def consumer_killed(system: System, pick: random.Random) -> Iterator[str]:
    """SIGKILL a consumer; it is restarted and resumes from its committed cursor."""
    program = system.programs[pick.choice(list(CONSUMERS))]
    program.kill()
    yield program.name
    program.start()


@kind("consumer-frozen", hold_s=(2.0, 5.0))
def consumer_frozen(system: System, pick: random.Random) -> Iterator[str]:
    """SIGSTOP a consumer, then resume it."""
    program = system.programs[pick.choice(list(CONSUMERS))]
    program.freeze()
    yield program.name
    program.thaw()


@kind("producer-killed", hold_s=(0.5, 2.0))
def producer_killed(system: System, pick: random.Random) -> Iterator[str]:
    """SIGKILL a producer with calls in flight; it is restarted."""
    program = system.programs[pick.choice(STRUCK)]
    program.kill()
    yield program.name
    program.start()


@kind("producer-frozen", hold_s=(2.0, 4.0))
def producer_frozen(system: System, pick: random.Random) -> Iterator[str]:
    """SIGSTOP a producer, then resume it: the messages of its open calls come late."""
    program = system.programs[pick.choice(STRUCK)]
    program.freeze()
    yield program.name
    program.thaw()


@kind("collector-and-consumer-killed", hold_s=(1.0, 2.0))
def collector_and_consumer_killed(system: System, pick: random.Random) -> Iterator[str]:
    """SIGKILL an instance and a consumer at once."""
    victims = [busy_instance(system, pick), pick.choice(list(CONSUMERS))]
    for name in victims:
        system.programs[name].kill()
    yield ", ".join(victims)
    for name in victims:
        system.programs[name].start()
