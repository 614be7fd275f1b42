"""The lines of a history: what is written is read back, what is wrong is said with its place."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multicast import history as lines
from multicast.history import HistoryBuilder, HistoryError
from tests.helpers.plans import by_hand

TEXT = st.text(min_size=1, max_size=5)
TO = st.sets(TEXT, min_size=1, max_size=3)


def read_back(*written, **about):
    builder = HistoryBuilder()
    lines.read([line.encode() for line in written], builder, source="h.jsonl")
    return builder.history(**about)


def error_of(*written):
    with pytest.raises(HistoryError) as caught:
        read_back(*written)
    assert caught.value.exit_code == 2
    return str(caught.value)


def plan(interest=("P1",), epoch=1):
    return by_hand(["P1"], {}, {"C1": (interest, None)}, epoch=epoch)


def test_every_line_that_the_documentation_shows_is_read():
    page = (Path(__file__).parents[2] / "docs" / "history.md").read_text("utf-8")
    shown = [
        line
        for block in re.findall(r"```json\n(.*?)```", page, re.DOTALL)
        for line in block.splitlines()
    ]
    assert len(shown) == 6
    assert read_back(*shown).deliveries == 1


def test_more_fields_are_ignored():
    assert read_back('{"consumer":"C","message_id":"x","to":["P"],"colour":"red"}').deliveries == 1


def test_to_is_a_set_whatever_its_spelling():
    history = read_back(
        '{"consumer": "C1", "message_id": "x", "to": ["P2", "P1", "P2"]}',
        '{"consumer": "C2", "message_id": "x", "to": ["P1", "P2"]}',
    )
    assert history.destinations == [("P1", "P2")]
    assert not history.contradictions


def test_one_message_with_two_destination_sets_is_remembered():
    history = read_back(
        '{"consumer": "C1", "message_id": "x", "to": ["P1"]}',
        '{"consumer": "C2", "message_id": "x", "to": ["P2"]}',
    )
    assert history.contradictions == ["x is addressed to P1 on one line and to P2 on another"]


def delivery(sequence, message_id="x", instance="a"):
    return lines.delivery_line(
        consumer="C1", instance=instance, sequence=sequence, message_id=message_id, to=["P1"]
    )


def test_a_sequence_that_goes_back_begins_another_reading():
    history = read_back(delivery(0, "x"), delivery(1, "y"), delivery(1, "y"), delivery(2, "z"))
    assert [(r.first, list(r.messages)) for r in history.readings] == [(0, [0, 1]), (1, [1, 2])]


def test_an_end_without_a_delivery_makes_an_empty_reading_that_can_go_on():
    history = read_back(lines.end_line(consumer="C1", instance="a"), delivery(7))
    (reading,) = history.readings
    assert (reading.ended, reading.first, list(reading.messages)) == (True, 7, [0])


def test_a_gap_in_a_sequence_is_an_error_with_its_place():
    assert error_of(delivery(0), delivery(3, "y")) == (
        "h.jsonl:2: sequence 3 of C1/a follows 0: the lines between are missing"
    )


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("{", "the line is not a JSON object, it is cut off"),
        ("{\n", "the line is not a JSON object"),
        ("[]", "the line is not a JSON object"),
        ("[" * 100_000, "the line is not a JSON object, it is cut off"),
        ("1" * 5000, "the line is not a JSON object, it is cut off"),
        ("{} {}", "the line has more than one JSON document"),
        ("{}", "the line is not a delivery, acknowledgement, interest, end or work line"),
        (
            '{"consumer": "C1"}',
            "the line is not a delivery, acknowledgement, interest, end or work",
        ),
        ('{"consumer": "C1", "message_id": "x"}', "the field 'to' is missing"),
        ('{"consumer": 1, "message_id": "x", "to": ["P"]}', "consumer is 1, not a string"),
        (
            '{"consumer": [], "message_id": "x", "to": ["P"]}',
            "consumer or instance is not a string",
        ),
        ('{"consumer": "C", "message_id": 1, "to": ["P"]}', "message_id is 1, not a string"),
        ('{"consumer": "C", "message_id": [], "to": ["P"]}', "message_id is [], not a string"),
        ('{"consumer": "C", "message_id": "x", "to": []}', "to is [], not a list of one or more"),
        ('{"consumer": "C", "message_id": "x", "to": "P"}', "to is 'P', not a list of one or"),
        ('{"consumer": "C", "message_id": "x", "to": [1]}', "to is [1], not a list of one or"),
        ('{"consumer": "C", "message_id": "x", "to": [[]]}', "to is [[]], not a list of one"),
        (
            '{"consumer": "C", "message_id": "x", "to": ["P"], "sequence": -1}',
            "sequence is -1, not a whole number of 0 or more",
        ),
        (
            '{"consumer": "C", "message_id": "x", "to": ["P"], "sequence": "2"}',
            "sequence is '2', not a whole number of 0 or more",
        ),
        ('{"consumer": "C", "end": false}', "end can only be true, late only true or false"),
        ('{"consumer": "C", "end": true, "late": 7}', "end can only be true, late"),
        ('{"consumer": "C", "interest": []}', "interest is [], not a list of one or more"),
        ('{"process": "K", "log": "P"}', "the field 'records' is missing"),
        ('{"process": "K", "log": "P", "records": 1.5}', "records is 1.5, not a whole number"),
        (
            '{"producer": "p", "message_id": "x", "to": ["P"], "outcome": "ok"}',
            "outcome is 'ok', not accepted, failed or unknown",
        ),
        (
            '{"producer": "p", "message_id": "x", "to": ["P"], "outcome": []}',
            "outcome is [], not accepted, failed or unknown",
        ),
        (
            '{"producer": [], "message_id": "x", "to": ["P"], "outcome": "failed"}',
            "producer is [], not a string",
        ),
        (
            '{"producer": "p", "to": ["P"], "outcome": "accepted"}',
            "an accepted multicast has no message_id",
        ),
        ('{"consumer": "' + "C" * (1 << 20) + '"}', "the line is longer than 1048576 bytes"),
    ],
)
def test_a_bad_line_is_one_sentence_with_its_place(line, sentence):
    said = error_of('{"consumer": "C0", "interest": ["P1"]}\n', line)
    assert said.startswith("h.jsonl:2: " + sentence)
    assert "\n" not in said


def test_a_history_of_windows_begins_with_a_byte_order_mark():
    history = read_back("\ufeff" + '{"consumer": "C1", "interest": ["P1"]}\r\n', delivery(0))
    assert history.interests == {"C1": ("P1",)}


def test_bytes_that_are_not_utf_8_are_an_error():
    with pytest.raises(HistoryError, match=r"^f:1: the line is not UTF-8$"):
        lines.read([b"\xff\n"], HistoryBuilder(), source="f")


def test_two_interests_of_one_consumer_are_an_error():
    one = lines.interest_line(consumer="C1", interest=["P1"])
    assert read_back(one, one).interests == {"C1": ("P1",)}
    assert error_of(one, lines.interest_line(consumer="C1", interest=["P2"])).startswith(
        "h.jsonl:2: the interest of C1 was P1 on an earlier line"
    )


def test_an_interest_comes_from_the_plan_unless_a_line_gives_it():
    assert read_back(plans=[plan()]).interests == {"C1": ("P1",)}
    line = '{"consumer": "C1", "interest": ["P9"]}'
    assert read_back(line, plans=[plan()]).interests == {"C1": ("P9",)}


def test_plans_that_differ_about_an_interest_are_an_error_unless_a_line_decides():
    wider = plan(interest=("P1", "P2"), epoch=2)
    with pytest.raises(HistoryError, match="two plans give C1 different interests"):
        read_back(plans=[plan(), wider])
    line = '{"consumer": "C1", "interest": ["P9"]}'
    assert read_back(line, plans=[plan(), wider]).interests == {"C1": ("P9",)}


def test_too_many_readings_are_an_error(monkeypatch):
    monkeypatch.setattr(lines, "READINGS_MAX", 2)
    assert "more than 2 readings" in error_of(delivery(0), delivery(0), delivery(0))


def test_outcomes_of_one_message_add_up():
    def line(producer, outcome, message_id="x"):
        return lines.acknowledgement_line(
            producer=producer, message_id=message_id, to=["P1"], outcome=outcome
        )

    history = read_back(line("p", "unknown"), line("p", "accepted"), line("p", "unknown", None))
    assert history.outcomes[0] == lines.UNKNOWN | lines.ACCEPTED
    assert history.unnamed == {0: 1}
    assert read_back(line("p", "accepted"), line("q", "accepted")).outcomes[0] & (
        lines.ACCEPTED_TWICE
    )


@given(consumer=TEXT, instance=st.text(max_size=3), message_id=TEXT, to=TO, cursor=TEXT)
def test_a_delivery_is_read_back_as_written(consumer, instance, message_id, to, cursor):
    line = lines.delivery_line(
        consumer=consumer, instance=instance, sequence=4, message_id=message_id, to=to,
        cursor=cursor,
    )  # fmt: skip
    assert line.endswith("\n")
    assert line.count("\n") == 1
    assert json.loads(line)["cursor"] == cursor
    history = read_back(line)
    (reading,) = history.readings
    assert (reading.consumer, reading.instance, reading.first) == (consumer, instance, 4)
    assert (history.messages, history.to(0)) == ([message_id], tuple(sorted(to)))


@given(consumer=TEXT, interest=TO, late=st.booleans(), records=st.integers(0))
def test_the_other_lines_are_read_back_as_written(consumer, interest, late, records):
    history = read_back(
        lines.interest_line(consumer=consumer, interest=interest),
        lines.end_line(consumer=consumer, instance="a", late=late),
        lines.work_line(process=consumer, log="P1", records=records),
    )
    assert history.interests == {consumer: tuple(sorted(interest))}
    assert history.readings[0].late is late
    assert history.work == {(consumer, "P1"): records}


@given(st.lists(st.binary(max_size=40), max_size=4))
def test_garbage_is_read_or_refused_in_one_sentence(garbage):
    try:
        lines.read(garbage, HistoryBuilder(), source="f")
    except HistoryError as wrong:
        assert str(wrong).startswith("f:")  # noqa: PT017 - most garbage is refused, not all


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=4,
)
FIELDS = [
    *("consumer", "instance", "sequence", "message_id", "to", "producer", "outcome"),
    *("interest", "process", "log", "records", "end", "late"),
]


@pytest.mark.slow
@given(st.lists(st.dictionaries(st.sampled_from(FIELDS), JSON), max_size=4))
def test_lines_with_wrong_types_are_refused_in_one_sentence(documents):
    try:
        read_back(*(json.dumps(document) for document in documents))
    except HistoryError as wrong:
        assert str(wrong).startswith("h.jsonl:")  # noqa: PT017 - a few happen to be right
