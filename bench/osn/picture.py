"""Draws an excerpt of the banks' chains as SVG: a line across the chains for each transfer.

Both arms are drawn by one rule. The transfers of the excerpt are sorted into one order, as far as
the chains allow, and each gets a slot. A chain's parts take the slots of its transfers, in the
chain's own order. So a transfer that all its banks put into the same place of one common order is
a straight line, and such lines never cross; where banks disagree, lines slant and cross.

The text needs no other file. The same input gives the same drawing. Colour alone never carries
meaning: torn transfers are dashed, with a cross where a part is missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby

from bench.osn.money import groups

# Pixels of the SVG. A slot leaves room between two dots; a row holds the number of a block.
LEFT, SLOT, ROW, HEAD, GAP, MARGIN = 104, 23, 58, 104, 46, 28
DOT = 5
INK, PALE, PAPER, BLOCK = "#1b1f24", "#6b7280", "#ffffff", "#eef2f6"
WHOLE, SLANTED, TORN, KILL = "#0b5394", "#b45f06", "#b3261e", "#6b7280"
STYLE = (
    "text{font-family:system-ui,'DejaVu Sans',sans-serif;font-size:12px;fill:" + INK + "}"
    ".title{font-size:20px;font-weight:700}.small{font-size:11px;fill:" + PALE + "}"
    ".bank{font-size:14px;font-weight:700}.kill{font-size:11px;fill:" + INK + ";font-weight:600}"
    ".bad{font-weight:700;fill:" + TORN + "}.good{font-weight:700;fill:" + WHOLE + "}"
)


@dataclass(frozen=True, slots=True)
class DrawnPart:
    """A part of transfer number `transfer` in block `block` of a chain."""

    transfer: int
    block: int
    change: int


@dataclass(frozen=True, slots=True)
class Panel:
    """One arm: what happened, and an excerpt of its chains, each in the order of its blocks.

    `banks`: of each transfer of the excerpt, which chains it is for. `kills`: what was killed when
    so many transfers had begun. `good`: whether the verdict is that nothing is wrong.
    """

    title: str
    verdict: str
    good: bool
    chains: Mapping[str, Sequence[DrawnPart]]
    banks: Mapping[int, Sequence[str]]
    kills: Sequence[tuple[int, str]] = ()


def svg(panels: Sequence[Panel], foot: str) -> str:
    """Draw the panels one below the other."""
    drawings = [_Drawing(panel) for panel in panels]
    width = max(MARGIN + LEFT + SLOT * len(drawing.slots) + MARGIN for drawing in drawings)
    heights = [HEAD + ROW * len(panel.chains) + GAP for panel in panels]
    height = sum(heights) + 2 * MARGIN
    lines = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img">'
        ),
        "<title>Transfers between banks, as bundles and as separate transactions</title>",
        f"<style>{STYLE}</style>",
        f'<rect width="100%" height="100%" fill="{PAPER}"/>',
    ]
    top = MARGIN
    for drawing, tall in zip(drawings, heights, strict=True):
        lines += drawing.lines(top, width)
        top += tall
    lines += [_text(MARGIN, height - 20, "small", foot), "</svg>"]
    return "\n".join(lines) + "\n"


class _Drawing:
    """One panel: gives each part its place."""

    def __init__(self, panel: Panel) -> None:
        self.panel = panel
        orders = [[str(part.transfer) for part in parts] for parts in panel.chains.values()]
        self.slots: dict[int, int] = {}
        self.slanted: list[int] = []
        for group in groups(orders):
            members = sorted(int(key) for key in group)
            self.slanted += members if len(members) > 1 else []
            for transfer in members:
                self.slots[transfer] = len(self.slots)
        self.rows = {chain: row for row, chain in enumerate(panel.chains)}
        self.places: dict[int, list[tuple[str, int]]] = {}
        self.row_slots: dict[str, list[int]] = {}
        for chain, parts in panel.chains.items():
            free = sorted(self.slots[part.transfer] for part in parts)
            self.row_slots[chain] = free
            for part, slot in zip(parts, free, strict=True):
                self.places.setdefault(part.transfer, []).append((chain, slot))

    def lines(self, top: int, width: int) -> Iterator[str]:
        panel = self.panel
        yield _text(MARGIN, top + 18, "title", panel.title)
        yield _text(MARGIN, top + 42, "good" if panel.good else "bad", panel.verdict)
        base = top + HEAD
        yield from self._kills(base)
        for chain, row in self.rows.items():
            y = base + ROW * row
            yield (
                f'<line x1="{MARGIN + LEFT - 14}" y1="{y}" x2="{width - MARGIN}" y2="{y}" '
                f'stroke="{PALE}" stroke-width="1"/>'
            )
            yield _text(MARGIN, y + 5, "bank", chain)
            yield from self._blocks(chain, y)
        for transfer in self.slots:
            yield from self._transfer(transfer, base)

    def _blocks(self, chain: str, y: int) -> Iterator[str]:
        pairs = zip(self.panel.chains[chain], self.row_slots[chain], strict=True)
        for block, members in groupby(pairs, key=lambda pair: pair[0].block):
            slots = [slot for _, slot in members]
            x = _x(slots[0]) - 9
            yield (
                f'<rect x="{x}" y="{y - 13}" width="{_x(slots[-1]) + 9 - x}" height="26" rx="6" '
                f'fill="{BLOCK}" stroke="{PALE}" stroke-width="0.8"/>'
            )
            yield _text(x + 2, y + 24, "small", str(block))

    def _transfer(self, transfer: int, base: int) -> Iterator[str]:
        placed = dict(self.places[transfer])
        banks = self.panel.banks[transfer]
        torn = [bank for bank in banks if bank not in placed]
        colour = TORN if torn else SLANTED if transfer in self.slanted else WHOLE
        dash = ' stroke-dasharray="5 4"' if torn else ""
        points = [
            (_x(placed.get(bank, self.slots[transfer])), base + ROW * self.rows[bank], bank)
            for bank in sorted(banks, key=lambda bank: self.rows[bank])
        ]
        path = " ".join(f"{x},{y}" for x, y, _ in points)
        yield f"<g><title>{escape(self._hover(transfer, torn))}</title>"
        yield (
            f'<polyline points="{path}" fill="none" stroke="{colour}" '
            f'stroke-width="{2 if len(banks) < len(self.rows) else 3}"{dash}/>'
        )
        for x, y, bank in points:
            if bank in placed:
                yield f'<circle cx="{x}" cy="{y}" r="{DOT}" fill="{colour}"/>'
            else:
                yield (
                    f'<path d="M{x - 6} {y - 6}l12 12m0 -12l-12 12" stroke="{colour}" '
                    f'stroke-width="2.5"/>'
                )
        yield "</g>"

    def _hover(self, transfer: int, torn: Sequence[str]) -> str:
        changes = (
            f"{chain} {part.change:+d}"
            for chain, parts in self.panel.chains.items()
            for part in parts
            if part.transfer == transfer
        )
        missing = f"; missing in {', '.join(torn)}" if torn else ""
        return f"t{transfer}: {', '.join(changes)}{missing}"

    def _kills(self, base: int) -> Iterator[str]:
        bottom = base + ROW * (len(self.rows) - 1) + 20
        for level, (begun, what) in enumerate(self.panel.kills):
            before = [slot for transfer, slot in self.slots.items() if transfer < begun]
            x = _x(max(before, default=-1)) + SLOT / 2
            y = base - 24 - 14 * (level % 2)
            yield (
                f'<line x1="{x}" y1="{y + 3}" x2="{x}" y2="{bottom}" stroke="{KILL}" '
                f'stroke-width="1.5" stroke-dasharray="2 3"/>'
            )
            yield _text(x - 4, y, "kill", f"✕ {what} killed")


def _x(slot: int) -> int:
    return MARGIN + LEFT + SLOT * slot


def _text(x: float, y: float, kind: str, words: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}">{escape(words)}</text>'
