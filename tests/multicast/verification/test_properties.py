"""Every guarantee is shown histories that break it and histories that keep it.

A history is written as readings, "C1/a: x y z"; a message "P1+P3:17" is addressed to its log's
set, any other ("x") to P1.
"""

import pytest

from multicast import properties
from multicast.history import HistoryBuilder
from multicast.properties import OrderViolation, check_all, verify
from tests.helpers.plans import by_hand


def destination(message_id):
    log, colon, _ = message_id.rpartition(":")
    return log.partition("~")[0].split("+") if colon else ["P1"]


def build(*readings, interest=None, acked="", sent=False, end=""):
    """Readings in words; interests by consumer; acknowledged messages; who ended ("late C1/a").

    `sent`: the producer keeps its own order, in which the messages are acknowledged.
    """
    builder = HistoryBuilder()
    for name, partitions in (interest or {}).items():
        builder.interest(consumer=name, interest=partitions.split())
    for place, message_id in enumerate(acked.split()):
        builder.acknowledgement(
            producer="p", message_id=message_id, to=destination(message_id), outcome="accepted",
            sent=place if sent else None,
        )  # fmt: skip
    for reading in readings:
        name, messages = reading.split(": ") if ": " in reading else (reading.rstrip(":"), "")
        consumer, _, instance = name.partition("/")
        for place, message_id in enumerate(messages.split()):
            builder.delivery(
                consumer=consumer, instance=instance, sequence=place,
                message_id=message_id, to=destination(message_id),
            )  # fmt: skip
    for name in end.split():
        consumer, _, instance = name.removeprefix("late:").partition("/")
        builder.end(consumer=consumer, instance=instance, late=name.startswith("late:"))
    return builder


def run(*readings, **about):
    return build(*readings, **about).history()


ALL_P1 = {"C1": "P1", "C2": "P1", "C3": "P1"}


def violated(history):
    return [verdict.guarantee for verdict in check_all(history).violations]


def verdict(history, guarantee):
    return next(v for v in check_all(history).verdicts if v.guarantee == guarantee)


PLAN = by_hand(
    ["P1", "P2", "P3"],
    {"K1": (["P1", "P2", "P3"], None), "K2": (["P2", "P3"], "K1")},
    {"C1": (["P1", "P2"], "K1"), "C2": (["P2"], "K2")},
)


# -- a good history ---------------------------------------------------------------------------

GOOD = {
    "interest": {"C1": "P1 P3", "C2": "P2 P3", "C3": "P1 P2"},
    "acked": "P1:0 P2:0 P1+P3:0 P2+P3:5 P1:1",
    "sent": True,
    "end": "C1/a C1/b C2/a C3/a",
}
GOOD_READINGS = (
    "C1/a: P1:0 P1+P3:0 P2+P3:5 P1:1",
    "C1/b: P1:0 P1+P3:0 P2+P3:5 P1:1",
    "C2/a: P2:0 P1+P3:0 P2+P3:5",
    "C3/a: P1:0 P2:0 P1+P3:0 P2+P3:5 P1:1",
)


def test_a_good_history_holds_in_everything():
    builder = build(*GOOD_READINGS, **GOOD)
    builder.work(process="K1", log="P1", records=3)
    report = verify(builder.history(plans=[PLAN], other_producers=False))
    assert {entry.verdict for entry in report.verdicts} == {"holds"}
    assert (report.deliveries, report.messages, report.consumers, report.readings) == (16, 5, 3, 4)


def test_an_empty_history_is_not_checked_in_anything():
    report = check_all(run())
    assert {entry.verdict for entry in report.verdicts} == {"not checked"}
    assert all(entry.reason for entry in report.verdicts)


def test_verify_raises_the_violation_with_its_report():
    with pytest.raises(OrderViolation, match=r"C1 delivered x \(position 0\) before y") as caught:
        verify(run("C1: x y", "C2: y x"))
    assert caught.value.exit_code == 3
    assert [v.guarantee for v in caught.value.report.violations] == [
        "uniform prefix order",
        "uniform acyclic order",
    ]


# -- histories in a line each -----------------------------------------------------------------

