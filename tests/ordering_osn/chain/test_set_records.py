"""What the core does with the records of a set's log, and with a transaction that stands twice."""

import pytest

from ordering_osn.chain.actions import Refuse, SetOutcome
from ordering_osn.chain.bundles.bundle import make_bundle
from ordering_osn.chain.records import Connect, Regular, RegularKind, TimeToCut
from tests.ordering_osn.helpers.bundles import AB, Scribe, bundle_record, marker
from tests.ordering_osn.helpers.cores import Stepped, config, normal, rules, update

FOREIGN = {
    "transaction": Regular(normal("t"), 0, RegularKind.NORMAL),
    "config": Regular(config(1, update("c")), 0, RegularKind.CONFIG),
    "copy": Regular(normal("t"), 0, RegularKind.NORMAL, 1),
    "time to cut": TimeToCut(1),
    "connect": Connect(),
    "no record": b"no record",
    "no value": None,
}


def introduced(window_max=100):
    """A chain that cuts a block for each transaction; the markers of its set stand."""
    stepped = Stepped(rules(messages_max=1), window_max=window_max)
    for chain in AB:
        stepped.step(marker(chain), log=AB)
    return stepped


def step_part(stepped, name):
    """Step a bundle whose part for this chain is the transaction `name`."""
    envelopes = {chain: normal(name, channel=chain) for chain in AB}
    return stepped.step(bundle_record(make_bundle(envelopes, signer=Scribe())), log=AB)


@pytest.mark.parametrize("what", FOREIGN)
def test_a_record_of_a_set_s_log_goes_to_the_rule_of_the_set_and_to_nothing_else(what):
    stepped = Stepped(rules(messages_max=10))
    stepped.normal("pending")  # what a TimeToCut would cut
    before = stepped.chain.wanted_cut, stepped.chain.ingress_open, stepped.sequence
    actions = stepped.step(FOREIGN[what], log=AB)
    assert [type(action) for action in actions] == [SetOutcome]
    assert stepped.chain.pending == 1
    assert stepped.writes == []
    assert (stepped.chain.wanted_cut, stepped.chain.ingress_open, stepped.sequence) == before


def test_a_part_is_ordered_although_its_transaction_was_and_is_in_the_window_as_of_then():
    stepped = introduced(window_max=3)
    for name in ("t1", "t2"):
        stepped.normal(name)
    step_part(stepped, "t1")
    for name in ("t3", "t4"):
        stepped.normal(name)
    assert stepped.named == [["t1"], ["t2"], ["t1"], ["t3"], ["t4"]]
    # The three newest are t1 (the part), t3 and t4: so t2 may be ordered again, but not t1.
    (refused,) = stepped.normal("t1")
    assert isinstance(refused, Refuse)
    stepped.normal("t2")
    assert stepped.named[5:] == [["t2"]]


def test_the_place_of_a_transaction_that_stands_twice_is_that_of_its_part():
    stepped = introduced()
    stepped.normal("t1")
    step_part(stepped, "t1")
    (transaction,) = {name for write in stepped.writes for name in write.transactions}
    assert stepped.chain.find(transaction) == (2, 0)
