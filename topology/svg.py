"""A large drawing of a plan as SVG: levels, bags, tops, and edges as wide as their rates.

`svg` takes a `Plan` and its figures and returns one self-contained SVG text. The same plan gives
the same drawing. The colours suit colour-blind readers, and colour alone never carries meaning:
logs that enter the order at a collector are bold, logs that it inherits are not.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from topology.check import TreeFigures
from topology.tree import CollectorSpec, Plan

# Lengths are in pixels of the SVG. A box holds a name of `NAME_SHOWN_CHARACTERS_MAX` characters in
# the 12 px font; the gap between levels leaves room for the label of an edge.
BOX, GAP, LEVEL_GAP, MARGIN, HEAD = 230, 26, 74, 32, 92
LINE = 17
EDGE_MIN, EDGE_MAX = 2.0, 16.0
LOGS_SHOWN_MAX = 8  # of a box; with ten times more, a level is higher than a screen
NAME_SHOWN_CHARACTERS_MAX = 26  # what fits into a box at 12 px

INK, PALE, PAPER = "#1b1f24", "#6b7280", "#ffffff"
ROOT, NODE, EDGE, READER = "#0b5394", "#3d6fa5", "#9db8d2", "#b45f06"
STYLE = (
    "text{font-family:system-ui,'DejaVu Sans',sans-serif;font-size:12px;fill:" + INK + "}"
    ".title{font-size:22px;font-weight:700}.small{font-size:12px;fill:" + PALE + "}"
    ".name{font-size:14px;font-weight:700;fill:#fff}.load{font-size:12px;fill:#fff}"
    ".own{font-weight:700}.from{fill:" + PALE + "}.reader{fill:#fff;font-weight:600}"
)


def svg(plan: Plan, figures: TreeFigures) -> str:
    """Draw the forest with its roots at the top."""
    picture = _Picture(plan, figures)
    return picture.text()


class _Picture:
    def __init__(self, plan: Plan, figures: TreeFigures) -> None:
        self.plan, self.figures = plan, figures
        self.loads = dict(figures.loads)
        self.children: dict[str | None, list[CollectorSpec]] = {}
        for node in plan.collectors:
            self.children.setdefault(node.parent, []).append(node)
        self.readers: dict[str | None, list[str]] = {}
        for entry in plan.consumers:
            self.readers.setdefault(entry.collector, []).append(entry.name)
        self.lines = {node.name: list(self._lines(node)) for node in plan.collectors}
        self.left: dict[str, float] = {}
        self.level: dict[str, int] = {}
        self.width = self._place() + MARGIN
        self.top = self._tops()

    def _place(self) -> float:
        """Give each collector a level and a left edge, centred over its children."""
        right = float(MARGIN)
        pending = [(node, 0, False) for node in reversed(self.children.get(None, []))]
        while pending:
            node, level, done = pending.pop()
            below = self.children.get(node.name, [])
            self.level[node.name] = level
            if done:
                edges = [self.left[child.name] for child in below]
                self.left[node.name] = (edges[0] + edges[-1]) / 2
            elif below:
                pending.append((node, level, True))
                pending.extend((child, level + 1, False) for child in reversed(below))
            else:
                self.left[node.name] = right
                right += BOX + GAP
        return max(right - GAP, 3 * BOX)

    def _tops(self) -> list[float]:
        tops, top = [], float(HEAD)
        for level in range(max(self.level.values(), default=-1) + 1):
            tops.append(top)
            heights = [self._height(name) for name, row in self.level.items() if row == level]
            top += max(heights) + LEVEL_GAP
        self.bottom = top - LEVEL_GAP if tops else top
        return tops

    def _height(self, name: str) -> float:
        return 30 + LINE * len(self.lines[name]) + 10

    def _lines(self, node: CollectorSpec) -> Iterator[tuple[str, str]]:
        """List a box's lines with their classes: own logs, inherited logs, consumers."""
        own = set(self.plan.own_logs(node.name))
        yield from self._names("own", "enters here:", [log for log in node.bag if log in own])
        if node.parent is not None:
            above = [log for log in node.bag if log not in own]
            yield from self._names("from", f"from {node.parent}:", above)
        for reader in self.readers.get(node.name, ()):
            yield "reader", reader

    def _names(self, kind: str, label: str, names: list[str]) -> Iterator[tuple[str, str]]:
        if names:
            yield "small", label
        for name in names[:LOGS_SHOWN_MAX]:
            yield kind, name
        if len(names) > LOGS_SHOWN_MAX:
            yield "small", f"and {len(names) - LOGS_SHOWN_MAX} more"

    def text(self) -> str:
        """Give the SVG text of the drawing."""
        height = self.bottom + MARGIN + LINE * 2
        size = f"{self.width:.0f} {height:.0f}"
        lines = [
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" '
                f'width="{self.width:.0f}" height="{height:.0f}" role="img">'
            ),
            f"<title>Collectors of topic {escape(self.plan.topic)}</title>",
            f"<style>{STYLE}</style>",
            f'<rect width="100%" height="100%" fill="{PAPER}"/>',
            *self._heading(),
            *self._edges(),
            *self._boxes(),
            *self._foot(height),
            "</svg>",
        ]
        return "\n".join(lines) + "\n"

    def _heading(self) -> Iterator[str]:
        promised = self.plan.objective
        yield _text(MARGIN, 38, "title", f"{self.plan.topic}, epoch {self.plan.epoch}")
        proof = ""
        if promised.gap is not None:
            near = f"within {promised.gap:.0%} of the bound"
            proof = f" ({near if promised.gap else 'proven best'})"
        yield _text(
            MARGIN,
            60,
            "small",
            f"{len(self.plan.collectors)} collectors · {self.figures.hops:g} hops · "
            f"{self.figures.foreign:g} foreign · cost {self.figures.cost:g}{proof} · "
            f"{self.figures.genuineness:.0%} genuine",
        )

    def _edges(self) -> Iterator[str]:
        inherited = {
            node.name: sum(
                self.plan.rates.get(log, 1.0)
                for log in node.bag
                if log in self.plan.collector(node.parent).bag
            )
            for node in self.plan.collectors
            if node.parent is not None
        }
        most = max(inherited.values(), default=1.0) or 1.0
        for node in self.plan.collectors:
            if node.parent is None:
                continue
            width = EDGE_MIN + (EDGE_MAX - EDGE_MIN) * inherited[node.name] / most
            x1 = self.left[node.parent] + BOX / 2
            y1 = self.top[self.level[node.parent]] + self._height(node.parent)
            x2, y2 = self.left[node.name] + BOX / 2, self.top[self.level[node.name]]
            middle = (y1 + y2) / 2
            yield (
                f'<path d="M{x1:.1f} {y1:.1f}C{x1:.1f} {middle:.1f} {x2:.1f} {middle:.1f} '
                f'{x2:.1f} {y2:.1f}" fill="none" stroke="{EDGE}" stroke-width="{width:.1f}" '
                f'stroke-linecap="round"/>'
            )
            yield _text(x2 + 6 + width / 2, y2 - 8, "small", f"{inherited[node.name]:g}/s")

    def _boxes(self) -> Iterator[str]:
        for node in self.plan.collectors:
            x, y = self.left[node.name], self.top[self.level[node.name]]
            height = self._height(node.name)
            fill = ROOT if node.parent is None else NODE
            yield (
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{BOX}" height="{height:.0f}" rx="8" '
                f'fill="#f6f8fa" stroke="{fill}" stroke-width="1.5"/>'
            )
            yield (
                f'<path d="M{x:.1f} {y + 26:.1f}v-18a8 8 0 0 1 8 -8h{BOX - 16}a8 8 0 0 1 8 8v18z" '
                f'fill="{fill}"/>'
            )
            place = f" on {node.host}" if node.host else ""
            yield _text(x + 10, y + 18, "name", node.name + place)
            load = f"{len(node.bag)} logs, {self.loads[node.name]:g}/s"
            yield _text(x + BOX - 10, y + 18, "load", load, end=True)
            line = y + 26 + LINE
            for kind, words in self.lines[node.name]:
                if kind == "reader":
                    yield (
                        f'<rect x="{x + 10:.1f}" y="{line - 13:.1f}" width="{BOX - 20}" '
                        f'height="{LINE}" rx="8" fill="{READER}"/>'
                    )
                yield _text(x + 16, line, kind, words)
                line += LINE

    def _foot(self, height: float) -> Iterator[str]:
        lone = self.readers.get(None, [])
        readers = f" · read one log alone: {', '.join(lone[:LOGS_SHOWN_MAX])}" if lone else ""
        more = f" and {len(lone) - LOGS_SHOWN_MAX} more" if len(lone) > LOGS_SHOWN_MAX else ""
        legend = "bold: enters the order here · pill: a consumer · edges as wide as their rate"
        yield _text(MARGIN, height - 16, "small", legend + readers + more)


def _text(x: float, y: float, kind: str, words: str, *, end: bool = False) -> str:
    short = (
        words
        if kind in ("title", "small") or len(words) <= NAME_SHOWN_CHARACTERS_MAX
        else (words[: NAME_SHOWN_CHARACTERS_MAX - 1] + "…")
    )
    anchor = ' text-anchor="end"' if end else ""
    hover = f"<title>{escape(words)}</title>" if short != words else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}"{anchor}>{hover}{escape(short)}</text>'
