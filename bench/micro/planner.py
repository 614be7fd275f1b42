"""Writes the planner's table: `python -m bench.micro.planner > docs/planner.md`.

For each kind and size of interests it gives the planner's time and objective, the time and the gap
of the proof, and the costs of other systems' trees (`bench/baselines/trees.py`).

Inputs come from fixed seeds, so only the times differ between runs. `--quick` omits large inputs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence

from bench.baselines.trees import GROUPS_MAX, byzcast, flexcast, join_tree, one_root, poster
from bench.harness import acyclic_interests
from bench.harness.acyclic_interests import block_tree, intervals, measured, nested, subtrees
from bench.harness.interests import (
    acyclic,
    chain,
    file_of,
    hubs,
    local,
    pairs,
    scattered,
    star,
    windows,
)
from topology.acyclicity import is_acyclic
from topology.check import check, figures
from topology.interests import InterestFile
from topology.planner.cost import Measure
from topology.planner.hypergraph import logs_met
from topology.planner.reduction import reduced
from topology.planner.solver import solve
from topology.proof import proven
from topology.tree import PHI_DEFAULT

TEAMS = {"A": ["P1", "P2", "P3"], "B": ["P2", "P3", "P4"], "C": ["P3", "P4", "P5"]}


def inputs(*, quick: bool) -> Iterator[tuple[str, InterestFile]]:
    """List the table's inputs, small ones first."""
    yield "poster", file_of(TEAMS)
    yield "poster with a cycle", file_of({**TEAMS, "D": ["P1", "P5"]})
    yield "triangle", file_of({"X": ["A", "B"], "Y": ["B", "C"], "Z": ["C", "A"]})
    yield "3 block chains, all pairs", pairs(3)
    yield (
        "4 block chains, a pair, another, all",
        file_of({name: [name] for name in "ABCD"}, ["AB", "BC", "AC", "ABCD"]),
    )
    yield "8 block chains, all pairs", pairs(8)
    yield "nested", file_of({f"C{n}": [f"P{k}" for k in range(n + 2)] for n in range(6)})
    yield "star", star(6)
    yield "scattered, small", scattered(0, 12, 7)
    yield "local, small", local(0, 16, 7, 6)
    yield "hubs", hubs(3, 4)
    yield "chain", chain(32)
    yield "sliding windows", windows(50)
    yield "services", acyclic_interests.services()
    yield "services, 1 to 3 own", acyclic_interests.services(own_max=3)
    yield "services in groups", acyclic_interests.grouped()
    if not quick:
        yield "services of five kinds", acyclic_interests.kinds()
        yield "services in pairs", acyclic_interests.paired()
        yield "services, measured rates", measured(0, acyclic_interests.services())
        yield "paths", acyclic_interests.paths()
        yield "prefixes", acyclic_interests.prefixes()
        for shape in (intervals, nested, block_tree, subtrees, acyclic):
            for seed in range(3):
                yield f"{shape.__name__.replace('_', ' ')}{seed}", shape(seed)
        yield "local1", local(1)
        for seed in range(2):
            yield f"scattered{seed}", scattered(seed)
        yield "sliding windows, 200", windows(200)
        yield "sliding windows, 200, measured rates", measured(0, windows(200))
        yield "services, 200", acyclic_interests.services(200)
        yield "services, 1000", acyclic_interests.services(1000)
        yield "local, 200", local(0, 200, 200)
        yield "large", local(0, 1000, 1000)


# -- rivals -----------------------------------------------------------------------------------


def measures(file: InterestFile) -> list[Measure]:
    """Reduce an interest file, and give the cost measure of each of its parts."""
    problem = reduced(file)
    return [
        Measure(part, rates=problem.rates, weights=problem.weights, phi=PHI_DEFAULT)
        for part in problem.components
    ]


def rivals(parts: Sequence[Measure]) -> Iterator[float | None]:
    """Give the cost of each rival's trees, in the order of the columns; None: it has no tree."""
    for rival in (one_root, poster, join_tree, flexcast):
        trees = [rival(part) for part in parts]
        costs = [p.cost(p.priced(t)) for p, t in zip(parts, trees, strict=True) if t is not None]
        yield sum(costs) if len(costs) == len(parts) else None
    if max((len(part.weight) for part in parts), default=0) > GROUPS_MAX:
        yield None
        yield None
        return
    found = [byzcast(part) for part in parts]
    yield sum(part.cost(part.priced(tree)) for part, (_, tree) in zip(parts, found, strict=True))
    yield sum(value for value, _ in found)


