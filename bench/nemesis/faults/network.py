"""Faults of the network: hosts cut off in one direction or both, slow links, reset connections.

All need hosts that are network namespaces. TCP sends lost bytes again, so connections continue some
time after a link is healed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from bench.nemesis.faults.kinds import kind
from bench.nemesis.faults.programs import busy_instance
from bench.nemesis.network import Network
from bench.nemesis.system import BROKERS, CLIENT_HOSTS, HOSTS, SETS, System

_NETWORK = ("network",)
_KBIT = (200, 2000)  # the bounds of a slow link's kbit/s; a local network has 500 times more


def _network(system: System) -> Network:
    assert system.network is not None, "this kind of fault needs a network"
    return system.network


def _leader(system: System, pick: random.Random) -> str:
    return f"b{system.leader_of(pick.choice(SETS))}"


@kind("broker-isolated", hold_s=(3.0, 7.0), brokers=True, needs=_NETWORK)
def broker_isolated(system: System, pick: random.Random) -> Iterator[str]:
    """Unplug a broker that leads a log: the others elect, and it must not acknowledge alone."""
    network, victim = _network(system), _leader(system, pick)
    network.isolate(victim)
    yield victim
    network.heal()


@kind("controller-isolated", hold_s=(3.0, 6.0), brokers=True, needs=_NETWORK)
def controller_isolated(system: System, _: random.Random) -> Iterator[str]:
    """Unplug the broker that leads the KRaft quorum."""
    network = _network(system)
    victim = f"b{system.admin.controller_time_ms()[0]}"
    network.isolate(victim)
    yield victim
    network.heal()


@kind("bridge-partition", hold_s=(4.0, 8.0), brokers=True, needs=_NETWORK)
def bridge_partition(system: System, pick: random.Random) -> Iterator[str]:
    """Cut two brokers from each other; the third reaches both."""
    network = _network(system)
    broker, other = (f"b{number}" for number in pick.sample(BROKERS, 2))
    network.cut(broker, other)
    network.cut(other, broker)
    yield f"{broker} | {other}"
    network.heal()


@kind("asymmetric-partition", hold_s=(4.0, 8.0), brokers=True, needs=_NETWORK)
def asymmetric_partition(system: System, pick: random.Random) -> Iterator[str]:
    """Lose all packets from one broker to another, but none in the other direction."""
    network = _network(system)
    sender, receiver = (f"b{number}" for number in pick.sample(BROKERS, 2))
    network.cut(sender, receiver)
    yield f"{sender} > {receiver}"
    network.heal()


@kind("client-partition", hold_s=(3.0, 6.0), needs=_NETWORK)
def client_partition(system: System, pick: random.Random) -> Iterator[str]:
    """Cut a host of clients from a broker that leads a log; all others reach it."""
    network, broker = _network(system), _leader(system, pick)
    host = pick.choice(CLIENT_HOSTS[:3])
    network.cut(host, broker)
    network.cut(broker, host)
    yield f"{host} | {broker}"
    network.heal()


@kind("client-asymmetric", hold_s=(3.0, 6.0), needs=_NETWORK)
def client_asymmetric(system: System, pick: random.Random) -> Iterator[str]:
    """Lose a broker's packets to a host of clients: requests arrive, acknowledgements do not."""
    network, broker = _network(system), _leader(system, pick)
    host = pick.choice(CLIENT_HOSTS[:3])
    network.cut(broker, host)
    yield f"{broker} > {host}"
    network.heal()


@kind("collectors-isolated", hold_s=(4.0, 8.0), heals_itself=True, needs=_NETWORK)
def collectors_isolated(system: System, _: random.Random) -> Iterator[str]:
    """Unplug a host with two of three instances: they return as zombies with held appends."""
    network = _network(system)
    network.isolate("c2")
    yield "c2"
    network.heal()


@kind("clients-isolated", hold_s=(3.0, 6.0), needs=_NETWORK)
def clients_isolated(system: System, pick: random.Random) -> Iterator[str]:
    """Unplug a host of producers and consumers."""
    network, host = _network(system), pick.choice(CLIENT_HOSTS[2:])
    network.isolate(host)
    yield host
    network.heal()


@kind("slow-link", hold_s=(4.0, 7.0), brokers=True, needs=_NETWORK)
def slow_link(system: System, pick: random.Random) -> Iterator[str]:
    """Limit the bandwidth of one host."""
    network, host, kbit = _network(system), pick.choice(HOSTS), pick.randrange(*_KBIT)
    network.slow(host, kbit)
    yield f"{host} at {kbit} kbit/s"
    network.heal()


@kind("connections-reset", hold_s=(0.5, 2.0), needs=_NETWORK)
def connections_reset(system: System, pick: random.Random) -> Iterator[str]:
    """Break all TCP connections between a broker and all other hosts, with RST."""
    network, victim = _network(system), _leader(system, pick)
    broken = sum(network.reset(host, victim) for host in HOSTS if host != victim)
    yield f"{broken} to {victim}"
    network.heal()


@kind("isolated-and-collector-killed", hold_s=(3.0, 6.0), brokers=True, needs=_NETWORK)
def isolated_and_collector_killed(system: System, pick: random.Random) -> Iterator[str]:
    """Unplug a broker and kill an instance that orders, at once."""
    network, victim = _network(system), _leader(system, pick)
    program = system.programs[busy_instance(system, pick)]
    network.isolate(victim)
    program.kill()
    yield f"{victim}, {program.name}"
    network.heal()
    program.start()
