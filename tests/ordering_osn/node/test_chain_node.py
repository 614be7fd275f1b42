"""A node of the ordering service, on a log in memory: its loop, its answers, its configs."""

import asyncio
import itertools
import re

import pytest

from ordering_osn.chain.blocks import consenter_of, last_config_of
from ordering_osn.chain.records import Regular, RegularKind, TimeToCut, decode, encode
from ordering_osn.chain.transactions import transaction_id
from ordering_osn.protos import Envelope
from tests.helpers.small import until
from tests.ordering_osn.helpers import configs
from tests.ordering_osn.helpers.filters import admit_update
from tests.ordering_osn.helpers.small import (
    LONE,
    SHARED,
    Nodes,
    accepted,
    batch_of,
    blocks,
    counted,
    healthy,
    log_of,
    quick,
    submit,
    transaction,
    until_alike,
    until_ordered,
)

pytestmark = pytest.mark.slow
TWO_CHAINS = ("chain-a", "chain-b")


def test_genuine_transactions_stand_in_blocks_of_ten_in_the_order_they_were_sent(tmp_path):
    with Nodes(LONE, tmp_path) as osn:
        node = osn.start("n1", quick(timeout="60s"))  # only full batches are cut
        healthy(node)
        sent = configs.real_envelopes()
        accepted(node, *sent)
        assert until_ordered(node, 40) == sent
        assert [len(block.data.data) for block in blocks(node)] == [1, 10, 10, 10, 10]
        place = asyncio.run(node.get("chain-a").receipt(transaction_id(sent[23]), 60.0))
        assert place == (3, 3)


def test_the_metrics_count_the_order_entries_that_each_chain_reads_and_drops(tmp_path, monkeypatch):
    # Init: one collector orders both chains, so each chain reads the entries of the other, too.
    (collector,) = SHARED.collectors
    assert set(collector.bag) == {"chain-a", "chain-b", "chain-a+chain-b"}
    with Nodes(SHARED, tmp_path, stalled_s=60.0, probe_s=1e9) as osn:
        node = osn.running("n1", quick(), quick("chain-b"))
        ends = osn.small.driver.last_stable_offsets

        # Test: unequal numbers, and none to both chains.
        accepted(node, *[transaction() for _ in range(3)])
        accepted(node, *[transaction("chain-b") for _ in range(7)])
        until_ordered(node, 3)
        until_ordered(node, 7, "chain-b")

        # Check: an entry for each offset of a log, with the node's own records: cuts, probes, and
        # in the log of both chains a marker of each.
        a, b, both = log_of(osn, "chain-a"), log_of(osn, "chain-b"), log_of(osn, *TWO_CHAINS)
        until(lambda: ends([both])[both] == 2)
        until(lambda: _entries_counted(node, "read") == _both(ends([a, b])[a], ends([a, b])[b]))
        end_a, end_b = ends([a, b])[a], ends([a, b])[b]
        assert 3 < end_a < end_b
        assert _entries_counted(node, "dropped") == {
            ("chain-a", "chain-b"): end_b,
            ("chain-b", "chain-a"): end_a,
        }
        # What is read after the last look before a node stops counts, too.
        monkeypatch.setattr(node.get("chain-a").order, "due", lambda _: False)
        accepted(node, transaction())
        until_ordered(node, 4)
        osn.stop("n1")
        assert _entries_counted(node, "read")["chain-a", "chain-a"] > end_a


def _both(end_a, end_b):
    """Give by (chain, log) what both chains read."""
    ends = {"chain-a": end_a, "chain-b": end_b, "chain-a+chain-b": 2}
    return {(chain, log): end for chain in TWO_CHAINS for log, end in ends.items()}


def _entries_counted(node, kind):
    """Give a counter of entries as the page shows it, by (chain, log); without those at 0."""
    form = rf'^amcast_osn_entries_{kind}{{channel="(.+)",log="(.+)"}} (.+)$'
    samples = re.findall(form, node.metrics.expose().decode(), re.MULTILINE)
    return {(chain, log): float(count) for chain, log, count in samples if float(count)}


