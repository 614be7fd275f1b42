"""Faults of brokers: the leader of a log, the KRaft controller, or any broker is killed or frozen.

Every log has three replicas, and two must store a message before it is acknowledged, so one broker
may fail at any time. Followers are frozen for longer than every time-out of the producers
(6 s; 10 s for a request): their leader acknowledges appends too late.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from bench.nemesis.faults.kinds import CALM_S, kind
from bench.nemesis.faults.programs import busy_instance
from bench.nemesis.system import BROKERS, SETS, STEADY_SETS, System

_LONG_S = (12.0, 16.0)  # more than the longest delivery time-out of a producer, 6 s


@kind("leader-killed", hold_s=(2.0, 4.0), heals_itself=True, brokers=True, times=2)
def leader_killed(system: System, pick: random.Random) -> Iterator[str]:
    """SIGKILL the leader of a log right after it acknowledged a message.

    The message must not be lost; it is in the history like any other.
    """
    to = pick.choice(SETS)
    leader = system.leader_of(to)
    message_id = system.manual_producer.multicast(to)
    system.cluster.kill(leader)
    yield f"broker {leader} after {message_id}"
    system.cluster.restart(leader)


@kind("controller-killed", hold_s=(2.0, 4.0), heals_itself=True, brokers=True)
def controller_killed(system: System, _: random.Random) -> Iterator[str]:
    """SIGKILL the broker that leads the KRaft quorum."""
    controller = system.admin.controller_time_ms()[0]
    system.cluster.kill(controller)
    yield f"broker {controller}"
    system.cluster.restart(controller)


@kind("broker-frozen", hold_s=(3.0, 8.0), brokers=True)
def broker_frozen(system: System, pick: random.Random) -> Iterator[str]:
    """SIGSTOP a broker that leads a log: its connections stay open, but it does not answer."""
    leader = system.leader_of(pick.choice(SETS))
    system.cluster.pause(leader)
    yield f"broker {leader}"
    system.cluster.resume(leader)


@kind("leader-frozen", hold_s=_LONG_S, brokers=True, calm_s=CALM_S)
def leader_frozen(system: System, pick: random.Random) -> Iterator[str]:
    """SIGSTOP the leader of a steady log, but not of its stream, until producers give up.

    The tickets are stored, the messages not. The controller fences the frozen broker after 9 s.
    """
    _, leader, _ = pick.choice(system.leaders(STEADY_SETS))
    yield from _frozen(system, [leader])


@kind("follower-frozen", hold_s=_LONG_S, brokers=True)
def follower_frozen(system: System, pick: random.Random) -> Iterator[str]:
    """SIGSTOP one follower of a log's leader, until producers give up every append in flight.

    The leader waits for the follower until the controller fences it.
    """
    followers = _followers(system, pick)
    yield from _frozen(system, [pick.choice(followers)])


@kind("followers-frozen", hold_s=_LONG_S, brokers=True)
def followers_frozen(system: System, pick: random.Random) -> Iterator[str]:
    """SIGSTOP both followers of a log's leader, and so the KRaft quorum.

    The leader stores messages, and acknowledges them long after the producer gave them up.
    """
    yield from _frozen(system, _followers(system, pick))


def _followers(system: System, pick: random.Random) -> list[int]:
    leader = system.leader_of(pick.choice(SETS))
    return [broker for broker in BROKERS if broker != leader]


def _frozen(system: System, brokers: Sequence[int]) -> Iterator[str]:
    for broker in brokers:
        system.cluster.pause(broker)
    yield f"brokers {' and '.join(map(str, brokers))}"
    for broker in brokers:
        system.cluster.resume(broker)


@kind("broker-restarted", hold_s=(0.0, 0.5), brokers=True)
def broker_restarted(system: System, pick: random.Random) -> Iterator[str]:
    """Stop a broker cleanly, and restart it."""
    broker = pick.choice(BROKERS)
    system.cluster.restart(broker)
    yield f"broker {broker}"


@kind("leader-and-collector-killed", hold_s=(2.0, 4.0), heals_itself=True, brokers=True)
def leader_and_collector_killed(system: System, pick: random.Random) -> Iterator[str]:
    """SIGKILL two at once: the leader of a log, and an instance that orders."""
    to = pick.choice(SETS)
    leader = system.leader_of(to)
    program = system.programs[busy_instance(system, pick)]
    message_id = system.manual_producer.multicast(to)
    system.cluster.kill(leader)
    program.kill()
    yield f"broker {leader} after {message_id}, {program.name}"
    program.start()
    system.cluster.restart(leader)
