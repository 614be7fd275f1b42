"""Two hazards of transactions with kafka-python on a real broker; this project has neither.

The first three tests assert that the client at hand *has* the hazard. Where one of them fails, the
client was mended: say so in `docs/hazards.md`. What we promise does not hang on it.
"""

import contextlib
import threading
import uuid

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka import errors as kafka_errors

from bench.nemesis.frames import Action, Api, RequestFault
from multicast.drivers.kafka import Admin, TopicSpec
from multicast.errors import AppendUnknown
from tests.helpers.proxied import proxied_broker, running
from tests.helpers.system import PATIENCE_S, until

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]
MENDED = "this kafka-python does not have the hazard any more: say so in docs/hazards.md"
DELIVERY_S = 6.0  # a busy broker answers within it
# kafka-python looks at the time of a batch once in each round of its loop, and at each failed
# attempt: an attempt that fails after the time-out gives its own error.
TIMED_OUT = (kafka_errors.KafkaTimeoutError, kafka_errors.KafkaConnectionError)


@pytest.fixture(scope="module")
def behind():
    with proxied_broker() as found:
        yield found


class Bare:
    """A transactional producer of kafka-python, as an application would use it, and its topic."""

    def __init__(self, cluster, proxy, name):
        self._cluster = cluster
        self.name = name
        with Admin(cluster.bootstrap) as admin:
            admin.create_topics({name: TopicSpec(1)})
        self.producer = KafkaProducer(
            bootstrap_servers=proxy.bootstrap,
            client_id=name,
            transactional_id=name,
            delivery_timeout_ms=int(DELIVERY_S * 1000),
            request_timeout_ms=int(DELIVERY_S * 1000),
            retry_backoff_ms=20,
            reconnect_backoff_max_ms=100,
        )
        self.producer.init_transactions()

    def send(self, value):
        return self.producer.send(self.name, value)

    def spoils(self, proxy, action, **more):
        return proxy.arm(RequestFault(api=Api.PRODUCE, action=action, client_id=self.name, **more))

    def committed(self):
        """Return what a `read_committed` reader gets, once no transaction is open."""
        place = TopicPartition(self.name, 0)
        with (
            self._reader("read_uncommitted") as whole,
            self._reader("read_committed") as reader,
        ):
            # A broker answers an EndTxn before its marker is in the log.
            until(
                lambda: reader.end_offsets([place]) == whole.end_offsets([place]),
                "the end of the transaction",
            )
            reader.assign([place])
            reader.seek_to_beginning(place)
            end, values = reader.end_offsets([place])[place], []

            def read():
                for records in reader.poll(timeout_ms=100).values():
                    values.extend(record.value for record in records)
                return reader.position(place) >= end

            until(read, "the end of the topic")
        return values

    def _reader(self, isolation):
        return contextlib.closing(
            KafkaConsumer(bootstrap_servers=self._cluster.bootstrap, isolation_level=isolation)
        )


@pytest.fixture
def bare(behind):
    cluster, proxy, _ = behind
    made = Bare(cluster, proxy, f"bare-{uuid.uuid4().hex[:8]}")
    yield made
    proxy.disarm()
    made.producer.close(timeout=5)


def test_with_bare_transactions_a_commit_that_lands_late_commits_the_next_transaction(behind, bare):
    # Init: the first transaction's EndTxn is delayed; the client repeats it, and it commits.
    _, proxy, _ = behind
    late = proxy.arm(RequestFault(api=Api.END_TXN, action=Action.STRAND, client_id=bare.name))
    bare.producer.begin_transaction()
    bare.send(b"one").get(PATIENCE_S)
    bare.producer.commit_transaction()
    assert late.fired.is_set()
    assert bare.committed() == [b"one"]

    # Test: the delayed EndTxn arrives in the second transaction, which the application aborts.
    bare.producer.begin_transaction()
    bare.send(b"two").get(PATIENCE_S)
    late.release()
    assert late.answered.wait(PATIENCE_S)
    refused = None
    try:
        bare.producer.abort_transaction()
    except kafka_errors.KafkaError as error:
        refused = error

    # Check: every reader gets the aborted record.
    assert bare.committed() == [b"one", b"two"], MENDED
    assert isinstance(refused, kafka_errors.InvalidTxnStateError), MENDED


