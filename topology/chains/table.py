"""Prints the work of each kind of transaction: tables for people, a JSON object for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from topology.chains.transactions import (
    MeanWork,
    TransactionWork,
    means,
    passing_above,
    transactions,
)
from topology.draw import shortened
from topology.report import show, table
from topology.tree import Plan

KINDS_SHOWN_MAX = 40  # more do not fit on a screen; `-o json` has all


def transaction_tables(plan: Plan) -> None:
    """Print each kind of transaction, the means for each number of chains, and what is checked."""
    kinds = transactions(plan)
    show("")
    show("What one transaction costs, in entries (a node that reads a stream handles one, too):")
    show("")
    if len(kinds) <= KINDS_SHOWN_MAX:
        table(
            (
                "transaction",
                "ordered at",
                "passed on at",
                "dropped at",
                "nodes drop",
                "handled",
                "for nobody",
            ),
            [_kind_row(kind) for kind in kinds],
            words=("ordered at", "passed on at", "dropped at"),
        )
        show("")
    else:
        show(f"{len(kinds)} kinds of transactions: -o json lists them")
        show("")
    table(
        (
            "mean of",
            "kinds",
            "per second" if plan.rates else "a round",
            "order",
            "pass on",
            "drop",
            "nodes drop",
            "handled",
            "for nobody",
        ),
        [_mean_row(row) for row in means(kinds)],
    )
    show("")
    for sentence in sentences(kinds):
        show(sentence)


def _kind_row(kind: TransactionWork) -> tuple[str, ...]:
    return (
        shortened([kind.transaction]),
        shortened(kind.ordered_at),
        shortened(kind.passed_on_at),
        shortened(kind.dropped_at),
        f"{kind.nodes_dropping:g}",
        f"{kind.handled:g}",
        f"{kind.foreign:g}",
    )


def _mean_row(row: MeanWork) -> tuple[str, ...]:
    of = "all" if row.chains is None else "1 chain" if row.chains == 1 else f"{row.chains} chains"
    figures = (row.ordered, row.passed_on, row.dropped, row.nodes_dropping, row.handled)
    rows = [f"{figure:.3g}" for figure in (*figures, row.foreign)]
    return (of, str(row.kinds), f"{row.rate:g}", *rows)


def sentences(kinds: Sequence[TransactionWork]) -> list[str]:
    """Say whether a single chain's transactions touch anything above their own collector."""
    single = [kind for kind in kinds if kind.chains == 1]
    wrong = passing_above(kinds)
    said = [
        f"{kind.transaction}'s own transactions are passed on at {shortened(kind.passed_on_at)}, "
        f"which serves no node of it"
        for kind in wrong
    ]
    if not wrong:
        said.append(
            f"single-chain transactions touch nothing above their own collector: checked for "
            f"{len(single)} of {len(single)} chains"
        )
    alone = [kind.transaction for kind in single if not kind.collectors]
    if alone:
        said.append(
            f"no collector touches the own transactions of {shortened(alone)}: their log is their "
            f"order"
        )
    below = [kind for kind in single if kind.dropped_at]
    if below:
        said.append(
            f"collectors below read and drop the own transactions of {len(below)} of "
            f"{len(single)} chains"
        )
    beside = [kind for kind in single if kind.nodes_dropping]
    if beside:
        said.append(
            f"nodes of other chains read and drop the own transactions of {len(beside)} of "
            f"{len(single)} chains, because they read the same collector"
        )
    return said


def transaction_document(plan: Plan) -> dict[str, Any]:
    """Give the same as a JSON object; all kinds, and the means."""
    kinds = transactions(plan)
    return {
        "kinds": [
            {
                **asdict(kind),
                "chains": kind.chains,
                "handled": kind.handled,
                "foreign": kind.foreign,
            }
            for kind in kinds
        ],
        "means": [asdict(row) for row in means(kinds)],
        "passing_above": [kind.transaction for kind in passing_above(kinds)],
    }
