"""What `amcast topology` prints: tables for people, JSON documents for programs.

This file formats values; it decides nothing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from topology import draw
from topology.advice import Advice
from topology.changes import FigureChange
from topology.check import TreeFigures
from topology.draw import shortened
from topology.hysteresis import Weighed
from topology.interests import InterestFile
from topology.repairs import ChangeKind
from topology.safety import SafetyVerdict
from topology.tree import Plan

SCHEMA_VERSION = 1  # of the JSON documents; it rises when a field changes its meaning

# Fixed, so that a table that is piped to a file does not depend on the terminal; the tables of the
# documents fit into it.
WIDTH_COLUMNS = 100


def written(document: object) -> str:
    """Give the text of one JSON document, as `-o json` prints it."""
    return json.dumps(document, indent=1, ensure_ascii=True) + "\n"


def show(text: str) -> None:
    """Print text to stdout, ended by one line feed."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; all columns but the first are numbers or short words."""
    grid = Table(box=None, pad_edge=False)
    for number, name in enumerate(columns):
        grid.add_column(name, justify="right" if number else "left")
    for row in rows:
        grid.add_row(*row)
    console = Console(
        file=sys.stdout, width=WIDTH_COLUMNS, highlight=False, color_system=None, markup=False
    )
    console.print(grid)


def tree(plan: Plan, figures: TreeFigures) -> None:
    """Print the tree, and the cost of each consumer's order."""
    show(draw.text_tree(plan, figures))
    show("")
    table(
        ("consumer", "reads", "levels", "hops", "foreign", "genuine"),
        [
            (
                share.consumer,
                entry.collector or "its one log",
                str(share.levels),
                f"{share.hops:g}",
                f"{share.foreign:g}",
                f"{share.genuineness:.0%}",
            )
            for share, entry in zip(figures.shares, plan.consumers, strict=True)
        ],
    )
    show("")


def objective(plan: Plan, figures: TreeFigures) -> None:
    """Print the plan's objective in one line: cost, hops, foreign work, and what was proven."""
    promised = plan.objective
    over = f" + {plan.phi:g} * {figures.excess:g} over the wanted rate" if figures.excess else ""
    proof = ""
    if promised.gap is not None:
        gap = f"gap {promised.gap:.1%}" if promised.gap else "proven least"
        proof = f" · bound {promised.cost * (1 - promised.gap):g}, {gap}"
    show(
        f"cost {figures.cost:g} = {figures.hops:g} hops + {plan.phi:g} * {figures.foreign:g} "
        f"foreign{over}{proof} · {figures.genuineness:.0%} genuine"
    )


def solved(how: Sequence[str], seconds: float) -> None:
    """Print to stderr how the plan's parts were found, and in what time."""
    said = ", ".join(sorted(set(how))) or "no collector is needed"
    sys.stderr.write(f"planned in {seconds:.2f} s: {said}\n")


def dropped(interests: InterestFile) -> None:
    """Print to stderr what consumers read and drop, because it goes through wider logs."""
    for consumer, log, rate in interests.dropped():
        sys.stderr.write(f"{consumer} reads and drops {rate:g}/s that go through {log}\n")


def comparison(changes: Sequence[str], rows: Sequence[FigureChange]) -> None:
    """Print what changes, and each figure that differs, before and after."""
    if not changes:
        show("nothing moves")
    for sentence in changes:
        show(sentence)
    differing = [row for row in rows if row.before != row.after]
    if differing:
        show("")
        table(
            ("figure", "before", "after"),
            [(row.what, _figure(row.before), _figure(row.after)) for row in differing],
        )


def comparison_document(changes: Sequence[str], rows: Sequence[FigureChange]) -> dict[str, Any]:
    """Give the comparison as a JSON object; it lists equal figures, too."""
    return {
        "schema_version": SCHEMA_VERSION,
        "changes": list(changes),
        "figures": [{"what": r.what, "before": r.before, "after": r.after} for r in rows],
    }


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def verdict(interests: InterestFile, safety: SafetyVerdict, advice: Advice | None) -> None:
    """Print whether the interests are acyclic and pairwise safe, and if not, why and what helps."""
    count = len(interests.consumers)
    if safety.acyclic:
        show(f"acyclic: the interests of {count} consumers can be the bags of collectors")
    else:
        show("not acyclic: some collector must know logs that not all of its readers take")
    if safety.pairwise_safe:
        show("pairwise safe: yes, one place for each pair of logs is enough in every execution")
    else:
        show("pairwise safe: no, each pair of logs in one place does not prevent a cycle")
    if safety.witness is not None:
        show(f"because {safety.witness.sentence}")
    if advice is not None:
        _advice(advice)


