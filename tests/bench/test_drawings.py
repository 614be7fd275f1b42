"""What a drawing shows: lines where something lies between the points, and who handles what."""

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from bench.micro import genuineness
from bench.report import report
from bench.report.data import Plot, PlotLine

EXAMPLE = Path("docs/examples/poster.toml")


@pytest.mark.parametrize(
    ("count", "ticks", "low", "joined"),
    [
        (3, False, True, True),
        (2, False, True, False),
        (3, True, True, False),
        (2, False, False, True),
    ],
)
def test_points_are_joined_where_something_lies_between_them(count, ticks, low, joined):
    points = [float(each + 1) for each in range(count)]
    spread = {"low": points, "high": points} if low else {}
    line = PlotLine("plain", points, points, **spread)
    plot = Plot("p", "P", "x", "y", [line], "", ticks=["a"] * count if ticks else ())
    axes = Figure().add_subplot()
    report._lines(axes, plot)
    assert (axes.lines[0].get_linestyle() != "None") is joined


def test_only_those_handle_a_message_whom_it_concerns_but_for_the_planned_foreign_work(tmp_path):
    counts = genuineness.measure(EXAMPLE, 3)
    assert {each.entries for each in counts} == {3}
    assert {(each.process, each.log) for each in counts if each.foreign} == {
        ("K2", "P4"),
        ("K3", "P2"),
    }
    handled = {}
    for each in counts:
        handled.setdefault(each.process, set()).add(each.log)
    assert {name: len(handled[name]) for name in sorted(handled)} == dict(
        zip(("C1", "C2", "C3", "K1", "K2", "K3"), (3, 3, 3, 3, 4, 4), strict=True)
    )
    genuineness.draw(counts, tmp_path / "drawn.svg")
    assert ">K3</text>" in (tmp_path / "drawn.svg").read_text()
