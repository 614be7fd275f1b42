"""The chain file: what it stands for, and one sentence for each mistake in it."""

from __future__ import annotations

import pytest

from ordering_osn.chain.bundles import bundle
from topology.chains.chain_file import CHAINS_MAX, parse
from topology.interests import InvalidInterests

MANY = [f"c{number:02}" for number in range(65)]


def test_a_chain_is_a_partition_and_a_consumer_that_counts_once_for_each_node():
    file = parse(
        'topic = "T"\nsets = [["b", "a"], {chains = ["c", "a", "b"], rate = 5}]\n'
        "[chains]\nb = {nodes = 4, rate = 100}\na = {}\nc = {nodes = 2}\n"
    )
    assert (file.topic, file.partitions) == ("T", ("b", "a", "c"))
    assert file.destinations == (("a", "b"), ("a", "b", "c"))
    assert [(c.name, c.interest, c.weight) for c in file.consumers] == [
        ("b", ("b",), 4.0),
        ("a", ("a",), 1.0),
        ("c", ("c",), 2.0),
    ]
    assert file.rates == {"a+b+c": 5.0, "b": 100.0}


@pytest.mark.parametrize(
    ("sets", "expected"),
    [
        ('"pairs"', "a+b a+c a+d b+c b+d c+d"),
        ('["ring"]', "a+b b+c c+d a+d"),
        ('["all", "ring"]', "a+b+c+d a+b b+c c+d a+d"),
    ],
)
def test_a_word_stands_for_several_sets(sets, expected):
    file = parse(f'topic = "T"\nchains = ["a", "b", "c", "d"]\nsets = {sets}')
    assert ["+".join(to) for to in file.destinations] == expected.split()


def test_the_rate_of_a_word_is_that_of_each_of_its_sets():
    file = parse(
        'topic = "T"\nchains = ["a", "b", "c"]\nsets = [{chains = "pairs", rate = 0.5}, "all"]'
    )
    assert file.rates == {"a+b": 0.5, "a+c": 0.5, "b+c": 0.5}


def test_a_set_has_at_most_as_many_chains_as_a_bundle():
    assert CHAINS_MAX == bundle.CHAINS_MAX
    most = parse(f'topic = "T"\nchains = {MANY[:64]}\nsets = "all"')
    assert len(most.destinations[0]) == 64


def test_limits_and_hosts_are_those_of_the_interest_file():
    file = parse(
        'topic = "T"\nchains = ["a", "b"]\n[limits]\nlevels_max = 2\n'
        '[hosts]\nnames = ["h"]\nlatency = [[1]]\n'
    )
    assert file.limits.levels_max == 2
    assert file.hosts is not None