ACYCLIC, PREFIX, AGREEMENT = "uniform acyclic order", "uniform prefix order", "uniform agreement"
VALIDITY, INTEGRITY, LOG, REPLAY = "validity", "uniform integrity", "log order", "replay"
FIFO = "fifo order"
WIDE = {"C1": "P1 P2", "C2": "P1"}
LATE = {"interest": {"C1": "P1", "C2": "P1"}, "end": "C1 late:C2", "acked": "P1:0 P1:1 P1:2 P1:3"}
WHOLE = "C1: P1:0 P1:1 P1:2 P1:3"
# Readings, what else is known, the guarantees that are violated, what the first witness says.
CASES = [
    # A cycle over restarts of one consumer.
    ("C1/a: a b|C1/b: b c|C1/c: c a", {}, [ACYCLIC, REPLAY], ""),
    # A hole between two deliveries, before anyone ended.
    (
        "C1: a b c|C2: a c",
        {"interest": ALL_P1},
        [PREFIX],
        (
            "C1 delivered a, then b, then c. "
            "C2 delivered a and c, but not b, which is addressed to P1, and so to it as well."
        ),
    ),
    # Without an interest, common messages alone are compared, but of one consumer's instances.
    ("C1: a b c|C2: a c", {}, [], ""),
    ("C1/a: a b c|C1/b: a c", {}, [PREFIX, REPLAY], ""),
    # Messages for others are no holes, nor is what a late joiner and a slow one lack.
    ("C1: P1:0 P2:0 P1:1|C2: P1:0 P1:1", {"interest": WIDE}, [], ""),
    ("C1: a b c d|C2: c d|C3: a b", {"interest": ALL_P1}, [], ""),
    # Nobody delivered what was acknowledged.
    (
        "C1: a",
        {"interest": ALL_P1, "acked": "a b", "end": "C1"},
        [VALIDITY],
        "b was multicast to P1 and acknowledged, but C1 did not deliver it and has read everyth",
    ),
    ("C1: a|C2:", {"interest": ALL_P1, "acked": "a", "end": "C1 C2"}, [VALIDITY, AGREEMENT], ""),
    # Two acknowledgements have one message ID.
    ("C1: a", {"interest": ALL_P1, "acked": "a a", "end": "C1"}, [VALIDITY], ""),
    # One consumer lacks a message; whoever had it and crashed counts as a witness, too.
    ("C1: a b|C2: a", {"interest": ALL_P1, "end": "C1 C2"}, [AGREEMENT], "C2 did not deliver it"),
    ("C1: a b|C2: a", {"interest": ALL_P1, "end": "C2"}, [AGREEMENT], ""),
    ("C1: a b|C2: a", {"interest": ALL_P1, "end": "C1"}, [], ""),
    # Instances that went on from one another are complete together; one that ended is complete.
    (
        "C1/a: a b|C1/b: c|C2: a b c",
        {"interest": ALL_P1, "acked": "a b c", "end": "C1/b C2"},
        [],
        "",
    ),
    ("C1/a: a b c|C1/b: a b", {"end": "C1/b"}, [AGREEMENT], "C1/b"),
    # A late consumer lacks what came after its first delivery only, whatever came between.
    (f"{WHOLE}|C2: P1:2 P1:3", LATE, [], ""),
    (f"{WHOLE}|C2: P1:2", LATE, [VALIDITY, AGREEMENT], ""),
    (
        "C1: P1:0 P2:0 P1:1|C2: P1:0",
        {"interest": WIDE, "end": "C1 late:C2"},
        [AGREEMENT],
        "C1 delivered P1:1 (position 2), after P1:0; C2 delivered P1:0",
    ),
    # A message twice in one reading, and one outside the interest.
    ("C1: a b a|C2: a b", {}, [INTEGRITY], "at position 0 and at position 2"),
    (
        "C1: P1:0 P2+P3:0",
        {"interest": {"C1": "P1"}},
        [INTEGRITY],
        "addressed to P2+P3; the interest of C1 is P1",
    ),
    # A producer's messages in another order than it sent them, at who delivers both.
    (
        "C1: P2:0 P1:0 P1:1",
        {"acked": "P1:0 P2:0 P1:1", "sent": True},
        [FIFO],
        (
            "C1 delivered P1:0 (position 1), after P2:0, though p sent that one later: "
            "as its message 1, not 0."
        ),
    ),
    ("C1: P2:0 P1:0", {"acked": "P1:0 P2:0"}, [], ""),
    ("C1: P1:0|C2: P2:0|C1: P1:1 P3:0", {"acked": "P1:0 P2:0 P1:1 P3:0", "sent": True}, [], ""),
    # A log backwards, also where it lost its end.
    ("C1: P1:0 P2:7 P1:2 P1:1", {}, [LOG], "after P1:2, though it precedes that one in the log P1"),
    ("C1: P1~1:8 P1~1:7", {}, [LOG], ""),
    ("C1: P1~1:8 P1:9", {}, [LOG], ""),
    ("C1: P1~1:8 P1~2:8 P2:0 P1~1:9", {}, [LOG], ""),
    # Two instances with other messages between; stretches of one sequence; other consumers.
    (
        "C1/a: a b c|C1/b: b d",
        {},
        [REPLAY],
        "C1/a delivered b and next c; C1/b, of the same consumer, delivered b and next d.",
    ),
    ("C1/a: a b c|C1/b: c d e f|C1/c: b c d|C1/d: x y", {}, [], ""),
    ("C1/a: a b|C2/a: a c", {}, [], ""),
]