def test_three_nodes_that_race_to_cut_write_the_same_blocks(tmp_path):
    with Nodes(LONE, tmp_path) as osn:
        nodes = [osn.start(name, quick(timeout="10ms")) for name in ("n1", "n2", "n3")]
        healthy(*nodes)
        sent = [transaction() for _ in range(60)]
        for node, one in zip(itertools.cycle(nodes), sent, strict=False):
            accepted(node, one)
        for node in nodes:
            assert until_ordered(node, 60) == sent
        until_alike(*nodes)


def test_a_node_that_comes_late_writes_the_blocks_that_the_others_have(tmp_path):
    with Nodes(LONE, tmp_path) as osn:
        first = osn.running("n1", quick())
        accepted(first, *[transaction() for _ in range(35)])
        until_ordered(first, 35)
        late = osn.running("n2", quick())
        until_ordered(late, 35)
        until_alike(first, late)


def test_a_forged_time_to_cut_of_a_far_block_is_counted_and_stops_nobody(tmp_path):
    with Nodes(LONE, tmp_path) as osn:
        node = osn.running("n1", quick())
        for raw in (encode(TimeToCut(99)), encode(TimeToCut(1)), b"\xff\xff", None):
            osn.small.log.write(log_of(osn), raw)
        accepted(node, transaction())
        until_ordered(node, 1)
        assert node.health() == []
        for cause in ("cut_future", "cut_empty"):
            assert counted(node, "records_ignored", "chain-a", cause) == 1
        assert counted(node, "records_ignored", "chain-a", "unparseable") == 2


def test_blocks_say_where_the_log_is_read_on_and_a_restart_reads_no_record_before(tmp_path):
    with Nodes(LONE, tmp_path) as osn:
        node = osn.running("n1", quick(timeout="60s"))
        accepted(node, *[transaction() for _ in range(10)])
        until_ordered(node, 10)
        (block,) = blocks(node)[1:]
        said = consenter_of(block)
        assert said.last_offset_persisted == 10
        assert said.cursor.startswith(b"1/@chain-a/0/0/10/")
        osn.stop("n1")
        osn.small.log.trim(log_of(osn), 10)
        again = osn.running("n1")
        accepted(again, *[transaction() for _ in range(10)])
        until_ordered(again, 20)


# -- what clients are told ------------------------------------------------------------------


def test_a_transaction_that_is_sent_again_stands_once_and_both_are_told_success(tmp_path):
    with Nodes(LONE, tmp_path) as osn:
        nodes = [osn.start(name, quick()) for name in ("n1", "n2")]
        healthy(*nodes)
        repeated = transaction()
        accepted(nodes[0], repeated, repeated)
        accepted(nodes[1], repeated)
        until_ordered(nodes[0], 1)
        accepted(nodes[1], repeated)
        other = transaction()
        accepted(nodes[1], other)
        for node in nodes:
            assert until_ordered(node, 2) == [repeated, other]
            # A record of the last one, whose transaction is in a block, is not even appended.
            assert counted(node, "transactions_refused", "chain-a", "replayed") <= 2
        until_alike(*nodes)


def test_what_cannot_be_ordered_is_answered_with_its_status_and_reaches_no_log(tmp_path):
    with Nodes(LONE, tmp_path) as osn:
        node = osn.running("n1", quick())
        for envelope, status, text in (
            (b"", 400, ""),
            (b"garbage", 400, ""),
            (transaction("chain-x"), 404, "no channel 'chain-x'"),
            (transaction("chain-b+chain-a"), 400, "'chain-b+chain-a' names several chains"),
        ):
            ((found, info),) = submit(node, envelope)
            assert (found, text in info) == (status, True), info
        assert osn.small.log.last_stable_offsets([log_of(osn)])[log_of(osn)] == 0


# -- configs --------------------------------------------------------------------------------


def configured(config, update):
    """Make the record that a node posts for an update."""
    envelope, sequence = admit_update(config, update, now=configs.NOW, signer=configs.orderer())
    return encode(Regular(envelope, sequence, RegularKind.CONFIG))


