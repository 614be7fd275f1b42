"""The interest file: valid files are read, and invalid ones are refused with the reason."""

from __future__ import annotations

import pytest

from topology.acyclicity import is_acyclic, residue
from topology.interests import InvalidInterests, parse
from topology.planner.hypergraph import declared_logs, logs_met
from topology.planner.reduction import reduced

GOOD = """
topic = "A"
partitions = ["P1", "P2", "P3", "P4"]
destinations = [["P3", "P1"], ["P2", "P3", "P4"]]

[[consumer]]
name = "C1"
interest = ["P2", "P1"]
weight = 2

[[consumer]]
name = "C2"
interest = ["P4"]

[rates]
"P3+P1" = 250.5
P2 = 3

[limits]
collector_rate_max = 50000.0
levels_max = 3
"""


def test_a_good_file_is_read_with_sets_sorted():
    file = parse(GOOD)
    assert file.topic == "A"
    assert file.destinations == (("P1", "P3"), ("P2", "P3", "P4"))
    assert file.consumers[0].interest == ("P1", "P2")
    assert file.consumers[0].weight == 2.0
    assert file.rate("P1+P3") == 250.5
    assert file.rate("P4") == 1.0
    assert file.limits.levels_max == 3


def test_the_hash_follows_the_content_and_not_the_formatting():
    spaced = GOOD.replace('"P3", "P1"', '  "P1","P3"  ')
    assert parse(spaced).input_hash == parse(GOOD).input_hash
    assert parse(GOOD.replace("250.5", "250.6")).input_hash != parse(GOOD).input_hash


def test_messages_through_a_wider_log_are_part_of_its_rate_and_some_consumers_drop_them():
    narrow = '[through]\n"P2+P3+P4" = { P2 = 5, "P4+P3" = 2 }\n"P1+P3" = { P1 = 7 }\n'
    file = parse(GOOD + narrow)
    assert [file.rate(log) for log in ("P2+P3+P4", "P1+P3", "P1")] == [7, 250.5, 1]
    assert file.dropped() == [("C1", "P2+P3+P4", 2), ("C2", "P2+P3+P4", 5)]
    assert parse(GOOD).dropped() == []
    assert file.input_hash != parse(GOOD).input_hash == parse(GOOD + "[through]\n").input_hash


def test_a_count_of_partitions_is_the_same_as_their_names():
    counted = parse(GOOD.replace('["P1", "P2", "P3", "P4"]', "4"))
    assert counted.partitions == ("P1", "P2", "P3", "P4")
    assert counted.input_hash == parse(GOOD).input_hash


def test_a_range_names_its_ends_and_what_the_file_names_between_them():
    counted = GOOD.replace('["P1", "P2", "P3", "P4"]', "100")
    ranged = parse(
        counted.replace('["P2", "P1"]', '["P100", "P8..P11"]').replace(
            '["P2", "P3", "P4"]', '["P1..P100"]'
        )
    )
    assert ranged.consumers[0].interest == ("P10", "P100", "P11", "P8", "P9")
    assert len(ranged.destinations[1]) == 100
    odd = parse(
        'topic = "A"\npartitions = ["b", "x", "b..x", "a"]\n'
        'consumer = [{name = "C", interest = ["b..x"]}, {name = "D", interest = ["x..a"]}]'
    )
    assert [each.interest for each in odd.consumers] == [("b..x",), ("a", "b..x", "x")]


def test_partitions_have_the_topic_and_wider_sets_have_groups():
    logs = [(log.name, log.topic, log.partition) for log in declared_logs(parse(GOOD))]
    assert logs[:2] == [("P1", "A", 0), ("P2", "A", 1)]
    assert logs[4:] == [("P1+P3", "A.groups", 0), ("P2+P3+P4", "A.groups", 1)]


def test_an_interest_meets_every_log_that_names_one_of_its_partitions():
    met = logs_met(parse(GOOD))
    assert met["C1"] == ("P1", "P1+P3", "P2", "P2+P3+P4")
    assert met["C2"] == ("P2+P3+P4", "P4")


