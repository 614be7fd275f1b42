"""The order in which entries of several chains are given: that of the records, however blocks come.

A world is one order of records; each made an entry in all its chains, or none. Chains read their
part of the order, keep entries back, and write blocks, in any interleaving with the readers.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ordering_osn.api.multi.merge import LedgerEntry, MergedOrder, OrderedRecord, TornBundle
from ordering_osn.chain.bundles.metadata import BundleMetadata
from ordering_osn.chain.entries import EntryPlace

LOGS = ("a", "b", "c", "a+b", "b+c", "a+c", "a+b+c")


class Chain:
    """A chain that reads its part of the order, and its ledger."""

    def __init__(self, name, order):
        self.name = name
        self.stream = [one for one in order if name in one[0].to]
        self.read = 0
        self.pending = []
        self.blocks = []
        self.reader = None

    def step(self):
        if self.read < len(self.stream):
            record, makes = self.stream[self.read]
            self.read += 1
            if makes:
                self.pending.append(record)

    def cut(self):
        if self.pending:
            self.blocks.append(self.pending)
            self.pending = []

    def settled(self, log):
        for record in self.pending:
            if record.log == log:
                return record.offset
        return next((r.offset for r, _ in self.stream[self.read :] if r.log == log), 1000)


class Reader:
    """A `LedgerReader` of a chain."""

    def __init__(self, chain):
        self.chain = chain
        self.place = (0, 0)

    def seek(self, passed):
        blocks = self.chain.blocks
        number = 0
        while number < len(blocks) and passed(place_of(blocks[number][-1])):
            number += 1
        self.place = (number, 0)

    def peek(self):
        block, index = self.place
        if block >= len(self.chain.blocks):
            return None
        record = self.chain.blocks[block][index]
        bundle = None
        if len(record.to) > 1:
            bundle = BundleMetadata(index, b"%s:%d" % (record.log.encode(), record.offset), (), ())
        return LedgerEntry(place_of(record), block, index, b"", bundle)

    def skip(self):
        block, index = self.place
        last = index + 1 == len(self.chain.blocks[block])
        self.place = (block + 1, 0) if last else (block, index + 1)

    def settled(self, log):
        return self.chain.settled(log)


def place_of(record):
    return EntryPlace(record.log, record.offset)


@st.composite
def orders(draw):
    """Records in their order, each with whether it makes an entry; offsets have gaps."""
    offsets = dict.fromkeys(LOGS, 0)
    order = []
    drawn = st.tuples(st.sampled_from(LOGS), st.booleans(), st.integers(1, 3))
    for log, makes, gap in draw(st.lists(drawn, max_size=25)):
        record = OrderedRecord(log, offsets[log], tuple(log.split("+")), str(len(order)))
        offsets[log] += gap
        order.append((record, makes))
    return order


CHAIN_SETS = st.sets(st.sampled_from("abc"), min_size=1)


def read(order, names, start, random):
    """Read chains from a position in the order; gives (cursor, {chain: place}) for each entry."""
    chains = [Chain(name, order) for name in "abc"]
    for _ in range(random.choice([0, 10, 200])):  # what is in the ledgers before the reader comes
        random.choice([chain.step for chain in chains] + [chain.cut for chain in chains])()
    merged = MergedOrder({chain.name: Reader(chain) for chain in chains if chain.name in names})
    rest = [record for record, _ in order[start:] if names & set(record.to)]
    got = []
    for _ in range(10_000):
        action = random.randrange(8)
        if action < 3:
            random.choice(chains).step()
        elif action < 5:
            random.choice(chains).cut()
        elif action < 7:
            entry = merged.next()
            if entry is not None:
                got.append(
                    (entry.cursor, {chain: tuple(part.place) for chain, part in entry.parts})
                )
        elif not merged.waits:
            count = random.randint(1, 5)
            polled, rest = rest[:count], rest[count:]
            progress = {
                log: next((r.offset for r in rest if r.log == log), 1000)
                for log in LOGS
                if names & set(log.split("+"))
            }
            merged.take(polled, progress)
        done = all(c.read == len(c.stream) and not c.pending for c in chains)
        if done and not rest and not merged.waits:
            return got
    raise AssertionError("the reader waits for ever")


def expected(order, names, start):
    return [
        (record.cursor, dict.fromkeys(sorted(names & set(record.to)), (record.log, record.offset)))
        for record, makes in order[start:]
        if makes and names & set(record.to)
    ]


@given(orders(), CHAIN_SETS, st.randoms(use_true_random=False))
@settings(max_examples=200)
def test_any_interleaving_gives_the_order_of_the_records(order, names, random):
    assert read(order, names, 0, random) == expected(order, names, 0)


@given(orders(), CHAIN_SETS, st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_a_reader_that_resumes_at_any_cursor_gets_exactly_the_rest(order, names, random):
    whole = read(order, names, 0, random)
    for number, (cursor, _) in enumerate(whole):
        assert read(order, names, int(cursor) + 1, random) == whole[number + 1 :]


def of(*order):
    return [(OrderedRecord(log, 0, tuple(log.split("+")), log), makes) for log, makes in order]


def test_a_bundle_waits_for_the_slowest_of_the_chains_that_are_read_and_for_no_other():
    order = of(("a+b+c", True))
    a, b, c = (Chain(name, order) for name in "abc")
    merged = MergedOrder({"a": Reader(a), "b": Reader(b)})
    merged.take([order[0][0]], {})
    for chain in (a, b):
        assert merged.next() is None
        assert merged.waits
        chain.step()
        assert merged.next() is None
        chain.cut()
    assert [chain for chain, _ in merged.next().parts] == ["a", "b"]
    assert c.read == 0


def test_a_record_without_an_entry_is_waited_for_until_it_is_settled():
    order = of(("a", False), ("b", True))
    a, b = Chain("a", order), Chain("b", order)
    merged = MergedOrder({"a": Reader(a), "b": Reader(b)})
    merged.take([record for record, _ in order], {})
    b.step()
    b.cut()
    assert merged.next() is None
    a.step()
    assert merged.next().cursor == "b"


def test_a_block_that_is_written_while_its_ledger_is_read_loses_no_entry():
    order = of(("a", True))
    chain = Chain("a", order)

    class Late(Reader):
        """The block is written, and its record settled, right after it was looked for."""

        def peek(self):
            entry = super().peek()
            chain.step()
            chain.cut()
            return entry

    merged = MergedOrder({"a": Late(chain)})
    merged.take([order[0][0]], {})
    assert merged.next() is None
    assert [chain for chain, _ in merged.next().parts] == ["a"]


def test_parts_of_different_bundles_at_one_record_end_the_stream():
    order = of(("a+b", True))

    class Other(Reader):
        def peek(self):
            entry = super().peek()
            return entry._replace(bundle=BundleMetadata(0, b"another", (), ()))

    chains = [Chain(name, order) for name in "ab"]
    for chain in chains:
        chain.step()
        chain.cut()
    merged = MergedOrder({"a": Reader(chains[0]), "b": Other(chains[1])})
    merged.take([order[0][0]], {})
    with pytest.raises(TornBundle, match=r"record 0 of the log a\+b"):
        merged.next()


def test_a_bundle_that_is_not_in_all_ledgers_ends_the_stream():
    order = of(("a+b", True))
    a, b = Chain("a", order), Chain("b", [(order[0][0], False)])
    for chain in (a, b):
        chain.step()
        chain.cut()
    merged = MergedOrder({"a": Reader(a), "b": Reader(b)})
    merged.take([order[0][0]], {})
    with pytest.raises(TornBundle, match=r"record 0 of the log a\+b"):
        merged.next()