# -- the table --------------------------------------------------------------------------------


def cpu_seconds() -> float:
    """Give the CPU time of this process and of the solvers that it has started so far."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def row(kind: str, file: InterestFile) -> list[str]:
    """Plan one input, and return its row of the table."""
    started = cpu_seconds()
    solution = solve(file)
    planned = cpu_seconds()
    plan = proven(solution)
    proved = cpu_seconds()
    check(plan)
    parts = measures(file)
    acyclic_too = is_acyclic(frozenset(logs) for logs in logs_met(file).values() if len(logs) > 1)
    promised = plan.objective
    return [
        kind,
        f"{len(file.partitions)} / {len(plan.logs)} / {len(file.consumers)}",
        "acyclic" if acyclic_too else "cyclic",
        f"{planned - started:.2f}",
        f"{proved - planned:.2f}",
        f"{promised.gap:.1%}" if promised.gap else "0",
        f"{len(plan.collectors)}",
        f"{figures(plan).genuineness:.0%}",
        f"{promised.hops:g}",
        f"{promised.foreign:g}",
        f"{promised.cost:g}",
        *("-" if cost is None else f"{cost:.10g}" for cost in rivals(parts)),
    ]


COLUMNS = (
    "interests",
    "partitions / logs / consumers",
    "kind",
    "planning, CPU s",
    "proof, CPU s",
    "gap",
    "collectors",
    "genuine",
    "hops",
    "foreign",
    "cost",
    "one root",
    "poster's tree",
    "join tree",
    "FlexCast",
    "ByzCast",
    "ByzCast's own objective",
)


def main(*, quick: bool) -> None:
    """Print the table as Markdown, each row as soon as it is computed."""
    out = sys.stdout
    out.write(f"{PREFACE}\n| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}\n")
    for kind, file in inputs(quick=quick):
        out.write(f"| {' | '.join(row(kind, file))} |\n")
        out.flush()


PREFACE = """\
# What the planner finds

Made by `python -m bench.micro.planner > docs/planner.md`; only the seconds differ between runs
(these: two cores with other load). Cost is hops + 10 * foreign work, at rate 1 for each log (1 to
40 with measured rates) and weight 1 for each consumer (281 in hubs: so many have the same
interest); [Planning collectors](topology.md#the-tree) defines both. *Genuine* is
the part of the entries handled that are handled for a consumer which wants them. The *proof* is
that of `amcast topology plan --prove`. A gap of 0 proves that no tree over any bags is cheaper.
Otherwise it is (cost - bound) / cost for a proven lower bound, and says little about how near the
least tree is ([how plans are found](topology.md#how-it-is-found)): a finer bound, dropped after
commit 5ab68086, proved the costs of 8 block chains, hubs, chain, sliding windows (50, 200) and
services (first two, in groups, measured rates, 200) to be least. The inputs acyclic0 to
scattered1 have 50 interests of three to six out of 64 partitions, those of local, 200 and large
200 out of 200 and 1,000 out of 1,000; partitions that nobody reads are left out.
`bench/harness/acyclic_interests.py` makes intervals0 to subtrees2, up to 50 interests of 64
partitions, and the services, paths and prefixes. A number after a comma is that of the interests.
Both times are CPU time, of the solvers, too.

The last columns price other systems' trees in the same way (`bench/baselines/trees.py`):

* one root: a single collector that knows every log.
* poster's tree: interests as collectors; neighbours in the tree share as much rate as can be.
* join tree: the plain join tree of the interests, under the first one; only if they are acyclic.
* FlexCast: its groups (here the consumers) in a line, ordered by overlap. (FlexCast itself sends
  from the first group to the others directly, and each message carries a history, which is not
  counted here.)
* ByzCast: consumers are groups. Of all rooted trees over up to seven groups, it is the best by
  ByzCast's objective, the sum of F(d) * (|d| + 2 * other groups passed); among equals, the cheapest
  by our cost. The last column gives its value by ByzCast's objective.
"""

if __name__ == "__main__":
    main(quick="--quick" in sys.argv[1:])