def test_with_bare_transactions_a_commit_is_reported_of_which_a_record_is_missing(behind, bare):
    # Init: the second of a transaction's two records never reaches the broker.
    _, proxy, _ = behind
    bare.producer.begin_transaction()
    bare.send(b"one").get(PATIENCE_S)
    bare.spoils(proxy, Action.CUT, nth=None)
    two = bare.send(b"two")

    # Test and check: the commit succeeds. An error of a single record should have forbidden it.
    try:
        bare.producer.commit_transaction()
    except kafka_errors.KafkaError as error:
        pytest.fail(f"{MENDED} ({error!r})")
    assert isinstance(two.exception, TIMED_OUT)
    assert bare.committed() == [b"one"]


def test_with_bare_transactions_a_commit_is_reported_of_a_transaction_that_was_aborted(
    behind, bare
):
    # Init: the second record times out, so the third has too high a sequence number. The commit
    # waits for the answer to the third.
    _, proxy, sightings = behind
    bare.producer.begin_transaction()
    bare.send(b"one").get(PATIENCE_S)
    cut = bare.spoils(proxy, Action.CUT, nth=None)
    with pytest.raises(TIMED_OUT):
        bare.send(b"two").get(PATIENCE_S)
    cut.release()
    held = bare.spoils(proxy, Action.DELAY)
    three = bare.send(b"three")
    assert held.fired.wait(PATIENCE_S)
    results = []

    def commit():
        try:
            results.append(bare.producer.commit_transaction())
        except kafka_errors.KafkaError as error:
            results.append(error)

    committing = threading.Thread(target=commit)
    committing.start()
    state = bare.producer._transaction_manager
    try:
        until(lambda: state.is_completing() or results, "the commit")
    finally:
        # Test: the broker refuses the number; the client takes a new epoch, which aborts.
        held.release()
        committing.join(PATIENCE_S)

    # Check: the commit was reported, but no EndTxn was ever sent, and no record is committed.
    assert results == [None], f"{MENDED} ({results})"
    assert isinstance(three.exception, kafka_errors.OutOfOrderSequenceNumberError)
    assert sightings.counts[bare.name, Api.END_TXN] == 0
    assert bare.committed() == []


@pytest.mark.parametrize("driver", ["librdkafka", "kafka-python"])
def test_ours_reports_no_append_that_did_not_happen_and_sends_nothing_of_a_transaction(
    behind, driver, tmp_path
):
    _, proxy, sightings = behind
    sightings.counts.clear()
    sightings.transactional.clear()
    with running(proxy, driver, tmp_path) as world:
        # Init: every EndTxn would be late; no Produce passes, not even a collector's.
        late = proxy.arm(RequestFault(api=Api.END_TXN, action=Action.STRAND, nth=None))
        world.send_each(8)
        producer = world.open_producer("p2", delivery_timeout_s=DELIVERY_S)
        with contextlib.closing(producer):
            world.send("P2", producer=producer).ordered(PATIENCE_S)
            cut = proxy.arm(RequestFault(api=Api.PRODUCE, action=Action.CUT, nth=None))
            lost = world.send("P2", producer=producer)

            # Test: one message times out, and the next one follows.
            with pytest.raises(AppendUnknown):
                lost.accepted(PATIENCE_S)
            cut.release()
            world.send("P2", producer=producer).ordered(PATIENCE_S)
        world.send_each(8)
        world.judge()
        late.release()

    # Check: no EndTxn was sent, nor any other request with a transactional ID.
    assert late.count == 0
    assert sightings.transactional == {}
    ours = {client for client, api in sightings.counts if api == Api.PRODUCE}
    assert ours == {"amcast", "p1", "p2"}  # collectors and two producers, all through the proxy


def test_the_proxy_does_tell_what_belongs_to_a_transaction(behind, bare):
    _, _, sightings = behind
    bare.producer.begin_transaction()
    bare.send(b"one").get(PATIENCE_S)
    bare.producer.commit_transaction()
    seen = {api for client, api in sightings.transactional if client == bare.name}
    assert seen == {
        Api.INIT_PRODUCER_ID,
        Api.ADD_PARTITIONS_TO_TXN,
        Api.PRODUCE,
        Api.END_TXN,
    }