def test_a_config_update_changes_the_batch_size_of_all_nodes_at_once(tmp_path):
    with Nodes(LONE, tmp_path) as osn:
        nodes = [osn.start(name, quick(timeout="60s")) for name in ("n1", "n2")]
        healthy(*nodes)
        accepted(nodes[0], *[transaction() for _ in range(12)])
        accepted(nodes[1], batch_of(nodes[1].get("chain-a").config, 3))
        for node in nodes:
            until(lambda: node.get("chain-a").config.sequence == 1)  # noqa: B023
        accepted(nodes[0], *[transaction() for _ in range(6)])
        until_ordered(nodes[0], 19)
        until_alike(*nodes)
        sizes = [len(block.data.data) for block in blocks(nodes[0])]
        assert sizes == [1, 10, 2, 1, 3, 3]
        assert [last_config_of(block) for block in blocks(nodes[0])] == [0, 0, 0, 3, 3, 3]
        osn.stop("n1")
        again = osn.running("n1")
        assert again.get("chain-a").config.sequence == 1


def test_transactions_that_were_judged_under_an_old_config_are_judged_again_and_ordered(tmp_path):
    with Nodes(LONE, tmp_path) as osn:
        nodes = [osn.start(name, quick(timeout="30ms")) for name in ("n1", "n2")]
        healthy(*nodes)
        config = nodes[0].get("chain-a").config
        sent = [transaction() for _ in range(20)]
        # The update stands in the log before those that were let in before it.
        records = [encode(Regular(one, 0, RegularKind.NORMAL)) for one in sent]
        for record in (records[0], configured(config, batch_of(config, 3)), *records[1:]):
            osn.small.log.write(log_of(osn), record)
        for node in nodes:
            found = until_ordered(node, 21)
            assert sorted(found[:1] + found[2:]) == sorted(sent)
        until_alike(*nodes)
        for node in nodes:
            assert counted(node, "records_reposted", "chain-a") == 19


def test_what_no_node_let_in_is_judged_at_all_nodes_and_not_ordered(tmp_path):
    """Written straight to the log, as current: by no Writer, with a wrong signature, too large."""
    with Nodes(LONE, tmp_path) as osn:
        nodes = [osn.start(name, quick(timeout="30ms")) for name in ("n1", "n2")]
        healthy(*nodes)
        config = nodes[0].get("chain-a").config
        forged = Envelope.FromString(transaction())
        forged.signature = Envelope.FromString(transaction()).signature
        stranger = Envelope.FromString(transaction())
        stranger.signature = configs.orderer().sign(stranger.payload)
        large = transaction(data=b"x" * config.parameters.bytes_absolute)
        changed = Envelope.FromString(decode(configured(config, batch_of(config, 3))).payload)
        changed.signature = forged.signature
        good = transaction()
        for sequence in (0, 7):
            for one in (forged, stranger):
                raw = one.SerializeToString()
                osn.small.log.write(log_of(osn), encode(Regular(raw, sequence, RegularKind.NORMAL)))
            osn.small.log.write(log_of(osn), encode(Regular(large, sequence, RegularKind.NORMAL)))
        raw = changed.SerializeToString()
        osn.small.log.write(log_of(osn), encode(Regular(raw, 0, RegularKind.CONFIG)))
        osn.small.log.write(log_of(osn), encode(Regular(good, 0, RegularKind.NORMAL)))
        for node in nodes:
            assert until_ordered(node, 1) == [good]
            assert counted(node, "transactions_refused", "chain-a", "invalid") == 7
        until_alike(*nodes)


def test_a_config_that_is_judged_again_closes_the_ingress_until_it_is_back(tmp_path):
    with Nodes(LONE, tmp_path, ready_s=0.1) as osn:
        driver = osn.faulty()
        node = osn.running("n1", quick(), driver=driver)
        config = node.get("chain-a").config
        longer = configs.update(config, lambda new: configs.set_timeout(new, "70ms"))
        # Both were made for the same config, and touch different values: both are valid.
        driver.held = []
        for update in (batch_of(config, 3), longer):
            osn.small.log.write(log_of(osn), configured(config, update))
        until(lambda: driver.held)
        until(lambda: not node.get("chain-a").status.ingress_open)
        ((status, info),) = submit(node, transaction())
        assert status == 503
        assert "judged again" in info
        driver.release()
        until(lambda: node.get("chain-a").config.sequence == 2)
        until(lambda: node.get("chain-a").status.ingress_open)
        accepted(node, transaction())
        until_ordered(node, 3)
