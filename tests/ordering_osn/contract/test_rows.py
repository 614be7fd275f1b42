"""Rows of Fabric's table for the Kafka chain that need a whole node, on a log in memory."""

import pytest

from multicast.errors import ClusterUnreachable, NotAuthorized, TimedOut
from ordering_osn.chain.blocks import new_block
from ordering_osn.chain.records import Regular, RegularKind, encode
from ordering_osn.ledger.ledger import Ledger
from ordering_osn.node.joining import join, ledger_folder
from ordering_osn.node.kafka_connection import KafkaConnection
from ordering_osn.node.registrar import Registrar
from ordering_osn.protos import Metadata
from tests.helpers.small import until
from tests.ordering_osn.helpers import configs
from tests.ordering_osn.helpers.small import (
    LONE,
    Nodes,
    accepted,
    batch_of,
    blocks,
    chains_plan,
    counted,
    healthy,
    log_of,
    ordered,
    quick,
    submit,
    transaction,
    until_ordered,
)

pytestmark = pytest.mark.slow


class Failing(KafkaConnection):
    """A way to the log of which one step fails until the test ends that."""

    def __init__(self, driver, topic, step, error):
        super().__init__(lambda: driver, topic)
        self.fails = True
        whole = getattr(self, step)

        def fails(*arguments):
            if self.fails:
                raise error
            return whole(*arguments)

        setattr(self, step, fails)


def shown(node, name, chain="chain-a"):
    """Read one of a node's gauges, or a part of a histogram."""
    return node.metrics.registry.get_sample_value(name, {"channel": chain})


# -- K1 to K6: start and stop -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "error"),
    [
        ("driver", ClusterUnreachable("nobody is there")),
        ("producer", TimedOut("the first record was not taken")),
        ("consumer", ClusterUnreachable("nobody reads")),
        ("consumer", NotAuthorized("User osn lacks the right Read on topic chains")),
    ],
    ids=["driver", "producer", "consumer", "right"],
)
def test_k2_a_step_of_the_start_that_fails_is_tried_again_and_the_node_says_so(
    tmp_path, step, error
):
    """Fabric's gives up for good, by a panic, after hours; this one never does."""
    with Nodes(LONE, tmp_path) as osn:
        cluster = Failing(osn.small.driver, LONE.topic, step, error)
        join(tmp_path / "n1", quick())
        node = osn.nodes["n1"] = Registrar(tmp_path / "n1", cluster, configs.orderer(), look_s=60.0)
        node.start()
        until(lambda: str(error) in str(node.health()))
        assert submit(node, transaction())[0][0] == 503
        cluster.fails = False
        healthy(node)
        accepted(node, transaction())
        until_ordered(node, 1)


def to_order(_):
    return transaction()


def to_configure(config):
    return batch_of(config, 20 + config.sequence)


@pytest.mark.parametrize("made", [to_order, to_configure])
def test_k1_k3_k4_nothing_is_taken_before_the_start_in_trouble_or_after_the_stop(tmp_path, made):
    with Nodes(LONE, tmp_path) as osn:
        driver = osn.faulty()
        driver.away = True
        node = osn.start("n1", quick(), driver=driver)
        until(node.names)
        chain = node.get("chain-a")
        assert chain.errored
        assert submit(node, made(chain.config))[0][0] == 503  # not started
        driver.away = False
        healthy(node)
        assert not chain.errored
        driver.lost = 1
        assert submit(node, made(chain.config))[0][0] == 503  # the posting failed
        accepted(node, made(chain.config))
        until_ordered(node, 1)
        node.stop()
        ((status, info),) = submit(node, made(chain.config))
        assert (status, "stopped" in info, chain.errored) == (503, True, True)
        node.stop()
        assert len(ordered(node)) == 1


def test_k6_a_node_whose_newest_block_has_tampered_metadata_does_not_run(tmp_path):
    raw = quick()
    join(tmp_path / "n1", raw)
    with Ledger.open(ledger_folder(tmp_path / "n1", "chain-a")) as ledger:
        ledger.append(0, raw)
        block = new_block(1, b"", [transaction()])
        for slot in (0, 3):  # signatures and orderer: where the position stands
            block.metadata.metadata[slot] = Metadata(value=b"\xff\xff").SerializeToString()
        ledger.append(1, block.SerializeToString())
    with Nodes(LONE, tmp_path) as osn:
        node = osn.start("n1")
        until(lambda: "block 1" in str(node.health()))
        ((status, _),) = submit(node, transaction())
        assert status in (404, 503)
        assert osn.small.log.last_stable_offsets([log_of(osn)])[log_of(osn)] == 0


# -- K14 to K20: positions and time-to-cut ----------------------------------------------------


