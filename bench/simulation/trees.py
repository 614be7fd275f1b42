"""Draws random valid plans: partitions, logs, interests, and a forest of collectors for them.

`Plan` accepts every plan that is drawn. No solver is used: the tree grows at random and keeps
running intersection, so bad shapes occur, too: bags that no consumer needs, chains of equal bags,
parents that share no log with their children.

Invariant: after every step, the bags that hold a given log are connected in the tree.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from topology.tree import CollectorSpec, Log, Objective, Plan, Subscription, log_name

TOPIC = "A"
STREAMS = 9  # order streams of a plan: the most collectors that one has
NO_TICKETS = 0.1  # the share of plans whose producers write none
POSTER = (("P1", "P2", "P3"), ("P2", "P3", "P4"), ("P3", "P4", "P5"))


@dataclass(frozen=True, slots=True)
class Scene:
    """The partitions and the consumers' interests, and which consumers the plans name.

    All epochs have the same scene, except that some of the named consumers change their interest.
    Each interest and destination set is within one of the `halves`; most scenes have only one.
    """

    partitions: tuple[str, ...]
    halves: tuple[tuple[str, ...], ...]
    interests: tuple[tuple[str, tuple[str, ...]], ...]  # by consumer name
    named: tuple[bool, ...]  # by consumer: whether the plans have an entry for it


def random_scene(rng: Random, *, poster: bool) -> Scene:
    """Draw partitions and interests; `poster` gives the poster's toy example."""
    if poster:
        partitions: tuple[str, ...] = ("P1", "P2", "P3", "P4", "P5")
        halves: tuple[tuple[str, ...], ...] = (partitions,)
        wanted: Sequence[tuple[str, ...]] = POSTER
    else:
        partitions = tuple(f"P{number}" for number in range(1, rng.randint(2, 5) + 1))
        split = len(partitions) > 3 and rng.random() < 0.5
        halves = (partitions[:2], partitions[2:]) if split else (partitions,)
        wanted = [
            _subset(rng, halves[number % len(halves)], len(halves))
            for number in range(rng.randint(2, 4))
        ]
    interests = tuple((f"C{number}", interest) for number, interest in enumerate(wanted, 1))
    return Scene(partitions, halves, interests, tuple(rng.random() < 0.7 for _ in interests))


def changed_interest(rng: Random, scene: Scene) -> Scene:
    """Widen or replace the interest of one named consumer from the next epoch on."""
    named = [place for place, is_named in enumerate(scene.named) if is_named]
    if not named:
        return scene
    place = rng.choice(named)
    name, interest = scene.interests[place]
    half = next(candidate for candidate in scene.halves if set(interest) <= set(candidate))
    more = set(rng.sample(half, rng.randint(1, len(half))))
    kept = interest if rng.random() < 0.7 else ()
    interests = list(scene.interests)
    interests[place] = (name, tuple(sorted(more.union(kept))))
    return replace(scene, interests=tuple(interests))


def _subset(rng: Random, names: Sequence[str], least: int) -> tuple[str, ...]:
    return tuple(sorted(rng.sample(names, rng.randint(least, len(names)))))


def random_sets(
    rng: Random, scene: Scene, known: Sequence[tuple[str, ...]], *, most: int
) -> list[tuple[str, ...]]:
    """Add up to `most` wider destination sets to the known ones."""
    sets = list(known)
    for _ in range(rng.randint(0, most)):
        drawn = _subset(rng, rng.choice(scene.halves), 2)
        if drawn not in sets:
            sets.append(drawn)
    return sets


def random_plan(
    rng: Random, scene: Scene, sets: Sequence[tuple[str, ...]], epoch: int, *, poster: bool
) -> Plan:
    """Draw the tree and the numbering of one epoch. The operator sets where the streams begin.

    `sets` are the declared wider destination sets; a set's index is its Kafka partition.
    """
    logs = [Log(name, TOPIC, place) for place, name in enumerate(scene.partitions)]
    logs += [Log(log_name(to), f"{TOPIC}.groups", place) for place, to in enumerate(sets)]
    met = {
        name: {log.name for log in logs if not set(interest).isdisjoint(log.to)}
        for name, interest in scene.interests
    }
    needs = [met[name] for name, _ in scene.interests if len(met[name]) > 1]
    bags, parents = _poster_forest(needs) if poster else _random_forest(rng, needs, logs)
    rng.shuffle(logs)
    streams = rng.sample(range(STREAMS), len(bags))
    names = [f"K{number}" for number in range(1, len(bags) + 1)]
    collectors = [
        CollectorSpec(
            names[place],
            tuple(sorted(bag)),
            None if parents[place] is None else names[parents[place] or 0],
            streams[place],
        )
        for place, bag in enumerate(bags)
    ]
    rng.shuffle(collectors)
    consumers = []
    for (name, interest), named in zip(scene.interests, scene.named, strict=True):
        serving = [node.name for node in collectors if met[name] <= set(node.bag)]
        reads = rng.choice(serving) if len(met[name]) > 1 else None
        if named:
            consumers.append(Subscription(name, interest, reads))
    return Plan(
        topic=TOPIC,
        epoch=epoch,
        base_epoch=epoch - 1,
        cluster_id="simulated",
        input_hash="",
        partitions=scene.partitions,
        logs=tuple(logs),
        collectors=tuple(collectors),
        consumers=tuple(consumers),
        objective=Objective(0.0, 0.0, 0.0, 0.0),
        tickets=rng.random() > NO_TICKETS,
    )