def _advice(advice: Advice) -> None:
    show(f"least change: {advice.sentence}")
    for kind in ChangeKind:
        mine = [proposal for proposal in advice.proposals if proposal.kind is kind]
        if mine:
            show("")
            table(
                (f"{kind.value}: makes them acyclic", "loses"),
                [(each.sentence, "messages" if each.loses else "nothing") for each in mine],
            )
        elif advice.proposals and kind is ChangeKind.DESTINATIONS and advice.sets_cannot:
            show("")
            show("destination sets: no change of them can make the interests acyclic")
    if advice.proposals:
        show("")
        show("what a change saves: change the file, and compare with amcast topology plan FILE")


def verdict_document(
    interests: InterestFile, safety: SafetyVerdict, advice: Advice | None
) -> dict[str, Any]:
    """Give the verdict as a JSON object."""
    witness = safety.witness
    return {
        "schema_version": SCHEMA_VERSION,
        "input_hash": interests.input_hash,
        "consumers": len(interests.consumers),
        "acyclic": safety.acyclic,
        "pairwise_safe": safety.pairwise_safe,
        "witness": None
        if witness is None
        else {
            "logs": list(witness.logs),
            "consumers": list(witness.consumers),
            "sentence": witness.sentence,
        },
        "least_change": None if advice is None else advice.sentence,
        "advice": None if advice is None else asdict(advice),
    }


# -- the running tree ---------------------------------------------------------------------------


def choice(weighed: Weighed) -> None:
    """Print what the new plan would gain and move, and which tree was chosen."""
    running, new, gain = weighed.running, weighed.new, weighed.gain
    if weighed.same:
        show("the running tree stays: the planner finds the same one")
        return
    if running is None or gain is None:
        show(f"the new plan is taken: the running tree cannot stay, because {weighed.why_not}")
    else:
        show(
            f"the running tree costs {running.cost:.6g} ({running.foreign:.6g} foreign) at these "
            f"rates, the new plan {new.cost:.6g} ({new.foreign:.6g} foreign): "
            f"{abs(gain):.1%} {'less' if gain >= 0 else 'more'}"
        )
        needed = f"at least {100 * weighed.margin:g}% less" if weighed.margin else "less"
        verb = "the running tree stays" if weighed.kept else "the new plan is taken"
        show(f"{verb}: a new plan must cost {needed} (--margin)")
    moves = weighed.moves
    show(
        f"the new plan {'would move' if weighed.kept else 'moves'} {_few('log', moves.logs)} and "
        f"{_few('consumer', moves.consumers)}; collectors: {len(moves.new)} new"
        f"{_names(moves.new)}, {len(moves.gone)} gone{_names(moves.gone)}"
    )


def _few(what: str, names: Sequence[str]) -> str:
    return f"{len(names)} {what}{'' if len(names) == 1 else 's'}{_names(names)}"


def _names(names: Sequence[str]) -> str:
    return f" ({shortened(names)})" if names else ""


def choice_document(weighed: Weighed) -> dict[str, Any]:
    """Give the choice as a JSON object; costs are at the new plan's rates."""
    running, new = weighed.running, weighed.new
    return {
        "kept": weighed.kept,
        "same": weighed.same,
        "margin": weighed.margin,
        "gain": weighed.gain,
        "running": None if running is None else {"cost": running.cost, "foreign": running.foreign},
        "running_cannot_stay_because": weighed.why_not,
        "new": {"cost": new.cost, "foreign": new.foreign},
        "moves": asdict(weighed.moves),
    }


@contextmanager
def progress() -> Iterator[Callable[[str, float], None]]:
    """Show what the planner tries, and the best cost so far, on stderr if that is a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _sentence, _cost: None
        return
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("planning", total=None)

        def show(sentence: str, cost: float, /) -> None:
            best = f"best cost {cost:.6g}" if cost else "no plan yet"
            bar.update(task, description=f"{sentence} · {best} · Ctrl-C takes it")

        yield show