def test_k14_k20_the_gauge_shows_the_position_of_the_newest_block(tmp_path):
    with Nodes(LONE, tmp_path) as osn:
        node = osn.running("n1", quick(timeout="60s", max_message_count=2))
        gauge = "consensus_kafka_last_offset_persisted"
        accepted(node, transaction())
        assert shown(node, gauge) is None
        accepted(node, transaction())
        until(lambda: shown(node, gauge) == 2)
        accepted(node, transaction())
        accepted(node, batch_of(node.get("chain-a").config, 1))
        until(lambda: shown(node, gauge) == 4)
        assert [len(block.data.data) for block in blocks(node)] == [1, 2, 1, 1]
        accepted(node, transaction())
        until(lambda: shown(node, gauge) == 5)


def written(osn):
    """Put a transaction into the log as another node would."""
    envelope = transaction()
    osn.small.log.write(log_of(osn), encode(Regular(envelope, 0, RegularKind.NORMAL)))
    return envelope


def test_k18_a_time_to_cut_that_cannot_be_posted_is_counted_and_no_block_is_written(tmp_path):
    with Nodes(LONE, tmp_path) as osn:
        driver = osn.faulty()
        node = osn.running("n1", quick(timeout="20ms"), driver=driver)
        driver.lost = 10**6
        sent = written(osn)
        until(lambda: counted(node, "timers_posted", "chain-a", "failed") >= 1)
        assert node.get("chain-a").ledger.height == 1
        driver.lost = 0
        assert until_ordered(node, 1) == [sent]
        until(lambda: counted(node, "timers_posted", "chain-a", "stored") == 1)


# -- K32: the log fails ---------------------------------------------------------------


def test_k32_a_chain_whose_place_is_no_longer_in_the_log_writes_no_more_blocks(tmp_path):
    with Nodes(LONE, tmp_path) as osn:
        other = osn.start("n1", quick(timeout="20ms"))
        left = osn.start("n2", quick(timeout="20ms"))
        healthy(other, left)
        osn.stop("n2")
        accepted(other, *[transaction() for _ in range(5)])
        until_ordered(other, 5)
        osn.small.log.trim(
            log_of(osn), osn.small.log.last_stable_offsets([log_of(osn)])[log_of(osn)]
        )
        left = osn.start("n2")
        until(lambda: "no longer holds" in str(left.health()))
        assert "--peer" in str(left.health())
        accepted(other, transaction())
        until_ordered(other, 6)
        assert left.get("chain-a").errored
        assert left.get("chain-a").ledger.height == 1


# -- the timer, as Fabric's solo orderer has it -------------------------------------------------


def test_each_lone_transaction_is_cut_by_its_own_timer(tmp_path):
    with Nodes(LONE, tmp_path) as osn:
        node = osn.running("n1", quick(timeout="20ms"))
        for count in (1, 2):
            accepted(node, transaction())
            until_ordered(node, count)
        assert [len(block.data.data) for block in blocks(node)] == [1, 1, 1]
        until(lambda: counted(node, "timers_posted", "chain-a", "stored") == 2)


def test_a_filled_batch_stops_the_timer_of_its_first_transaction(tmp_path):
    with Nodes(LONE, tmp_path) as osn:
        node = osn.running("n1", quick(timeout="60s", max_message_count=2))
        accepted(node, *[transaction() for _ in range(5)])
        until_ordered(node, 4)
        # The update ends the last batch, so no time-out was needed.
        accepted(node, batch_of(node.get("chain-a").config, 3))
        until_ordered(node, 6)
        assert [len(block.data.data) for block in blocks(node)] == [1, 2, 2, 1, 1]
        assert counted(node, "timers_posted", "chain-a", "stored") == 0


# -- S3 -----------------------------------------------------------------------------------------


def test_s3_a_transaction_waits_as_long_as_its_channels_batch_time_out_says(tmp_path):
    with Nodes(chains_plan("chain-a", "chain-b"), tmp_path) as osn:
        node = osn.running("n1", quick("chain-a", timeout="60s"), quick("chain-b", timeout="300ms"))
        patient = transaction("chain-a")
        accepted(node, patient, transaction("chain-b"))
        until_ordered(node, 1, "chain-b")
        waited_s = shown(node, "blockcutter_block_fill_duration_sum", "chain-b")
        assert waited_s >= 0.3
        assert node.get("chain-a").ledger.height == 1
        assert counted(node, "timers_posted", "chain-a", "stored") == 0
        # A shorter time-out takes effect with the next config; pending ones are ordered before it.
        config = node.get("chain-a").config
        accepted(node, configs.update(config, lambda new: configs.set_timeout(new, "1ms")))
        late = transaction("chain-a")
        accepted(node, late)
        found = until_ordered(node, 3, "chain-a")
        assert (found[0], found[2]) == (patient, late)
        until(lambda: counted(node, "timers_posted", "chain-a", "stored") == 1)