def changed_tree(rng: Random, before: Plan) -> Plan:
    """Draw the next epoch so that it retains all trees but one, or all of them.

    The collectors of the changed tree get other streams. Logs get other numbers.
    """
    roots = [node.name for node in before.collectors if node.parent is None]
    moved = {rng.choice([*roots, ""])}
    for _ in before.collectors:  # as often as the tree can be deep
        moved |= {node.name for node in before.collectors if node.parent in moved}
    free = sorted(set(range(STREAMS)) - {node.stream for node in before.collectors})
    collectors = [
        replace(node, stream=free.pop()) if node.name in moved and free else node
        for node in before.collectors
    ]
    logs = rng.sample(before.logs, len(before.logs))
    return replace(
        before,
        epoch=before.epoch + 1,
        base_epoch=before.epoch,
        logs=tuple(logs),
        collectors=tuple(collectors),
    )


def _poster_forest(needs: list[set[str]]) -> tuple[list[set[str]], list[int | None]]:
    """Return the poster's tree: the second interest at the root, the others below it.

    The root also gets the wider sets that only the two other interests share.
    """
    bags = [set(need) for need in needs]
    bags[1] |= bags[0] & bags[2]
    return bags, [1, None, 1]


Forest = tuple[list[set[str]], list[int | None]]


def _random_forest(rng: Random, needs: list[set[str]], logs: Sequence[Log]) -> Forest:
    bags: list[set[str]] = []
    links: list[list[int]] = []
    for need in rng.sample(needs, len(needs)):
        if any(need <= bag for bag in bags) and rng.random() < 0.5:
            continue
        _grow(rng, bags, links, set(need))
    while len(bags) < STREAMS and rng.random() < 0.25:
        # Collectors that no consumer needs: relays, equal bags, bags of logs without readers.
        drawn = rng.sample([log.name for log in logs], rng.randint(1, len(logs)))
        anew = not bags or rng.random() < 0.3
        _grow(rng, bags, links, set(drawn) if anew else bags[-1].intersection(drawn))
    return bags, _rooted(rng, bags, links)


def _grow(rng: Random, bags: list[set[str]], links: list[list[int]], bag: set[str]) -> None:
    """Add a bag to the tree; its logs are added to all bags between it and their other holders."""
    if not bag:
        return
    if bags:
        best = max(range(len(bags)), key=lambda place: len(bags[place] & bag))
        neighbour = best if rng.random() < 0.6 else rng.randrange(len(bags))
        for log in sorted(bag):
            for place in _way(bags, links, neighbour, log):
                bags[place].add(log)
        links[neighbour].append(len(bags))
        links.append([neighbour])
    else:
        links.append([])
    bags.append(bag)


def _way(bags: list[set[str]], links: list[list[int]], start: int, log: str) -> list[int]:
    """List the bags from `start` to the nearest one that holds the log; [] if none does."""
    came_from = {start: start}
    waiting = deque([start])
    while waiting:
        place = waiting.popleft()
        if log in bags[place]:
            way = [place]
            while way[-1] != start:
                way.append(came_from[way[-1]])
            return way
        for other in links[place]:
            if other not in came_from:
                came_from[other] = place
                waiting.append(other)
    return []


def _rooted(rng: Random, bags: list[set[str]], links: list[list[int]]) -> list[int | None]:
    """Direct every link away from a random root; cut half of the links without a shared log."""
    parents: list[int | None] = [None] * len(bags)
    if not bags:
        return parents
    waiting = [rng.randrange(len(bags))]
    seen = set(waiting)
    while waiting:
        place = waiting.pop()
        for other in links[place]:
            if other not in seen:
                seen.add(other)
                waiting.append(other)
                if bags[place] & bags[other] or rng.random() < 0.5:
                    parents[other] = place
    return parents
