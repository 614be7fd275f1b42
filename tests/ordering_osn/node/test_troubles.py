"""A node with a dead loop, a lost log or a full disk; and blocks that it gets from a peer."""

import shutil

import pytest

from multicast.errors import TopicChanged
from ordering_osn.chain.blocks import consenter_of
from ordering_osn.chain.records import Regular, RegularKind, TimeToCut, encode
from ordering_osn.ledger.errors import LedgerDamaged, LedgerFull
from tests.helpers.small import until
from tests.ordering_osn.helpers import configs
from tests.ordering_osn.helpers.small import (
    LONE,
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


def test_a_node_whose_loop_died_answers_503_and_is_unhealthy(tmp_path):
    with Nodes(LONE, tmp_path) as osn:
        node = osn.running("n1", quick())
        chain = node.get("chain-a")
        chain.ledger.close()  # as a disk that is gone: nothing can be appended
        accepted(node, *[transaction() for _ in range(10)])
        until(node.health)
        ((component, reason),) = node.health()
        assert component == "chain-a/0"
        assert "its loop ended" in reason
        assert chain.errored
        ((status, info),) = submit(node, transaction())
        assert status == 503
        assert "its loop ended" in info


def test_a_node_whose_ledger_was_removed_answers_503_and_is_unhealthy(tmp_path):
    with Nodes(LONE, tmp_path) as osn:
        node = osn.running("n1", quick())
        accepted(node, transaction())
        shutil.rmtree(tmp_path / "n1" / "chain-a" / "ledger")
        until(node.health)
        assert "its ledger cannot be read" in str(node.health())
        ((status, info),) = submit(node, transaction())
        assert status == 503
        assert "restore its folder" in info


def flip(file, place):
    """Change a bit of a file, or change it back."""
    with file.open("r+b") as changed:
        changed.seek(place)
        (byte,) = changed.read(1)
        changed.seek(place)
        changed.write(bytes([byte ^ 1]))


def test_a_node_with_an_old_block_that_cannot_be_read_serves_all_else(tmp_path):
    with Nodes(LONE, tmp_path) as osn:
        # Init: two blocks in a file, and none of them in memory.
        node = osn.running("n1", quick())
        for number in (1, 2):
            accepted(node, transaction())
            until_ordered(node, number)
        osn.stop("n1")
        node = osn.running("n1")

        # Test: the disk loses a byte of block 1, and somebody asks for it.
        ledger = node.get("chain-a").ledger
        (file,) = (tmp_path / "n1" / "chain-a" / "ledger").glob("*.blocks")
        place = file.read_bytes().index(ledger.read(1)) + 10
        flip(file, place)
        with pytest.raises(LedgerDamaged):
            ledger.read(1)
        until(node.health)

        # Check: it says so, and what does not need the block goes on.
        ((component, reason),) = node.health()
        assert component == "chain-a/0"
        assert f"lacks block 1: {file}" in reason
        assert not node.get("chain-a").errored
        accepted(node, transaction())
        until(lambda: ledger.height == 4)
        for number in (0, 2, 3):
            ledger.read(number)
        assert node.health()
        flip(file, place)
        healthy(node)


def test_a_posting_without_an_answer_is_503_and_sent_again_is_ordered_once(tmp_path):
    with Nodes(LONE, tmp_path) as osn:
        driver = osn.faulty()
        node = osn.running("n1", quick(timeout="30ms"), driver=driver)
        envelope = transaction()
        driver.lost = 1
        ((status, info),) = submit(node, envelope)
        assert status == 503
        assert "sent again, it is ordered once" in info
        accepted(node, envelope)
        assert until_ordered(node, 1) == [envelope]


def test_a_topic_that_was_made_again_is_a_named_error_and_no_hole(tmp_path):
    with Nodes(LONE, tmp_path) as osn:
        driver = osn.faulty()

        def changed(topics, **options):
            del topics, options
            raise TopicChanged("topic chains was deleted and made again")

        driver.topic_ids = changed
        node = osn.start("n1", quick(), driver=driver)
        until(lambda: "made again" in str(node.health()))
        assert submit(node, transaction())[0][0] == 503


def test_a_config_that_makes_a_nodes_signature_worthless_is_named_by_its_health(tmp_path):
    def others_sign(config):
        group = config.channel_group.groups["Orderer"]
        admins = configs.signature_policy(
            configs.out_of(1, configs.by(0)), configs.role("ADMIN", "OrdererMSP")
        )
        configs.set_policy(group, "BlockValidation", admins)

    with Nodes(LONE, tmp_path) as osn:
        node = osn.running("n1", quick(timeout="30ms"))
        accepted(node, configs.update(node.get("chain-a").config, others_sign))
        until(lambda: "accept no block that this node signs" in str(node.health()))
        accepted(node, transaction())  # its data is ordered; another node may sign it, too


# -- blocks from a peer ---------------------------------------------------------------------


class Peer:
    """The blocks of another node in this process."""

    names = ("n1",)

    def __init__(self, node):
        self.node = node
        self.calls = 0

    def blocks(self, peer, channel, start):
        assert peer == "n1"
        self.calls += 1
        ledger = self.node.get(channel).ledger
        return (ledger.read(number) for number in range(start, ledger.height))


def behind_retention(osn, *, sent=35):
    """Make a node that has all, and the folder of one that has less than the log still holds."""
    full = osn.start("n1", quick(timeout="30ms"))
    stopped = osn.start("n2", quick(timeout="30ms"))
    healthy(full, stopped)
    accepted(full, *[transaction() for _ in range(12)])
    until_ordered(stopped, 12)
    osn.stop("n2")
    accepted(full, batch_of(full.get("chain-a").config, 4))
    until(lambda: full.get("chain-a").config.sequence == 1)
    accepted(full, *[transaction() for _ in range(sent - 13)])
    until_ordered(full, sent)
    osn.small.log.trim(
        log_of(osn), osn.small.log.last_stable_offsets([log_of(osn)])[log_of(osn)] - 2
    )
    return full


def test_a_node_that_the_log_left_behind_gets_the_blocks_from_a_peer_and_goes_on(tmp_path):
    with Nodes(LONE, tmp_path) as osn:
        full = behind_retention(osn)
        peer = Peer(full)
        node = osn.running("n2", peers=peer)
        assert peer.calls
        until_alike(full, node)
        assert node.get("chain-a").config.sequence == 1
        accepted(node, *[transaction() for _ in range(6)])
        until_ordered(node, 41)
        until_alike(full, node)


# -- the disk, and looking at health ----------------------------------------------------------


class FullDisk:
    """The `append` of a ledger whose disk is full for a while."""

    def __init__(self, append):
        self._append = append
        self.full = True

    def __call__(self, number, raw):
        if self.full:
            raise LedgerFull("no space left on device")
        self._append(number, raw)


def test_a_node_whose_disk_is_full_lets_nothing_in_and_goes_on_when_there_is_room(tmp_path):
    with Nodes(LONE, tmp_path) as osn:
        node = osn.running("n1", quick())
        chain = node.get("chain-a")
        chain.ledger.append = disk = FullDisk(chain.ledger.append)
        sent = [transaction() for _ in range(10)]
        accepted(node, *sent)
        until(lambda: "no space left" in str(node.health()))
        assert submit(node, transaction())[0][0] == 503
        disk.full = False
        assert until_ordered(node, 10) == sent
        healthy(node)


def test_looking_at_the_health_writes_nothing_and_can_be_done_before_the_log_is_reached(tmp_path):
    with Nodes(LONE, tmp_path) as osn:
        driver = osn.faulty()
        driver.away = True
        node = osn.start("n1", quick(), driver=driver)
        for _ in range(100):
            node.health()
        until(node.health)
        driver.away = False
        healthy(node)
        for _ in range(100):
            assert node.health() == []
        assert osn.small.log.last_stable_offsets([log_of(osn)])[log_of(osn)] == 0


def test_an_idle_chain_whose_log_was_dropped_behind_its_last_block_goes_on(tmp_path):
    with Nodes(LONE, tmp_path) as osn:
        node = osn.running("n1", quick(timeout="30ms"))
        repeated = transaction()
        accepted(node, repeated, transaction())
        until_ordered(node, 2)
        # What follows leads to no block, and is not there any more when the node starts again.
        for _ in range(5):
            osn.small.log.write(log_of(osn), encode(TimeToCut(1)))
        until(lambda: counted(node, "records_ignored", "chain-a", "cut_stale") == 5)
        osn.stop("n1")
        osn.small.log.trim(
            log_of(osn), osn.small.log.last_stable_offsets([log_of(osn)])[log_of(osn)]
        )
        again = osn.running("n1")
        accepted(again, transaction(), repeated)
        until_ordered(again, 3)
        assert consenter_of(blocks(again)[-1]).last_offset_persisted >= 9


def test_a_client_that_gives_no_more_records_is_replaced(tmp_path):
    with Nodes(LONE, tmp_path, stalled_s=0.3) as osn:
        driver = osn.faulty()
        node = osn.running("n1", quick(timeout="30ms"), driver=driver)
        accepted(node, transaction())
        until_ordered(node, 1)
        for reader in driver.readers:
            reader.deaf = True
        at = log_of(osn)
        osn.small.log.write(at, encode(Regular(transaction(), 0, RegularKind.NORMAL)))
        until_ordered(node, 2)
        healthy(node)
