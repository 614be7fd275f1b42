"""The rule on any log: beside a deliberately dumb one, after restarts, and among noise."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ordering_osn.chain.bundles.bundle import Bundle
from ordering_osn.chain.bundles.rule import BundleCounts, BundleRule, BundleVoid, RuleState
from ordering_osn.chain.bundles.saved import encode_state, read_head
from tests.ordering_osn.helpers.bundles import bundle, bundle_record, marker

pytestmark = pytest.mark.slow
CHAINS = ("chain-a", "chain-b", "chain-c")
OTHERS = ("chain-a", "chain-d", "chain-e")
WINDOW = 3
QUICK = settings(max_examples=150)


@cache
def made(number: int, expiry: int, chains=CHAINS) -> Bundle:
    return bundle(chains, nonce=number, expiry=expiry)


class Sent:
    """A record of a log, as the dumb rule sees it, and as bytes."""

    def __init__(self, kind, *content):
        self.kind, self.content = kind, content

    def __repr__(self):
        return f"{self.kind}{self.content}"

    @property
    def raw(self):
        if self.kind == "marker":
            chain, sequence, block = self.content
            return marker(chain, sequence, block=block)
        if self.kind == "bundle":
            number, expiry, chains, stamps = self.content
            return bundle_record(made(number, expiry, chains), *stamps)
        return self.content[0]


sequences = st.integers(0, 3)
markers = st.builds(
    lambda chain, sequence, odd: Sent("marker", chain, sequence, 10 * sequence + odd),
    st.sampled_from((*CHAINS, "chain-d")),
    sequences,
    st.sampled_from([0, 0, 0, 0, 15]),
)
bundles = st.builds(
    lambda number, expiry, chains, stamps: Sent("bundle", number, expiry, chains, stamps),
    st.integers(0, 6),
    st.sampled_from([0, 0, 0, 40, 90]),
    st.sampled_from([CHAINS] * 7 + [OTHERS]),
    st.tuples(sequences, sequences, sequences),
)
likely = st.builds(
    lambda number, sequence: Sent("bundle", number, 0, CHAINS, (sequence,) * 3),
    st.integers(0, 6),
    sequences,
)
noise = st.builds(
    lambda raw: Sent("noise", raw),
    st.sampled_from([None, b"", b"\xff", b"\x82\1", b"\x82\1\0", b"\x8a\1\0", b"\x0a\0"]),
)


def introduced(sequence):
    return [Sent("marker", chain, sequence, 10 * sequence) for chain in CHAINS]


logs = st.lists(
    st.one_of(
        markers.map(lambda sent: [sent]),
        bundles.map(lambda sent: [sent]),
        likely.map(lambda sent: [sent]),
        likely.map(lambda sent: [sent]),
        noise.map(lambda sent: [sent]),
        sequences.map(introduced),
    ),
    min_size=4,
    max_size=30,
).map(lambda groups: [sent for group in groups for sent in group])


def steps(log, rule, offsets):
    return [
        rule.step(offset, sent.raw, rule.chains) for offset, sent in zip(offsets, log, strict=True)
    ]


def fate(outcome):
    if isinstance(outcome, BundleCounts):
        return "COUNTS", outcome.bundle.id
    if isinstance(outcome, BundleVoid):
        return outcome.reason.name, outcome.chain
    return None


def fresh(window_max=WINDOW):
    return BundleRule(RuleState(CHAINS, 0, window_max=window_max))


# -- the dumb rule: everything anew from the whole prefix, for each record -------------------------


def newest_markers(prefix):
    newest = {}
    for sent in prefix:
        if sent.kind == "marker" and sent.content[0] in CHAINS:
            chain, sequence, block = sent.content
            if chain not in newest or (block > newest[chain][1] and sequence > newest[chain][0]):
                newest[chain] = (sequence, block)
    return {chain: sequence for chain, (sequence, _) in newest.items()}


def dumb_fates(log, offsets):
    fates = []
    for place, sent in enumerate(log):
        fates.append(dumb_fate(log[:place], fates, sent, offsets[place]))
    return fates


def dumb_fate(prefix, fates, sent, offset):
    if sent.kind == "noise":
        malformed = sent.content[0] is not None and sent.content[0].startswith(b"\x82\1")
        return ("MALFORMED", "") if malformed else None
    if sent.kind == "marker":
        return None
    number, expiry, chains, stamps = sent.content
    if chains != CHAINS:
        return "WRONG_CHAINS", ""
    counted = [each[1] for each in fates if each is not None and each[0] == "COUNTS"]
    if made(number, expiry).id in counted[-WINDOW:]:
        return "DUPLICATE", ""
    if expiry and offset > expiry:
        return "EXPIRED", ""
    newest = newest_markers(prefix)
    for chain in CHAINS:
        if chain not in newest:
            return "NO_MARKER", chain
    for chain, stamp in zip(CHAINS, stamps, strict=True):
        if stamp != newest[chain]:
            return ("STALE" if stamp < newest[chain] else "AHEAD"), chain
    return "COUNTS", made(number, expiry).id


@QUICK
@given(log=logs, gap=st.integers(1, 5))
def test_the_rule_decides_as_the_dumb_one_does(log, gap):
    offsets = [gap * place for place in range(len(log))]
    assert [fate(each) for each in steps(log, fresh(), offsets)] == dumb_fates(log, offsets)


@QUICK
@given(log=logs, data=st.data())
def test_a_node_that_begins_in_the_middle_decides_as_one_that_read_everything(log, data):
    """From a head, with the bundles of the chain's own blocks."""
    offsets = [2 * place for place in range(len(log))]
    whole = steps(log, fresh(), offsets)
    cut = data.draw(st.integers(0, len(log)))
    before = fresh()
    counted = [
        outcome.bundle.id
        for outcome in steps(log[:cut], before, offsets[:cut])
        if isinstance(outcome, BundleCounts)
    ]
    headed = read_head(encode_state(before.head), counted, window_max=WINDOW)

    assert headed == before.state
    assert steps(log[cut:], BundleRule(headed), offsets[cut:]) == whole[cut:]


