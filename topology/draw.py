"""Drawings of a plan as text: a tree for the terminal, and DOT (Graphviz) for pictures.

Each function takes a `Plan` and its figures and returns a string; nothing here writes files. The
same plan gives the same drawing. Only the text tree needs networkx, which lays it out, and loads
it: collectors run without it.
"""

from __future__ import annotations

from collections.abc import Sequence

from topology import extra
from topology.check import TreeFigures
from topology.tree import CollectorSpec, Plan

# Bounds of a line of the text tree. Larger ones make lines wrap in a terminal; smaller ones hide
# which logs enter the order where.
NAMES_SHOWN_MAX = 6
NAME_SHOWN_CHARACTERS_MAX = 30


def shortened(names: Sequence[str]) -> str:
    """Join the first names of a list, and say how many more there are."""
    if not names:
        return "-"
    more = len(names) - NAMES_SHOWN_MAX
    longest = NAME_SHOWN_CHARACTERS_MAX
    shown = [
        name if len(name) <= longest else f"{name[: longest - 1]}…"
        for name in names[:NAMES_SHOWN_MAX]
    ]
    return " ".join(shown) + (f" and {more} more" if more > 0 else "")


def _line(plan: Plan, node: CollectorSpec, figures: TreeFigures) -> str:
    place = f" on {node.host}" if node.host else ""
    readers = [entry.name for entry in plan.consumers if entry.collector == node.name]
    share = next(share for share in figures.collectors if share.collector == node.name)
    foreign = share.passed_on + share.dropped
    return (
        f"{node.name}{place}: {len(node.bag)} logs, {share.load:g}/s"
        f"{f', {foreign:g}/s foreign' if foreign else ''}"
        f" · enters {shortened(plan.own_logs(node.name))}"
        f" · {'serves ' + shortened(readers) if readers else 'serves no one itself'}"
    )


def text_tree(plan: Plan, figures: TreeFigures) -> str:
    """Draw the forest as indented text, one line per collector, roots first.

    Raises `MissingExtra` without networkx.
    """
    roots = [node.name for node in plan.collectors if node.parent is None]
    if not roots:
        return "no collectors: every interest meets one log only"
    with extra("planner"):
        import networkx as nx  # noqa: PLC0415 - loads slowly
    forest = nx.DiGraph()
    for node in plan.collectors:
        forest.add_node(node.name, label=_line(plan, node, figures))
    forest.add_edges_from((n.parent, n.name) for n in plan.collectors if n.parent is not None)
    return "\n".join(nx.generate_network_text(forest, sources=roots))


def dot(plan: Plan, figures: TreeFigures) -> str:
    """Draw collectors, and the consumers that read them; the width of an edge follows its rate."""
    lines = ["digraph collectors {", "  rankdir=TB;", '  node [fontname="sans-serif"];']
    loads = dict(figures.loads)
    busiest = max(loads.values(), default=1.0) or 1.0
    for node in plan.collectors:
        enters = shortened(plan.own_logs(node.name))
        label = f"{node.name}\\nenters {enters}\\n{loads[node.name]:g}/s"
        lines.append(f'  "{node.name}" [shape=box, style=rounded, label="{label}"];')
    for node in plan.collectors:
        if node.parent is not None:
            above = plan.collector(node.parent).bag
            inherited = sum(plan.rates.get(log, 1.0) for log in node.bag if log in above)
            width = 1 + 5 * inherited / busiest
            lines.append(f'  "{node.parent}" -> "{node.name}" [penwidth={width:.2f}];')
    for entry in plan.consumers:
        lines.append(f'  "consumer {entry.name}" [shape=oval, label="{entry.name}"];')
        if entry.collector is not None:
            lines.append(f'  "{entry.collector}" -> "consumer {entry.name}" [style=dashed];')
    return "\n".join([*lines, "}"]) + "\n"
