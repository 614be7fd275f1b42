"""The picture of the banks' chains, and the transfers that it shows."""

import re
from datetime import UTC, datetime
from xml.etree import ElementTree as ET

import pytest

from bench.osn.bank import envelopes, read_movement, transfer
from bench.osn.picture import DrawnPart, Panel, svg
from bench.osn.transactions import user

BANKS = {1: ("a", "b"), 2: ("b", "c"), 3: ("a", "c")}
SETS = [("a", "b"), ("a", "b", "c")]


def drawn(**orders):
    chains = {
        chain: [DrawnPart(int(number), 7, 1) for number in order.split()]
        for chain, order in orders.items()
    }
    text = svg([Panel("A <title>", "all is well", True, chains, BANKS, [(2, "node 0")])], "foot")
    ET.fromstring(text)
    return text


def lines(text):
    """The horizontal places of each transfer's line."""
    points = re.findall(r'<polyline points="([^"]+)"', text)
    return [[point.split(",")[0] for point in line.split()] for line in points]


def test_transfers_with_one_common_order_are_straight_lines_side_by_side():
    text = drawn(a="1 3", b="1 2", c="2 3")
    places = lines(text)
    assert [len(set(line)) for line in places] == [1, 1, 1]
    assert len({line[0] for line in places}) == 3
    assert 'dasharray="5 4"' not in text
    assert "✕ node 0 killed" in text
    assert "A &lt;title&gt;" in text


def test_a_torn_transfer_is_dashed_with_a_cross_where_its_part_is_missing():
    text = drawn(a="1 3", b="2", c="2 3")
    assert text.count('stroke-dasharray="5 4"') == 1
    assert text.count("l12 12m0 -12l-12 12") == 1
    assert "t1: a +1; missing in b" in text


@pytest.mark.parametrize("number", range(50))
def test_a_transfer_moves_money_and_makes_none(number):
    made = transfer(1, number, SETS)
    assert made.banks in SETS
    assert sum(made.changes.values()) == 0
    assert sum(change < 0 for change in made.changes.values()) == 1
    assert transfer(1, number, SETS) == made


def test_a_bank_reads_in_an_envelope_what_was_put_into_it():
    made = transfer(1, 2, SETS)
    for bank, raw in envelopes(made, signer=user(), now=datetime.now(UTC)).items():
        read = read_movement(raw)
        assert read.transfer == made.name
        assert read.banks == made.banks
        assert read.change == made.changes[bank]