posted_again = st.tuples(st.sampled_from(CHAINS), st.integers(0, 2))


@QUICK
@given(log=logs, extras=st.lists(st.lists(st.one_of(noise, posted_again), max_size=3)))
def test_copies_of_markers_older_ones_and_noise_anywhere_change_no_fate(log, extras):
    """Several nodes of a chain post the same marker; a node that is behind posts an older one."""
    offsets = [10 * place for place in range(len(log))]
    want = [fate(each) for each in steps(log, fresh(), offsets)]
    rule, have = fresh(), []
    extras = [*extras, *([] for _ in log)]
    for offset, sent, between in zip(offsets, log, extras, strict=False):
        have.append(fate(rule.step(offset, sent.raw, CHAINS)))
        for number, extra in enumerate(between, start=1):
            raw = extra.raw if isinstance(extra, Sent) else earlier(rule, *extra)
            rule.step(offset + number, raw, CHAINS)
    assert have == want


def earlier(rule, chain, steps_back):
    """A copy of a chain's newest marker, or an older one; None where there is none."""
    newest = rule.marker(chain)
    if newest is None or newest.sequence < steps_back or newest.config_block < 10 * steps_back:
        return None
    block = newest.config_block - 10 * steps_back
    return marker(chain, newest.sequence - steps_back, block=block)


@QUICK
@given(order=st.lists(st.integers(0, 9), min_size=5, max_size=40), ahead=st.integers(0, WINDOW))
def test_a_bundle_that_expires_within_a_window_counts_at_most_once_for_ever(order, ahead):
    """Its expiry is at most `window_max` offsets behind the one where it counted first."""
    log = introduced(0)
    first = {}
    for number in order:
        offset = len(log)
        expiry = first.setdefault(number, offset) + ahead
        log.append(Sent("bundle", number, expiry, CHAINS, (0, 0, 0)))
    outcomes = steps(log, fresh(), range(len(log)))
    counted = [each.bundle.id for each in outcomes if isinstance(each, BundleCounts)]
    assert len(set(counted)) == len(counted) == len(first)