@pytest.mark.parametrize(("readings", "about", "breaks", "says"), CASES)
def test_a_history_breaks_exactly_these_guarantees(readings, about, breaks, says):
    violations = check_all(run(*readings.split("|"), **about)).violations
    assert [each.guarantee for each in violations] == breaks
    assert says in "".join(str(each.witness) for each in violations[:1])


def test_the_note_names_a_consumer_that_joined_late():
    assert "C2" in verdict(run(WHOLE, "C2: P1:2 P1:3", **LATE), "uniform agreement").note


# -- acyclic order ----------------------------------------------------------------------------


def test_three_consumers_of_whom_every_two_agree_make_a_cycle():
    history = run("C1: a b", "C2: b c", "C3: c a")
    assert violated(history) == ["uniform acyclic order"]
    witness = properties.uniform_acyclic_order(history)
    assert witness.sentences == (
        "C1 delivered a (position 0) before b (position 1).",
        "C2 delivered b (position 0) before c (position 1).",
        "C3 delivered c (position 0) before a (position 1).",
    )
    assert [(edge.earlier, edge.later) for edge in witness.cycle] == [
        ("a", "b"),
        ("b", "c"),
        ("c", "a"),
    ]


def test_the_cycle_is_a_shortest_one_though_long_ones_are_found_first():
    ring = ["R1: a x1 b", "R2: b x2 c", "R3: c x3 d", "R4: d x4 a", "S1: p q", "S2: q r", "S3: r p"]
    witness = properties.uniform_acyclic_order(run(*ring))
    assert len(witness.cycle) == 3
    assert {edge.consumer for edge in witness.cycle} == {"S1", "S2", "S3"}


def test_positions_in_the_witness_are_those_of_the_lines():
    builder = build("C2: y x")
    for place, message_id in enumerate("xyz", 40):
        builder.delivery(consumer="C1", message_id=message_id, to=["P1"], sequence=place)
    witness = properties.uniform_acyclic_order(builder.history())
    assert {(edge.earlier_sequence, edge.later_sequence) for edge in witness.cycle} == {
        (0, 1),
        (40, 41),
    }


# -- prefix order -----------------------------------------------------------------------------


def test_two_consumers_in_opposite_orders_break_prefix_order():
    witness = properties.uniform_prefix_order(run("C1: a m b", "C2: b n a"))
    assert witness.kind == "opposite orders"
    assert witness.sentences == (
        "C1 delivered a (position 0) before b (position 2).",
        "C2 delivered b (position 0) before a (position 2).",
    )


def test_without_an_interest_only_common_messages_are_compared_and_the_note_says_so():
    note = verdict(run("C1: a b c", "C2: a c"), "uniform prefix order").note
    assert "no interest" in note


# -- validity and agreement -------------------------------------------------------------------


def test_without_an_end_line_validity_and_agreement_are_not_checked():
    history = run("C1: a", "C2:", interest=ALL_P1, acked="a b")
    for guarantee in ("validity", "uniform agreement"):
        found = verdict(history, guarantee)
        assert (found.verdict, "no end line" in found.reason) == ("not checked", True)


def test_without_an_interest_validity_is_not_checked():
    assert verdict(run("C1: a", acked="a b", end="C1"), "validity").verdict == "not checked"


# -- integrity --------------------------------------------------------------------------------


def acknowledged(*outcomes, other_producers=False):
    builder = build("C1: a b")
    for message_id, outcome in outcomes:
        builder.acknowledgement(producer="p", message_id=message_id, to=["P1"], outcome=outcome)
    return builder.history(other_producers=other_producers)


def test_a_message_again_after_a_restart_keeps_integrity():
    builder = build("C1: a b c")
    builder.delivery(consumer="C1", message_id="c", to=["P1"], sequence=2)
    assert violated(builder.history()) == []


