"""What the drawing of genuineness shows: who handles what."""

from pathlib import Path

from bench.micro import genuineness

EXAMPLE = Path("docs/examples/poster.toml")


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
