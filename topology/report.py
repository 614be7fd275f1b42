"""What `amcast topology` prints: tables for people, JSON documents for programs.

This file formats values; it decides nothing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from topology import draw
from topology.advice import Advice, PlanPrice, Pricing, Proposal
from topology.changes import FigureChange
from topology.check import TreeFigures
from topology.draw import shortened
from topology.explain import Explanation, Remedy
from topology.hysteresis import ROUNDING, Weighed
from topology.interests import InterestFile
from topology.measured_work import MeasuredWork, WorkRow
from topology.planner.solver import Solution
from topology.repairs import ChangeKind
from topology.safety import SafetyVerdict
from topology.tree import Plan

SCHEMA_VERSION = 1  # of the JSON documents; it rises when a field changes its meaning

# Fixed, so that a table that is piped to a file does not depend on the terminal; the tables of the
# documents fit into it.
WIDTH_COLUMNS = 100
CAUSES_SHOWN_MAX = 3  # of one consumer; `-o json` has all
PRICED_BY = {
    Pricing.PLANNED: "with a change, planned again",
    Pricing.SAME_TREE: "with a change, in the same tree (another tree may save more)",
    Pricing.NONE: "",
}


class PlanProgress(Protocol):
    """A callback for the planner's progress."""

    def __call__(self, sentence: str, gap: float, /) -> None:
        """Show what the planner does now, and the relative gap so far (0 to 1)."""


def written(document: object) -> str:
    """Give the text of one JSON document, as `-o json` prints it."""
    return json.dumps(document, indent=1, ensure_ascii=True) + "\n"


def show(text: str) -> None:
    """Print text to stdout, ended by one line feed."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")


def table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, words: Sequence[str] = ()
) -> None:
    """Print a table; all columns but the first and `words` are numbers or short words."""
    grid = Table(box=None, pad_edge=False)
    for number, name in enumerate(columns):
        grid.add_column(name, justify="right" if number and name not in words else "left")
    for row in rows:
        grid.add_row(*row)
    console = Console(file=sys.stdout, width=WIDTH_COLUMNS, highlight=False, color_system=None)
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
    """Print the plan's objective in one line: cost, hops, foreign work, bound."""
    promised = plan.objective
    over = f" + {plan.phi:g} * {figures.excess:g} over the wanted rate" if figures.excess else ""
    proof = "proven least" if promised.gap == 0 else f"gap {promised.gap:.1%}"
    bound = f"bound {promised.cost * (1 - promised.gap):g}, {proof}"
    show(
        f"cost {figures.cost:g} = {figures.hops:g} hops + {plan.phi:g} * {figures.foreign:g} "
        f"foreign{over} · {bound} · {figures.genuineness:.0%} genuine"
    )


def foreign_work(work: MeasuredWork) -> None:
    """Print the running plan's foreign work in a window, predicted and measured."""
    show(f"foreign work of the running plan in {work.seconds:.1f} s, in entries")
    rows = [*work.collectors, work.total] if work.collectors else []
    table(
        ("collector", "passed on: predicted", "measured", "dropped: predicted", "measured"),
        [_work_row(row) for row in rows],
    )
    dropped = sum(row.dropped_predicted for row in work.consumers)
    show(
        f"consumers drop {dropped} as predicted; not measured, because they report no counts "
        f"(Consumer.entries())"
    )
    for sentence in work.missing:
        show(sentence)
    show("")


def _work_row(row: WorkRow) -> tuple[str, ...]:
    figures = (
        row.passed_on_predicted,
        row.passed_on_measured,
        row.dropped_predicted,
        row.dropped_measured,
    )
    return (row.name, *("-" if figure is None else str(figure) for figure in figures))


def measured_document(work: MeasuredWork) -> dict[str, Any]:
    """Give the same as a JSON object; null stands for a figure that was not measured."""
    return {
        "unit": "entries",
        "seconds": work.seconds,
        "collectors": [asdict(row) for row in work.collectors],
        "all_measured": asdict(work.total),
        "consumers": [asdict(row) for row in work.consumers],
        "not_counted": list(work.missing),
    }


def solved(solution: Solution, seconds: float) -> None:
    """Print to stderr how the plan was found, and in what time."""
    how = ", ".join(sorted(set(solution.how))) or "no collector is needed"
    sys.stderr.write(f"planned in {seconds:.2f} s: {how}\n")


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
    if safety.witness is None:
        show(f"acyclic: the interests of {count} consumers can be the bags of collectors")
        show("pairwise safe: yes, one place for each pair of logs is enough in every execution")
        return
    show("not acyclic: some collector must know logs that not all of its readers take")
    if safety.pairwise_safe:
        show("pairwise safe: yes, one place for each pair of logs is enough in every execution")
    else:
        show("pairwise safe: no, each pair of logs in one place does not prevent a cycle")
    show(f"because {safety.witness.sentence}")
    if advice is not None:
        _advice(advice)