HUGE = "9" * 400
BAD = [
    ('topic = "A"\npartitions = ["P1"\nfoo', "line 3"),
    (GOOD.replace('["P2", "P1"]', '["P2", "P9"]'), "'P9'"),
    (GOOD.replace('["P2", "P1"]', "[]"), "interest of consumer C1 is empty"),
    (GOOD.replace('"C2"', '"C1"'), "consumer C1 is named twice"),
    (GOOD.replace('["P3", "P1"]', "[]"), "destination set number 1 is empty"),
    (GOOD.replace('["P3", "P1"]', '["P1"]'), "always declared"),
    (GOOD.replace('["P3", "P1"]', '["P4", "P3", "P2"]'), "P2+P3+P4 is named twice"),
    (GOOD.replace('["P3", "P1"]', '["P3", "P3"]'), "P3 is named twice"),
    (GOOD.replace('"P4"]\ndest', '"P1"]\ndest'), "partition P1 is named twice"),
    (GOOD.replace('"P4"]\ndest', '"P 4"]\ndest'), "'P 4'"),
    (GOOD.replace('"C2"', '"C+2"'), "'C+2'"),
    (GOOD.replace("weight = 2", "weight = -2"), "weight of consumer C1"),
    (GOOD.replace("weight = 2", 'weight = "2"'), "weight of consumer C1"),
    (GOOD.replace("weight = 2", "weigth = 2"), "'weigth'"),
    (GOOD.replace("250.5", "-250.5"), "rate of P3+P1"),
    (GOOD.replace("250.5", "nan"), "rate of P3+P1"),
    (GOOD.replace("P2 = 3", "P7 = 3"), "P7"),
    (GOOD.replace("P2 = 3", '"P1+P3" = 3'), "P1+P3 twice"),
    (GOOD.replace("levels_max = 3", "levels_max = 0"), "levels_max is 0"),
    (GOOD.replace("levels_max = 3", f"levels_max = {HUGE}"), "levels_max is 999999"),
    (GOOD.replace("weight = 2", f"weight = {HUGE}"), "C1 is 999999"),
    (GOOD.replace("250.5", HUGE), "rate of P3+P1 is 999999"),
    (GOOD.replace("250.5", "1e308"), "not a number from 0 to 1e+15"),
    (GOOD.replace("levels_max = 3", "collectors_per_host_max = 1"), "there is no [hosts]"),
    (GOOD.replace("levels_max = 3", "level_max = 3"), "'level_max'"),
    (GOOD.replace('topic = "A"', ""), "'topic'"),
    (GOOD.replace('topic = "A"', 'topic = ".."'), "'..'"),
    (GOOD.replace('topic = "A"', "topic = 7"), "topic 7"),
    (GOOD.replace('["P1", "P2", "P3", "P4"]', "[]"), "partitions is empty"),
    (GOOD.replace('["P1", "P2", "P3", "P4"]', '"P1"'), "give a count, like 100"),
    (GOOD.replace('["P1", "P2", "P3", "P4"]', "true"), "give a count, like 100"),
    (GOOD.replace('["P1", "P2", "P3", "P4"]', "4.0"), "give a count, like 100"),
    (GOOD.replace('["P1", "P2", "P3", "P4"]', "0"), "partitions is 0: give a count from 1"),
    (GOOD.replace('["P1", "P2", "P3", "P4"]', "-3"), "partitions is -3"),
    (GOOD.replace('["P1", "P2", "P3", "P4"]', "9999999999"), "from 1 to 100000"),
    (GOOD.replace('["P1", "P2", "P3", "P4"]', "1"), "unknown partition 'P3'"),
    (GOOD.replace('["P2", "P1"]', '["P1..P9"]'), "unknown partition 'P9'"),
    (GOOD.replace('["P2", "P1"]', '["Q1..P2"]'), "unknown partition 'Q1'"),
    (GOOD.replace('["P2", "P1"]', '["P3..P1"]'), "the range 'P3..P1' ends before it begins"),
    (GOOD.replace('["P2", "P1"]', '["P1..P3", "P2"]'), "P2 is named twice"),
    (GOOD.replace('["P2", "P1"]', '[["P2"]]'), "unknown partition ['P2']"),
    (GOOD.replace('name = "C2"\n', ""), "consumer number 2 has no 'name'"),
    (GOOD.replace("[limits]", "[hosts]"), "[hosts]"),
    ('topic = "A"\npartitions = ["P1"]\n', "names no consumer"),
    ('topic = "A"\npartitions = ["P1"]\nconsumer = 3\n', "consumer is 3"),
    (
        'topic = "A"\npartitions = 1\n[consumer]\nname = "C"\ninterest = ["P1"]\n',
        "write [[consumer]] above each consumer",
    ),
    (GOOD + '[through]\n"P1+P2" = { P1 = 1 }\n', "[through] names P1+P2, which is not a decl"),
    (GOOD + '[through]\n"P1+P3" = { P2 = 1 }\n', "[through] names P2, which is not a part of P1"),
    (GOOD + '\n[hosts]\nnames = ["x", "y"]\nlatency = [[0, 1]]\n', "2 rows of 2"),
    (GOOD + '\n[hosts]\nnames = ["x"]\nlatency = [[0]]\nleaders = {P1 = "z"}\n', "'z'"),
    (GOOD + '\n[hosts]\nnames = ["x"]\nlatency = [[0]]\nleaders = {P9 = "x"}\n', "P9"),
]


@pytest.mark.parametrize(("text", "named"), BAD)
def test_a_bad_file_is_refused_with_one_sentence_that_names_the_fault(text, named):
    with pytest.raises(InvalidInterests) as refused:
        parse(text)
    assert named in str(refused.value)
    assert "\n" not in str(refused.value)


def hypergraph(*edges: str) -> list[frozenset[str]]:
    return [frozenset(edge) for edge in edges]


def test_a_path_and_a_triangle_inside_one_interest_are_acyclic_and_a_bare_triangle_is_not():
    assert is_acyclic(hypergraph("abc", "bcd", "cde"))
    assert not is_acyclic(hypergraph("ab", "bc", "ca"))
    assert residue(hypergraph("ab", "bc", "ca", "ax")) == tuple(hypergraph("ab", "ac", "bc"))
    assert is_acyclic(hypergraph("ab", "bc", "ca", "abc"))


def test_equal_interests_and_logs_with_equal_readers_are_merged_and_parts_are_split():
    file = parse(
        """
        topic = "A"
        partitions = ["a", "b", "c", "d", "e", "f"]
        consumer = [
            {name = "x", interest = ["a", "b", "c"]},
            {name = "y", interest = ["b", "c", "a"]},
            {name = "z", interest = ["b", "c"]},
            {name = "u", interest = ["d", "e"]},
            {name = "alone", interest = ["f"]},
        ]
        """
    )
    first, second = reduced(file).components
    assert [demand.consumers for demand in first.demands] == [("x", "y"), ("z",)]
    assert [entry.logs for entry in first.classes] == [("a",), ("b", "c")]
    assert [entry.readers for entry in first.classes] == [0b01, 0b11]
    assert [demand.consumers for demand in second.demands] == [("u",)]
