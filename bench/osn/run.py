"""One run: openings, transfers of all arms with faults, settling, and what the ledgers hold then.

arm       a way to send the transfers, over chains of its own
settled   all nodes hold the same blocks, and each acknowledged transfer is in all of its chains
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime

from bench.harness.rig import pause
from bench.osn import bank
from bench.osn.client import BUNDLES, NodeStreams, Submit
from bench.osn.clients import ClientRun, Journal
from bench.osn.faults import DueFault, Faults, Happened
from bench.osn.nodes import OrdererDeployment
from bench.osn.reading import ChainCopy, Copies, copies_of
from bench.osn.transactions import user
from multicast.errors import TimedOut

BATCH_TIMEOUT = "250ms"  # of the chains of banks
_LOOK_S = 0.1  # between two looks at the journals: ten a second, and a fault is made in time
_SETTLE_S = 0.3  # between two readings of the ledgers at the end


@dataclass(frozen=True, slots=True)
class SendingArm:
    """A way to send the transfers (`client.py`), the chains it uses, and the sets among them."""

    name: str
    chains: Sequence[str]
    sets: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Load:
    """What each arm sends: the same transfers, at the same rate."""

    count: int
    rate: float
    seed: int
    window: int = 64
    faults: Sequence[DueFault] = ()
    timeout_s: float = 600.0
    settle_s: float = 60.0


@dataclass(frozen=True, slots=True)
class ArmOutcome:
    """What an arm left behind: the chains' copies at the nodes, and the clients' journal."""

    arm: SendingArm
    copies: Copies
    journal: Journal
    missing: Sequence[int]
    """Acknowledged transfers that are not in all of their chains."""

    @property
    def held(self) -> Mapping[str, ChainCopy]:
        """Each chain as node 0 holds it."""
        return {chain: by_node[0] for chain, by_node in self.copies.items()}


@dataclass(slots=True)
class BanksOutcome:
    """The arms by name, what happened meanwhile, and how long sending and settling took."""

    arms: dict[str, ArmOutcome] = field(default_factory=dict)
    happened: Sequence[Happened] = ()
    send_s: float = 0.0
    settle_s: float = 0.0


Show = Callable[[Mapping[str, Journal]], None]


def run(
    world: OrdererDeployment,
    arms: Sequence[SendingArm],
    load: Load,
    *,
    say: Callable[[str], None],
    show: Show = lambda _: None,
) -> BanksOutcome:
    """Send all transfers of all arms with all faults; returns when all is settled.

    Raises `TimedOut`; `AmcastError` where a client fails. `show` is called now and then.
    """
    outcome = BanksOutcome()
    say(f"starting {len(world.nodes.addresses)} nodes …")
    world.nodes.start_all()
    began = time.monotonic()
    say(f"sending {load.count} transfers as {', and as '.join(arm.name for arm in arms)} …")
    asyncio.run(_open(world, arms))
    with ExitStack() as stack:
        clients = {
            arm.name: stack.enter_context(ClientRun(_task(world, arm, load), world.folder))
            for arm in arms
        }
        outcome.happened = _send(world, clients, load, say, show)
    outcome.send_s = time.monotonic() - began
    world.nodes.wait_healthy()
    for arm in arms:
        journal = clients[arm.name].journal
        copies = copies_of(world.nodes, arm.chains)
        missing = _settle(arm, copies, journal, load)
        outcome.arms[arm.name] = ArmOutcome(arm, copies, journal, missing)
    outcome.settle_s = time.monotonic() - began - outcome.send_s
    return outcome


def _task(world: OrdererDeployment, arm: SendingArm, load: Load) -> Submit:
    return Submit(
        what=arm.name,
        addresses=world.nodes.addresses,
        sets=arm.sets,
        seed=load.seed,
        count=load.count,
        notes=str(world.folder / f"notes-{arm.name}"),
        rate=load.rate,
        window=load.window,
        timeout_s=load.timeout_s,
    )


async def _open(world: OrdererDeployment, arms: Sequence[SendingArm]) -> None:
    """Send the opening of each bank; returns when all are acknowledged."""
    signer = user()
    async with NodeStreams(world.nodes.addresses) as streams, asyncio.TaskGroup() as sending:
        for arm in arms:
            for chain in arm.chains:
                envelope = bank.opening(chain, signer=signer, now=datetime.now(UTC))
                sending.create_task(streams.submit(envelope))


def _send(
    world: OrdererDeployment,
    clients: Mapping[str, ClientRun],
    load: Load,
    say: Callable[[str], None],
    show: Show,
) -> Sequence[Happened]:
    journals = {name: client.journal for name, client in clients.items()}
    faults = Faults(world, clients, load.faults, say)
    deadline = time.monotonic() + load.timeout_s
    while True:
        for client in clients.values():
            client.journal.look()
            client.check()
        show(journals)
        faults.revive()
        faults.make_due(min(journal.begun for journal in journals.values()) / load.count)
        if not faults.left and all(journal.ended for journal in journals.values()):
            return faults.happened
        if time.monotonic() > deadline:
            acknowledged = {name: len(each.acknowledged) for name, each in journals.items()}
            raise TimedOut(
                f"after {load.timeout_s:g} s not all of {load.count} transfers are acknowledged: "
                f"{acknowledged}"
            )
        pause(_LOOK_S)


def _settle(arm: SendingArm, copies: Copies, journal: Journal, load: Load) -> list[int]:
    """Read until all nodes hold the same and all that was acknowledged; returns what is missing."""
    deadline = time.monotonic() + load.settle_s
    while True:
        for by_node in copies.values():
            for copy in by_node:
                copy.read_on()
        missing = _missing(arm, copies, journal, load)
        heights = [{len(copy.digests) for copy in by_node} for by_node in copies.values()]
        if (not missing and all(len(each) == 1 for each in heights)) or (
            time.monotonic() > deadline
        ):
            return missing
        pause(_SETTLE_S)


def _missing(arm: SendingArm, copies: Copies, journal: Journal, load: Load) -> list[int]:
    held = {chain: set(by_node[0].names) for chain, by_node in copies.items()}
    missing = []
    for number, bundle_id in journal.acknowledged.items():
        made = bank.transfer(load.seed, number, arm.sets)
        key = bundle_id if arm.name == BUNDLES else made.name
        if any(key not in held[chain] for chain in made.banks):
            missing.append(number)
    return missing
