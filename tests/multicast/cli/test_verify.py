"""`amcast verify` as a user meets it: files in, a verdict for each guarantee out, exit codes."""

import gzip
import io
import json

import pytest
from typer.testing import CliRunner

from multicast.cli.verify import app
from multicast.errors import AmcastError
from multicast.history import acknowledgement_line, delivery_line, end_line, interest_line
from tests.helpers.plans import by_hand

GUARANTEES = [
    "validity",
    "uniform agreement",
    "uniform integrity",
    "uniform prefix order",
    "uniform acyclic order",
    "log order",
    "fifo order",
    "genuineness",
    "replay",
]


def readings(**sequences):
    return "".join(
        delivery_line(consumer=name, instance="a", sequence=place, message_id=m, to=["P1"])
        for name, sequence in sequences.items()
        for place, m in enumerate(sequence)
    )


GOOD = (
    "".join(
        acknowledgement_line(producer="p", message_id=m, to=["P1"], outcome="accepted")
        for m in ("P1:0", "P1:1")
    )
    + readings(C1=["P1:0", "P1:1"], C2=["P1:0", "P1:1"])
    + "".join(
        interest_line(consumer=name, interest=["P1"]) + end_line(consumer=name, instance="a")
        for name in ("C1", "C2")
    )
)
RING = readings(C1=["x", "y"], C2=["y", "z"], C3=["z", "x"])
# Of a system that numbers its messages itself, and has no plan, instance or sequence.
FOREIGN = "".join(
    json.dumps({"consumer": node, "message_id": m, "to": ["all"], "site": 4}) + "\n"
    for node, messages in {"n1": "c7-1 c9-1 c7-2", "n2": "c7-1 c9-1"}.items()
    for m in messages.split()
)


@pytest.fixture
def verify(tmp_path):
    def call(*arguments, **files):
        paths = []
        for name, text in files.items():
            path = tmp_path / f"{name}.jsonl"
            path.write_text(text)
            paths.append(str(path))
        return CliRunner().invoke(app, [*paths, *arguments])

    return call


def error_of(result):
    assert isinstance(result.exception, AmcastError)
    assert result.exception.exit_code == 2
    assert result.stdout == ""
    return str(result.exception)


def test_a_good_history_ends_with_0_and_shows_what_was_not_checked(verify):
    result = verify(good=GOOD)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines == [line.rstrip() for line in lines]
    assert [line[:22].strip() for line in lines[:9]] == GUARANTEES
    assert [line[23:35].strip() for line in lines[:9]] == ["holds"] * 6 + ["not checked"] * 3
    assert lines[9] == (
        "4 deliveries of 2 messages in 2 readings of 2 consumers; "
        "guarantees violated: 0, not checked: 3"
    )


def test_a_violation_ends_with_3_and_shows_the_cycle(verify):
    result = verify(ring=RING)
    assert result.exit_code == 3
    at = result.stdout.index("uniform acyclic order  violated")
    assert result.stdout[at:].splitlines()[1:4] == [
        "    C1/a delivered x (position 0) before y (position 1).",
        "    C2/a delivered y (position 0) before z (position 1).",
        "    C3/a delivered z (position 0) before x (position 1).",
    ]


def test_a_foreign_history_is_judged_as_far_as_it_goes(verify):
    result = verify(foreign=FOREIGN)
    assert result.exit_code == 0
    assert "uniform acyclic order  holds" in result.stdout
    assert "validity               not checked" in result.stdout


def test_json_is_one_document_with_the_witness(verify):
    result = verify("-o", "json", ring=RING)
    assert result.exit_code == 3
    document = json.loads(result.stdout)
    assert document["schema_version"] == 1
    assert [entry["guarantee"] for entry in document["verdicts"]] == GUARANTEES
    (broken,) = [entry for entry in document["verdicts"] if entry["verdict"] == "violated"]
    assert broken["witness"]["cycle"][0] == {
        "consumer": "C1",
        "instance": "a",
        "earlier": "x",
        "earlier_sequence": 0,
        "later": "y",
        "later_sequence": 1,
    }


def test_stdin_and_gzip_are_read(tmp_path):
    assert CliRunner().invoke(app, ["-"], input=RING).exit_code == 3
    for name in ("ring.jsonl.gz", "ring.jsonl"):  # the name says nothing
        path = tmp_path / name
        path.write_bytes(gzip.compress(RING.encode()))
        assert CliRunner().invoke(app, [str(path)]).exit_code == 3
        path.write_bytes(gzip.compress(RING.encode())[:-12])
        assert "cannot be read" in error_of(CliRunner().invoke(app, [str(path)]))
    plain = tmp_path / "plain.gz"
    plain.write_text(RING)
    assert CliRunner().invoke(app, [str(plain)]).exit_code == 3


def test_a_bad_line_is_named_with_its_file(verify, tmp_path):
    result = verify(good=GOOD, bad=GOOD[:-3])
    assert error_of(result).startswith(f"{tmp_path}/bad.jsonl:10: the line is not a JSON object")


def test_no_file_a_missing_file_and_a_file_named_twice_are_errors(verify, tmp_path):
    assert "name the histories" in error_of(verify())
    assert "cannot be read: No such file" in error_of(verify(str(tmp_path / "nowhere")))
    path = tmp_path / "good.jsonl"
    assert "is named twice" in error_of(verify(str(path), good=GOOD))
    assert "is named twice" in error_of(verify("-", "-"))


def test_a_terminal_is_not_upset_by_a_name(verify):
    result = verify(odd=readings(C1=["\x1b[2J", "\ud800"], C2=["\ud800", "\x1b[2J"]))
    assert result.exit_code == 3
    assert "\x1b" not in result.stdout
    assert r'"\u001b[2J"' in result.stdout
    assert r'"\ud800"' in result.stdout


def test_a_plan_gives_interests_and_planned_work(verify, tmp_path):
    plan = tmp_path / "plan.json"
    document = by_hand(["P1"], {"K1": (["P1"], None)}, {"C1": (["P1"], "K1")}).to_json()
    plan.write_text(json.dumps(document))
    work = '{"process": "K1", "log": "P1", "records": 2}\n'
    result = verify("--plan", str(plan), run=readings(C1=["P1:0"]) + work)
    assert result.exit_code == 0
    assert "genuineness            holds" in result.stdout
    other = verify("--plan", str(plan), run=readings(C1=["P1:0"]) + work.replace("K1", "K2"))
    assert other.exit_code == 3
    assert "K2 handled 2 records of the log P1" in other.stdout
    for text in ("{", "[]", "[" * 100_000, '{"schema_version": 9}'):
        plan.write_text(text)
        assert "is not a plan: " in error_of(verify("--plan", str(plan), run=work))
    plan.unlink()
    assert "cannot be read" in error_of(verify("--plan", str(plan), run=work))


def test_a_line_without_an_end_is_refused_before_it_fills_the_memory(monkeypatch):
    class Endless(io.RawIOBase):
        def readable(self):
            return True

        def readinto(self, into):
            into[:] = b" " * len(into)
            return len(into)

    endless = io.TextIOWrapper(io.BufferedReader(Endless()))
    monkeypatch.setattr("multicast.cli.verify.sys.stdin", endless)
    with pytest.raises(AmcastError, match=r"stdin:1: the line is longer than"):
        app(["-"], standalone_mode=False)
