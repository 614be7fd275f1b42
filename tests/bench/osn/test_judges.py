"""The judges of chains: histories in which all is well, and planted violations that they find."""

import hashlib

import pytest

from bench.osn.judge import ChainPart, judge_chains
from bench.osn.money import BookEntry, books
from bench.osn.reading import ChainCopy, doubled

AB, AC, BC, ABC = ("a", "b"), ("a", "c"), ("b", "c"), ("a", "b", "c")
SETS = {"t1": AB, "t2": ABC, "t3": BC, "t4": AC, "t5": AB}


def digest(key, chain):
    return hashlib.sha256(f"{key}@{chain}".encode()).digest()


def part(key, chain, place=0, to=None):
    chains = to or SETS[key]
    siblings = tuple(digest(key, other) for other in chains if other != chain)
    return ChainPart(key, chains, 1 + place, 0, digest(key, chain), siblings)


def history(**orders):
    return {
        chain: [part(key, chain, place) for place, key in enumerate(orders[chain].split())]
        for chain in orders
    }


GOOD = {"a": "t1 t2 t4 t5", "b": "t1 t2 t3 t5", "c": "t2 t3 t4"}


def test_a_history_in_which_all_is_well_has_no_witness():
    verdict = judge_chains(history(**GOOD))
    assert verdict.witnesses == []
    assert (verdict.transfers, verdict.pairs) == (5, 3)


@pytest.mark.parametrize(
    ("changed", "torn"),
    [
        ({"b": "t2 t3 t5"}, {"t1": "torn: t1 is in a, and not in b"}),
        ({"c": "t3 t4"}, {"t2": "torn: t2 is in a+b, and not in c"}),
        ({"a": "t1 t2 t1 t4 t5"}, {"t1": "torn: t1 is in a 2 times"}),
        ({"b": "t1 t2", "a": "t1 t2 t4"}, {"t3": "torn: t3 is in c, and not in b"}),
    ],
)
def test_a_torn_transfer_has_a_witness(changed, torn):
    assert judge_chains(history(**{**GOOD, **changed})).torn == torn


def test_a_part_that_was_sent_again_and_is_there_twice_has_a_witness(tmp_path):
    copy = ChainCopy("a", tmp_path)
    copy.parts += history(a="t1 t2 t1")["a"]
    assert doubled({"a": [copy]}) == ["doubled: a has t1 2 times"]


def test_a_part_in_a_chain_that_the_transfer_is_not_for_is_torn():
    chains = history(**GOOD)
    chains["c"].append(part("t1", "c", 9))
    assert judge_chains(chains).torn == {"t1": "torn: t1 is in c, and is for a+b"}


def test_parts_that_name_different_chains_are_torn():
    chains = history(**GOOD)
    chains["b"][0] = part("t1", "b", to=ABC)
    assert list(judge_chains(chains).torn.values()) == [
        "torn: t1 is for a+b in a, and for a+b+c in b"
    ]


def test_a_part_that_is_not_the_envelope_of_its_siblings_metadata_is_torn():
    chains = history(**GOOD)
    exchanged = chains["b"][0]
    chains["b"][0] = ChainPart("t1", AB, 1, 0, b"another", exchanged.siblings)
    assert judge_chains(chains).torn == {
        "t1": "torn: t1 has another envelope in b than the block of a says"
    }


def test_two_chains_that_disagree_have_a_witness():
    verdict = judge_chains(history(**{**GOOD, "b": "t2 t1 t3 t5"}))
    assert verdict.inverted == ["inverted: a has t1 before t2, b has them the other way round"]
    assert verdict.torn == {}
    assert verdict.cycle


def test_a_cycle_is_found_although_each_two_chains_agree():
    verdict = judge_chains(history(a="t1 t4", b="t3 t1", c="t4 t3"))
    assert verdict.inverted == []
    assert verdict.pairs == 0
    assert verdict.cycle.startswith("cycle: ")
    assert verdict.cycle.count(" before ") == 3


# -- money -----------------------------------------------------------------------------------------


def entries(**orders):
    """Openings of 10, and changes as `t1-3`."""
    made = {}
    for chain, text in orders.items():
        made[chain] = [BookEntry(f"opening@{chain}", 10, opening=True)]
        for word in text.split():
            key, sign, amount = word.partition("-") if "-" in word else word.partition("+")
            made[chain].append(BookEntry(key, int(sign + amount)))
    return made


def test_money_is_conserved_after_each_whole_transfer():
    result = books(entries(a="t1-3 t2+1", b="t1+3 t3-2", c="t2-1 t3+2"))
    assert result.balances == {"a": 8, "b": 11, "c": 11}
    assert (result.opened, result.points, result.points_off) == (30, 6, 0)
    assert result.witness == ""


def test_money_that_left_one_bank_and_came_to_no_other_is_missing_at_each_later_point():
    result = books(entries(a="t1-3 t2-1", b="t2+1"))
    assert (result.points, result.points_off) == (4, 2)
    assert result.witness == "money: after t1 the banks hold 17, not 20"


def test_a_transfer_that_is_counted_twice_makes_money():
    result = books(entries(a="t1-3 t2-1", b="t1+3 t2+1 t1+3"))
    assert result.points_off == 1
    assert result.witness == "money: after t2 the banks hold 23, not 20"


def test_there_is_no_common_point_inside_of_a_disagreement():
    result = books(entries(a="t1-3 t2-1 t3-1", b="t2+1 t1+3 t3+1"))
    assert (result.points, result.points_off) == (4, 0)