def test_a_message_whose_multicast_failed_for_certain_must_not_be_delivered():
    history = acknowledged(("a", "accepted"), ("b", "failed"))
    assert violated(history) == ["uniform integrity"]
    assert "failed for certain" in str(properties.uniform_integrity(history))


def test_an_unknown_outcome_may_be_a_delivery_or_not_and_without_an_id_one_but_not_two():
    assert violated(acknowledged(("a", "accepted"), ("b", "unknown"), ("c", "unknown"))) == []
    assert violated(acknowledged(("a", "accepted"), (None, "unknown"))) == []
    assert violated(acknowledged((None, "unknown"))) == ["uniform integrity"]
    assert violated(acknowledged(("a", "accepted"), (None, "failed"))) == ["uniform integrity"]


def test_a_message_that_nobody_multicast_breaks_integrity_unless_others_produce_too():
    assert violated(acknowledged(("a", "accepted"))) == ["uniform integrity"]
    assert violated(acknowledged(("a", "accepted"), other_producers=True)) == []
    assert "taken as multicast" in (
        verdict(acknowledged(("a", "accepted"), other_producers=True), "uniform integrity").note
    )


def test_two_destination_sets_of_one_message_break_integrity():
    builder = build("C1: a")
    builder.delivery(consumer="C2", message_id="a", to=["P2"])
    assert violated(builder.history()) == ["uniform integrity"]


# -- log order --------------------------------------------------------------------------------


def test_a_log_that_lost_its_end_goes_on_with_other_ids_and_never_back():
    assert verdict(run("C1: P1:7 P1:9 P1~1:8 P1~2:3"), "log order").verdict == "holds"
    assert verdict(run("C1: P1~01:8 P1~x:7"), "log order").verdict == "not checked"


def test_a_covered_message_belongs_to_its_log_not_to_its_set():
    builder = HistoryBuilder()
    for message_id, to in (("P1+P3:2", ["P1", "P3"]), ("P1+P3:1", ["P1"])):
        builder.delivery(consumer="C1", message_id=message_id, to=to)
    assert violated(builder.history()) == ["log order"]


@pytest.mark.parametrize("message_ids", [("c7:2", "c7:1"), ("x", "y"), ("P1:9x", "P1:8x")])
def test_message_ids_of_another_form_are_not_checked_for_log_order(message_ids):
    builder = HistoryBuilder()
    for message_id in message_ids:
        builder.delivery(consumer="C1", message_id=message_id, to=["P1"])
    assert verdict(builder.history(), "log order").verdict == "not checked"


# -- genuineness ------------------------------------------------------------------------------


def worked(*work, plans=None):
    builder = build(*GOOD_READINGS, **GOOD)
    for process, log, records in work:
        builder.work(process=process, log=log, records=records)
    return builder.history(plans=[PLAN] if plans is None else plans)


def test_a_process_that_has_no_part_in_a_log_breaks_genuineness():
    history = worked(("K1", "P1", 3), ("K2", "P1", 2))
    assert violated(history) == ["genuineness"]
    assert "K2 handled 2 records of the log P1" in str(properties.genuineness(history))


@pytest.mark.parametrize("process", ["K1", "K1/2", "C1", "C1/a", "p"])
def test_collectors_consumers_and_producers_of_a_log_may_work_on_it(process):
    assert violated(worked((process, "P1", 3))) == []


def test_a_process_without_records_did_no_work():
    assert verdict(worked(("K9", "P1", 0)), "genuineness").verdict == "not checked"


def test_the_note_says_how_many_records_were_judged_and_by_what():
    note = verdict(worked(("K1", "P1", 3), ("K2", "P3", 2)), "genuineness").note
    assert note == "5 records handled, each by a process to which a plan gives the record's log"


def test_genuineness_needs_work_lines_and_a_plan():
    assert "no line" in verdict(worked(), "genuineness").reason
    assert "no plan" in verdict(worked(("K1", "P1", 1), plans=[]), "genuineness").reason


# -- replay -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("first", "breaks"), [(1, ["replay"]), (0, [])])
def test_an_instance_delivers_at_a_position_what_it_did_before_unless_it_counts_from_zero_again(
    first, breaks
):
    builder = build("C1: a b c")
    for place, message_id in enumerate("xy", first):
        builder.delivery(consumer="C1", message_id=message_id, to=["P1"], sequence=place)
    assert violated(builder.history()) == breaks