def _advice(advice: Advice) -> None:
    show(f"least change: {advice.sentence}")
    if advice.now is not None:
        show("")
        show(
            f"the plan now: cost {advice.now.cost:g}, foreign {advice.now.foreign:g}; "
            f"{PRICED_BY[advice.pricing]}"
        )
    for kind in ChangeKind:
        mine = [proposal for proposal in advice.proposals if proposal.kind is kind]
        if mine:
            _proposals(f"{kind.value}: makes them acyclic", mine, advice.now)
        elif advice.proposals and kind is ChangeKind.DESTINATIONS and advice.sets_cannot:
            show("")
            show("destination sets: no change of them can make the interests acyclic")
    if advice.most:
        _proposals("not acyclic, but saves most", advice.most, advice.now)
    if advice.now is None:
        show("what a change saves is left out: for so many consumers it would take minutes;")
        show("change the file and compare: amcast topology plan FILE")


def _proposals(title: str, proposals: Sequence[Proposal], now: PlanPrice | None) -> None:
    rows = []
    for proposal in proposals:
        row = [proposal.sentence, "messages" if proposal.loses else "nothing"]
        after = proposal.after
        if now is not None and after is not None:
            saves = f"{now.cost - after.cost:g}", f"{now.foreign - after.foreign:g}"
            row += [f"{after.cost:g}", saves[0], f"{after.foreign:g}", saves[1]]
        rows.append(row)
    show("")
    columns = ("loses",) if now is None else ("loses", "cost", "saves", "foreign", "saves")
    table((title, *columns), rows)


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


# -- causes of foreign work --------------------------------------------------------------------


def causes(plan: Plan, explanations: Sequence[Explanation]) -> None:
    """Print for each consumer with foreign work how much it is, and who causes it."""
    if not explanations:
        return
    unit = _unit(plan)
    rows = [
        (
            explanation.consumer,
            f"{explanation.foreign:g}",
            f"{explanation.handled:g}",
            f"{explanation.genuineness:.0%}",
            _causes(explanation),
        )
        for explanation in explanations
    ]
    show(f"Foreign work of consumers and of the collectors on their logs' way, in {unit}:")
    show("")
    table(("consumer", "foreign", "of", "genuine", "because of"), rows, words=("because of",))
    show("")


def explanation(plan: Plan, explained: Explanation, remedy: Remedy | None) -> None:
    """Print five lines on one consumer."""
    unit, name = _unit(plan), explained.consumer
    if not explained.collectors:
        show(f"{name} wants {shortened(explained.logs)}: {explained.wanted:g} {unit}")
        show("it reads this log without a collector, because one log is its own order")
    else:
        reads = explained.collectors[0]
        show(
            f"{name} wants {shortened(explained.logs)}: {explained.wanted:g} {unit}; reads {reads}"
        )
        ways = [f"{' > '.join(way)} ({shortened(logs)})" for way, logs in explained.ways]
        show(f"way of its logs: {'; '.join(ways)}")
    work = [f"{w.worker} {w.does} {w.entries:g} ({shortened(w.logs)})" for w in explained.work]
    show(
        f"foreign: {explained.foreign:g} of {explained.handled:g} {unit}, "
        f"{explained.genuineness:.0%} genuine{': ' if work else ''}{'; '.join(work)}"
    )
    show(f"because of: {_causes(explained, logs=True) or 'no other consumer'}")
    if remedy is None:
        missing = (
            "no single change of what others take helps"
            if work
            else "nothing, it has no foreign work"
        )
        show(f"would help most: {missing}")
        return
    loss = " (messages are lost)" if remedy.loses else ""
    show(
        f"would help most: {remedy.change}{loss}: then {remedy.foreign:g} foreign, and the plan "
        f"costs {remedy.cost:g} (now {remedy.cost_before:g}) in the same tree"
    )


def explanation_document(
    plan: Plan, explained: Explanation, remedy: Remedy | None
) -> dict[str, Any]:
    """Give the explanation of one consumer as a JSON object."""
    return {
        "schema_version": SCHEMA_VERSION,
        "unit": _unit(plan),
        **foreign_work_document(explained),
        "remedy": None if remedy is None else asdict(remedy),
    }


def foreign_work_document(explained: Explanation) -> dict[str, Any]:
    """Give the foreign work of one consumer as a JSON object."""
    return {
        **asdict(explained),
        "foreign": explained.foreign,
        "leftover": explained.leftover,
        "genuineness": explained.genuineness,
    }


def _causes(explained: Explanation, *, logs: bool = False) -> str:
    shown = [
        f"{cause.consumer} {cause.entries:.3g}" + (f" ({shortened(cause.logs)})" if logs else "")
        for cause in explained.causes[:CAUSES_SHOWN_MAX]
    ]
    if explained.leftover > ROUNDING * explained.foreign:
        shown.append(f"no longer needed {explained.leftover:.3g}")
    more = len(explained.causes) - CAUSES_SHOWN_MAX
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def _unit(plan: Plan) -> str:
    """Give the unit of a plan's rates: without rates, each log counts one message a round."""
    return "entries/s" if plan.rates else "entries a round"


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
def progress() -> Iterator[PlanProgress]:
    """Show a progress bar with the gap on stderr; show nothing if stderr is no terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _sentence, _gap: None
        return
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("planning", total=1.0)

        def update(sentence: str, gap: float, /) -> None:
            words = f"{sentence} · gap {gap:.1%}"
            bar.update(task, description=words, completed=1.0 - gap)

        yield update