HUGE = "9" * 400
AB = 'topic = "T"\nchains = ["a", "b"]\n'
TABLE = 'topic = "T"\n[chains]\nb = {}\n'


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("topic = ", "the chain file is not TOML"),
        ('chains = ["a"]', "the chain file has no 'topic'"),
        ('topic = "T"', "the chain file has no 'chains'"),
        (AB + "rate = 3", "the chain file has an unknown key 'rate'; known: topic"),
        ('topic = "T/"\nchains = ["a"]', "topic 'T/' is not a valid name"),
        ('topic = "T"\nchains = 3', "chains is 3, not a list of names or a table"),
        ('topic = "T"\nchains = []', "chains is empty: name at least one chain"),
        ('topic = "T"\nchains = [["a"]]', "chain ['a'] is not a valid name"),
        ('topic = "T"\nchains = ["A"]', "chain 'A' is not a valid name: use 1 to 238 characters"),
        ('topic = "T"\nchains = ["9a"]', "chain '9a' is not a valid name"),
        ('topic = "T"\nchains = ["a_b"]', "chain 'a_b' is not a valid name"),
        ('topic = "T"\nchains = ["a\\n"]', "chain 'a\\n' is not a valid name"),
        ('topic = "T"\n[chains]\n"a+b" = {}', "chain 'a+b' is not a valid name"),
        (f'topic = "T"\nchains = ["{"a" * 241}"]', "is not a valid name"),
        ('topic = "T"\nchains = ["a", "b", "a"]', "chain a is named twice"),
        (TABLE + "a = 3", "chain a is 3, not a table such as {nodes = 4, rate = 100.0}"),
        (TABLE + 'sets = "pairs"', "write topic and sets above [chains]"),
        (TABLE + "a = {node = 3}", "chain a has an unknown key 'node'; known: nodes, rate"),
        (TABLE + "a = {nodes = 0}", "nodes of chain a is 0, not a whole number from 1 to 1e+15"),
        (TABLE + "a = {nodes = 1.5}", "nodes of chain a is 1.5, not a whole number"),
        (TABLE + "a = {nodes = true}", "nodes of chain a is True, not a whole number"),
        (TABLE + "a = {rate = -1}", "rate of chain a is -1, not a number from 0 to 1e+15"),
        (TABLE + "a = {rate = nan}", "rate of chain a is nan, not a number from 0 to"),
        (TABLE + f"a = {{rate = {HUGE}}}", "rate of chain a is 9999999999"),
        (TABLE + f"a = {{nodes = {HUGE}}}", "nodes of chain a is 9999999999"),
        (TABLE + "a = {rate = 1e308}", "rate of chain a is 1e+308, not a number from 0 to 1e+15"),
        (TABLE + "a = {rate = true}", "rate of chain a is True, not a number"),
        (AB + "sets = 3", "sets is 3, not a list or one of pairs, ring, all"),
        (AB + 'sets = "everyone"', "entry 1 of sets is 'everyone', not one of pairs, ring, all"),
        (AB + "sets = [7]", "entry 1 of sets is 7, not a list of chains, a table, or one of"),
        (AB + "sets = [[]]", "entry 1 of sets is empty: name two chains or more"),
        (AB + 'sets = [["a"]]', "entry 1 of sets is the single chain a, whose own log is always"),
        (AB + 'sets = [["a", "z"]]', "entry 1 of sets names 'z', which is not in chains"),
        (AB + 'sets = [["a", "a"]]', "entry 1 of sets names chain a twice"),
        (AB + 'sets = ["all", ["b", "a"]]', "set a+b is named twice: leave out one of the two"),
        (AB + "sets = [{rate = 1}]", "entry 1 of sets has no 'chains'"),
        (AB + 'sets = [{chains = "all", nodes = 1}]', "entry 1 of sets has an unknown key 'nodes'"),
        (AB + 'sets = [{chains = "all", rate = "x"}]', "rate of entry 1 of sets is 'x', not a"),
        (
            'topic = "T"\nchains = ["a"]\nsets = "pairs"',
            "entry 1 of sets is 'pairs', but there is only the chain a",
        ),
        (
            f'topic = "T"\nchains = {MANY}\nsets = "all"',
            "entry 1 of sets has 65 chains, and a transaction has at most 64: name fewer",
        ),
        (f'topic = "T"\nchains = {MANY}\nsets = [{MANY}]', "entry 1 of sets has 65 chains"),
    ],
)
def test_a_mistake_is_one_sentence(text, sentence):
    with pytest.raises(InvalidInterests) as caught:
        parse(text)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_readers_are_consumers_of_several_chains_with_a_small_weight():
    file = parse(
        'topic = "T"\nchains = ["a", "b", "c"]\nsets = "pairs"\nreaders = [["c", "a"], "all"]'
    )
    assert [(c.name, c.interest, c.weight) for c in file.consumers[3:]] == [
        ("_reader-1", ("a", "c"), 0.1),
        ("_reader-2", ("a", "b", "c"), 0.1),
    ]


@pytest.mark.parametrize(
    ("readers", "expected"),
    [
        ("7", "readers is 7, not a list or one of pairs, ring, all"),
        ('[["a", "x"]]', "entry 1 of readers names 'x', which is not in chains: add it there"),
        ('[["a", "b"], "all"]', "readers name a+b twice: leave out one of the two"),
        ('[{chains = "all"}]', "entry 1 of readers is a table: name the chains in a list"),
    ],
)
def test_a_mistake_in_readers_is_one_sentence(readers, expected):
    with pytest.raises(InvalidInterests) as wrong:
        parse(f'topic = "T"\nchains = ["a", "b"]\nreaders = {readers}')
    assert str(wrong.value) == expected
