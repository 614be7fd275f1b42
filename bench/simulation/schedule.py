"""Draws a schedule: everything that a seed decides, before anything runs.

A `Schedule` holds the processes, the limits, and a list of operations. An operation is a kind and
64 random bits; its choices depend only on these bits and on the state at that time. So every
sub-list of the operations is a valid schedule, too, which makes shrinking possible.

    kind    whose turn it is: a producer's, a collector instance's, a consumer's, …
    fate    what the cluster does with one append
    calm    of a schedule, or of its last phase: without faults
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import NamedTuple

from bench.simulation.trees import (
    Scene,
    changed_interest,
    changed_tree,
    random_plan,
    random_scene,
    random_sets,
)
from collectors.core.collector import LIMITS
from collectors.core.collector_core import CollectorLimits
from multicast.consuming.subscription import Bounds
from topology.tree import Plan

MULTICASTS = 64  # of each schedule: short ones find more in the same time
BITS = 64  # of each operation: enough for the choices of any turn
# Milliseconds of which one is drawn for each turn. On average a turn takes 12, so a schedule takes
# some seconds: many of a collector's patiences (60), and several of its ticks (250) and windows.
TURN_MS = (0, 1, 2, 5, 5, 10, 20, 60)
OUTAGE_PACE = 16  # so much longer are turns while a leader is away, which may be for a minute


class TurnKind(enum.IntEnum):
    """Whose turn it is."""

    MULTICAST = 0
    NODE = 1
    CONSUMER = 2
    OPERATOR = 3
    TRANSACTION = 4
    GARBAGE = 5
    RETENTION = 6
    COMPACTION = 7
    POISON = 8
    STRANGER = 9
    RECREATION = 10
    FORGERY = 11
    AWAY = 12
    LOSS = 13
    OUTAGE = 14
    RELEASE = 15
    RECEIPT = 16
    OWN_ORDER = 17
    AUDIT = 31


class Ends(enum.Enum):
    """What happens once the faults have ended, before all comes to rest."""

    BUSY = "all logs grow without a pause"
    HUNG = "a transaction stays open"


class Fate(enum.IntEnum):
    """What happens to an append, and what its writer learns of it."""

    STORED = 0  # and acknowledged at once
    HEARD_LATE = 1  # stored at once, acknowledged later
    LATE = 2  # stored and acknowledged later, after other appends
    LOST = 3  # never stored; the writer later learns that the outcome is unknown
    UNHEARD = 4  # stored; the writer later learns that the outcome is unknown
    GHOST = 5  # the writer learns at once that the outcome is unknown; stored later
    DOUBLED = 6  # stored twice: at once and later
    REFUSED = 7  # definitely not stored


# The fates of 16 equally likely draws.
CALM = (Fate.STORED,) * 16
USUAL = (
    *(Fate.STORED,) * 8,
    *(Fate.HEARD_LATE,) * 2,
    Fate.LATE,
    Fate.LOST,
    Fate.UNHEARD,
    Fate.GHOST,
    Fate.DOUBLED,
    Fate.REFUSED,
)
ROUGH = (
    *(Fate.STORED,) * 3,
    *(Fate.HEARD_LATE,) * 2,
    *(Fate.LATE,) * 3,
    *(Fate.LOST,) * 2,
    *(Fate.UNHEARD,) * 2,
    *(Fate.GHOST,) * 2,
    Fate.DOUBLED,
    Fate.REFUSED,
)


# By producer, whether it writes tickets: drawn for each schedule.
_TICKETS = (
    (True, True, True),
    (True, True, True),
    (True, True, False),
    (True, False, False),
    (False, False, False),
)


class Op(NamedTuple):
    """One turn."""

    kind: TurnKind
    bits: int

    @property
    def ms(self) -> int:
        """How long the turn takes, in milliseconds."""
        return TURN_MS[(self.bits ^ self.bits >> 29 ^ self.bits >> 47) & 7]


@dataclass(frozen=True, slots=True)
class ConsumerSeat:
    """One consumer instance over its restarts: its commits survive its processes."""

    consumer: str
    instance: str
    late: bool  # joins at the end of what is ordered
    bounds: Bounds


@dataclass(frozen=True, slots=True)
class Schedule:
    """All that a seed decides. `plans[e - 1]` are the plans that operators propose for epoch e."""

    seed: int
    scene: Scene
    plans: tuple[tuple[Plan, ...], ...]
    destinations: tuple[tuple[str, ...], ...] = ()  # to draw from; busy sets are repeated
    seats: tuple[ConsumerSeat, ...] = ()
    limits: CollectorLimits = LIMITS
    tickets: tuple[bool, ...] = ()  # by producer: whether it writes any
    apart: bool = True  # messages and tickets have different leaders
    pinned: bool = False  # no instance is a primary: all are standbys
    alone: bool = False  # each collector has one instance at a time
    fates: tuple[Fate, ...] = CALM
    delay_max: int = 1  # of what is late, in milliseconds
    crash_mask: int = -1  # a turn crashes if its crash bits are all 0 under this mask
    trims_order: bool = (
        False  # retention deletes records that are still needed: errors, no liveness
    )
    forges: bool = False  # wrong order records count; operators recover
    recreates: bool = False  # a topic is deleted and recreated: errors, no liveness
    ends: Ends | None = None
    ops: tuple[Op, ...] = ()
    loses: bool = False  # ends of Kafka partitions are lost: errors, no liveness

    @property
    def harsh(self) -> bool:
        """Whether records are lost for good, so that only safety is judged."""
        return self.trims_order or self.recreates or self.loses


def draw(seed: int) -> Schedule:
    """Draw the schedule of a seed."""
    rng = Random(seed)  # noqa: S311 - repeatable, not secret
    poster = seed % 16 == 0
    calm = seed % 8 == 1
    scene = random_scene(rng, poster=poster)
    epochs = rng.choice((1, 1, 2, 2, 2, 3))
    # A generator of its own, so that schedules without a change of interests stay the same.
    changes = Random(-1 - seed)  # noqa: S311
    scenes = _scenes(changes, scene, epochs, poster=poster)
    plans, sets = _plans(rng, scenes, poster=poster)
    trims_order = not calm and rng.random() < 0.1
    recreates = not calm and rng.random() < 0.04
    # Likewise, so that schedules without forged records stay the same.
    forging = Random(f"forging {seed}")  # noqa: S311 - repeatable, not secret
    forges = not (calm or trims_order or recreates) and forging.random() < 0.25
    drawn = Schedule(
        seed=seed,
        scene=scene,
        plans=plans,
        destinations=_destinations(rng, scene, sets),
        seats=_seats(rng, scene),
        limits=_limits(rng),
        tickets=(True,) * 3 if calm else rng.choice(_TICKETS),
        apart=rng.random() < 0.5,
        pinned=not calm and rng.random() < 0.1,
        fates=CALM if calm else rng.choice((USUAL, USUAL, ROUGH)),
        delay_max=rng.choice((5, 60, 400)),
        crash_mask=-1 if calm else rng.choice((0xF, 0x1F, 0x3F)),
        trims_order=trims_order,
        forges=forges,
        ends=rng.choice((*(None,) * 6, Ends.BUSY, Ends.HUNG)),
        recreates=recreates,
        ops=_with_audits(
            changes,
            _ops(
                rng, plans, calm=calm, trims=trims_order or rng.random() < 0.2, recreates=recreates
            ),
        ),
    )
    # Of others again: outages, ends in order, followers.
    drawn = _with_more(drawn, Random(f"more {seed}"), calm=calm)  # noqa: S311
    if forges:
        drawn = _with_forgeries(drawn, forging)
    losing = Random(f"losing {seed}")  # noqa: S311 - repeatable, not secret
    loses = not (calm or trims_order or recreates or forges) and losing.random() < 0.25
    drawn = _with_losses(drawn, losing) if loses else drawn
    if drawn.harsh or drawn.ends is not None:
        return drawn
    return _with_own_orders(drawn, Random(f"own order {seed}"))  # noqa: S311 - as above


def _insert(rng: Random, ops: list[Op], kind: TurnKind, count: int, *begins: float) -> None:
    """Insert turns, each at a place behind one of these shares of all turns."""
    for _ in range(count):
        place = rng.randrange(int(rng.choice(begins) * len(ops)), len(ops))
        ops.insert(place, Op(kind, rng.getrandbits(BITS)))


def _with_more(drawn: Schedule, rng: Random, *, calm: bool) -> Schedule:
    """Add leaders that are away, instances that end in order, and receipts that are waited for."""
    ops = list(drawn.ops)
    _insert(rng, ops, TurnKind.RECEIPT, rng.choice((0, 0, 0, 2, 6)), 0.2)
    _insert(rng, ops, TurnKind.RELEASE, rng.choice((0, 0, 2, 6)), 0.1)
    if not calm:
        _insert(rng, ops, TurnKind.OUTAGE, rng.choice((0, 0, 0, 1, 2)), 0.1)
    return replace(drawn, ops=tuple(ops), alone=not calm and rng.random() < 0.15)


def _with_own_orders(drawn: Schedule, rng: Random) -> Schedule:
    """Add producers that keep their own order to some schedules."""
    ops = list(drawn.ops)
    _insert(rng, ops, TurnKind.OWN_ORDER, rng.choice((0, 0, 0, 0, 12, 30)), 0.0)
    return replace(drawn, ops=tuple(ops))


def _with_losses(drawn: Schedule, rng: Random) -> Schedule:
    """Add losses; no retention, which removes what readers would compare."""
    ops = [op for op in drawn.ops if op.kind is not TurnKind.RETENTION]
    _insert(rng, ops, TurnKind.LOSS, rng.choice((1, 1, 1, 2, 3)), 0.25)
    return replace(drawn, ops=tuple(ops), loses=True)


def _with_forgeries(drawn: Schedule, rng: Random) -> Schedule:
    """Add wrong records to the second half, and operators to recover; bound fills tightly."""
    ops = list(drawn.ops)
    wrong = rng.choice((TurnKind.FORGERY, TurnKind.FORGERY, TurnKind.AWAY))
    # Often so late that no operator has recovered before the faults end.
    _insert(rng, ops, wrong, rng.choice((1, 2, 5)), 0.5, 0.5, 0.9)
    _insert(rng, ops, TurnKind.OPERATOR, 24, 0.5, 0.5, 0.9)
    return replace(
        drawn, limits=replace(drawn.limits, fill_max=rng.choice((3, 6, 40))), ops=tuple(ops)
    )


def _scenes(rng: Random, scene: Scene, epochs: int, *, poster: bool) -> list[Scene]:
    """Draw the interests of each epoch; in some schedules they change."""
    scenes = [scene]
    changes = not poster and rng.random() < 0.4
    for _ in range(1, epochs):
        scenes.append(changed_interest(rng, scenes[-1]) if changes else scenes[-1])
    return scenes


def _with_audits(rng: Random, ops: tuple[Op, ...]) -> tuple[Op, ...]:
    """Insert turns of auditors into some schedules."""
    if rng.random() > 0.4:
        return ops
    audited = list(ops)
    _insert(rng, audited, TurnKind.AUDIT, rng.choice((1, 8, 20)), 0.25)
    return tuple(audited)


def _plans(
    rng: Random, scenes: Sequence[Scene], *, poster: bool
) -> tuple[tuple[tuple[Plan, ...], ...], list[tuple[str, ...]]]:
    """Draw one or two rival plans for each epoch, which declare the same sets.

    Some epochs change at most one tree of the epoch before.
    """
    sets: list[tuple[str, ...]] = []
    plans: list[tuple[Plan, ...]] = []
    for epoch, scene in enumerate(scenes, 1):
        same = epoch > 1 and scene.interests == scenes[epoch - 2].interests
        if epoch > 1 and rng.random() < 0.3 * len(scene.halves) and same:
            plans.append((changed_tree(rng, plans[-1][0]),))
            continue
        sets = random_sets(rng, scene, sets, most=3 if epoch == 1 else 1)
        rivals = 1 if epoch == 1 else rng.choice((1, 2))
        plans.append(
            tuple(random_plan(rng, scene, sets, epoch, poster=poster) for _ in range(rivals))
        )
    return tuple(plans), sets


def _destinations(
    rng: Random, scene: Scene, sets: list[tuple[str, ...]]
) -> tuple[tuple[str, ...], ...]:
    """Weigh destination sets: some logs busy, some slow, some idle; some sets undeclared."""
    drawn: list[tuple[str, ...]] = []
    for to in [(name,) for name in scene.partitions] + sets:
        drawn += [to] * rng.choice((0, 1, 2, 8))
        if len(to) > 2 and rng.random() < 0.5:
            drawn.append(tuple(sorted(rng.sample(to, 2))))
    return tuple(drawn) or ((scene.partitions[0],),)


def _seats(rng: Random, scene: Scene) -> tuple[ConsumerSeat, ...]:
    seats = []
    for name, _ in scene.interests:
        instances = "ab"[: rng.choice((1, 1, 2))]
        seats += [
            ConsumerSeat(name, instance, rng.random() < 0.15, _bounds(rng))
            for instance in instances
        ]
    return tuple(seats)


def _bounds(rng: Random) -> Bounds:
    if rng.random() < 0.4:
        return Bounds()
    return Bounds(buffer_bytes_max=rng.choice((1, 150, 1000)), runs_max=rng.choice((1, 2, 9)))


def _limits(rng: Random) -> CollectorLimits:
    limits = replace(
        LIMITS,
        checkpoint_records=rng.choice((4, 16, 40)),
        checkpoint_time=rng.choice((2000, LIMITS.checkpoint_time, LIMITS.checkpoint_time)),
    )
    if rng.random() < 0.3:
        return limits
    return replace(
        limits,
        patience=rng.choice((0, 20, LIMITS.patience)),
        run_length_max=rng.choice((1, 2, 3, 9)),
        runs_max=rng.choice((1, 2, 5)),
    )


def _ops(
    rng: Random, plans: tuple[tuple[Plan, ...], ...], *, calm: bool, trims: bool, recreates: bool
) -> tuple[Op, ...]:
    """Draw the turns and their order. Operators of epoch e get turns only in its share of them."""
    keyed: list[tuple[float, TurnKind]] = []

    def add(kind: TurnKind, count: int, begin: float = 0.0) -> None:
        keyed.extend((begin + (1 - begin) * rng.random(), kind) for _ in range(count))

    add(TurnKind.MULTICAST, MULTICASTS)
    add(TurnKind.NODE, 140)
    add(TurnKind.CONSUMER, 90)
    for epoch in range(2, len(plans) + 1):
        add(TurnKind.OPERATOR, 16, begin=(epoch - 1) / (len(plans) + 0.5))
    if not calm:
        add(TurnKind.TRANSACTION, rng.choice((0, 6)))
        add(TurnKind.GARBAGE, rng.choice((0, 10)))
        add(TurnKind.COMPACTION, rng.choice((0, 1, 3)))
        add(TurnKind.POISON, rng.choice((0, 0, 3, 8)))
        add(TurnKind.STRANGER, rng.choice((0, 0, 2, 6)))
    if trims:
        add(TurnKind.RETENTION, 3, begin=0.5)
    if recreates:
        add(TurnKind.RECREATION, 1, begin=0.3)
    keyed.sort()
    return tuple([Op(kind, rng.getrandbits(BITS)) for _, kind in keyed])
