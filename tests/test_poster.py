"""A test a sentence of the poster, each in three parts: init, test, check.

The sentence stands above its test. First what the poster assumes and wants, shown on our cores;
then its Algorithm 1 as printed (`bench/baselines/algorithm1.py`): where it holds, and where it does
not.
"""

from itertools import combinations, permutations

from bench.baselines.algorithm1 import Merge, Tagged, merge, tagged
from multicast.drivers.memory.driver import MemoryDriver, MemoryLog
from multicast.drivers.protocol import TopicPartition
from multicast.history import HistoryBuilder
from multicast.order.records import Ticket, decode
from multicast.properties import check_all, uniform_acyclic_order, uniform_prefix_order
from tests.helpers.in_memory_cluster import ALL, InMemoryCluster
from tests.helpers.plans import tag_in

P1, P2 = TopicPartition("A", 0), TopicPartition("A", 1)

TOY_LOGS = ["P1", "P2", "P3", "P4", "P5"]
TOY_COLLECTORS = {
    "K2": (["P2", "P3", "P4"], None),
    "K1": (["P1", "P2", "P3"], "K2"),
    "K3": (["P3", "P4", "P5"], "K2"),
}
TOY_CONSUMERS = {
    "C1": (["P1", "P2", "P3"], "K1"),
    "C2": (["P2", "P3", "P4"], "K2"),
    "C3": (["P3", "P4", "P5"], "K3"),
}


def toy():
    """The poster's toy example, with one instance of each collector."""
    cluster = InMemoryCluster()
    cluster.plan(TOY_LOGS, TOY_COLLECTORS, TOY_CONSUMERS)
    for name in TOY_COLLECTORS:
        cluster.node(f"{name}.a")
    return cluster


def values(fetched):
    return [record.value for one in fetched for record in one.records]


# -- "Apache Kafka guarantees total order (TO) within a partition but not across partitions." ----


def test_two_readers_agree_within_a_partition_and_not_across_partitions():
    log = MemoryLog({"A": 2})
    for value in (b"1", b"2", b"3"):
        log.write(P1, b"a" + value)
        log.write(P2, b"b" + value)
    driver = MemoryDriver(log)

    quick = driver.reader({P1: 0, P2: 0})
    slow = driver.reader({P2: 0, P1: 0})
    seen_quick = values(quick.poll(0))
    seen_slow = [value for _ in range(6) for value in values(slow.poll(0, records_max=1))]

    assert [v for v in seen_quick if v[:1] == b"a"] == [v for v in seen_slow if v[:1] == b"a"]
    assert [v for v in seen_quick if v[:1] == b"b"] == [v for v in seen_slow if v[:1] == b"b"]
    assert seen_quick != seen_slow


# -- "Producers can create multiple data streams. Each data stream is input to a partition." -----


def test_several_producers_write_to_one_partition_and_each_keeps_its_order():
    log = MemoryLog({"A": 1})
    first, second = (MemoryDriver(log).appender() for _ in range(2))

    for number in range(3):
        first.append(P1, b"x%d" % number, done=lambda _: None)
        second.append(P1, b"y%d" % number, done=lambda _: None)

    stored = values(MemoryDriver(log).reader({P1: 0}).poll(0))
    assert [v for v in stored if v[:1] == b"x"] == [b"x0", b"x1", b"x2"]
    assert [v for v in stored if v[:1] == b"y"] == [b"y0", b"y1", b"y2"]


# -- "… multiple consumer groups … do not consume the messages in the same order. ➔ Need of a new
#    ordering scheme." -----------------------------------------------------------------------------


def test_two_consumers_whose_payloads_arrive_differently_deliver_in_one_order():
    cluster = InMemoryCluster()
    cluster.plan(["P1", "P2"], {"K1": (["P1", "P2"], None)}, {"C1": (["P1", "P2"], "K1")})
    for name in ("P1", "P2", "P1", "P2"):
        cluster.multicast(name)
    cluster.node("K1.a")
    cluster.settle()

    one, other = cluster.consumer("C1.a"), cluster.consumer("C1.b")
    one.read_order()
    other.read_order()
    one.read_payloads("P1")
    other.read_payloads("P2")
    early = one.deliver(), other.deliver()
    one.read_payloads()
    other.read_payloads()
    one.deliver()
    other.deliver()

    assert early[0] != early[1]
    assert one.delivered == other.delivered
    assert len(one.delivered) == 4


# -- "Apache Kafka replicates partitions, thus providing fault-tolerance." -------------------------


def test_what_stands_in_the_log_survives_the_collector_that_wrote_it():
    cluster = toy()
    cluster.multicast("P3")
    cluster.settle()

    cluster.nodes.clear()  # every collector crashes
    cluster.multicast("P3")
    for name in TOY_COLLECTORS:
        cluster.node(f"{name}.b")
    cluster.settle()

    assert cluster.consumer("C1.a").drain() == ["P3:0", "P3:1"]


# -- "Channels are FIFO and reliable." -------------------------------------------------------------


def test_a_reader_is_given_every_record_once_and_in_the_order_of_the_log():
    log = MemoryLog({"A": 1})
    reader = MemoryDriver(log).reader({P1: 0})

    seen = []
    for number in range(20):
        log.write(P1, b"%d" % number)
        if number % 3 == 0:
            seen += values(reader.poll(0, records_max=2))
    while more := values(reader.poll(0, records_max=2)):
        seen += more

    assert seen == [b"%d" % number for number in range(20)]


# -- Set-up 1: "Message-ID tuples (msg, ID) are stored within the partitions of topic A." ----------


def test_a_message_has_its_id_from_the_log_that_stores_it():
    cluster = toy()

    message_id = cluster.multicast("P4", payload=b"hello")

    (fetched,) = MemoryDriver(cluster.log).reader({TopicPartition("A", 3): 0}).poll(0)
    assert message_id == f"P4:{fetched.records[0].offset}"
    assert fetched.records[0].value == b"hello"


# -- Set-up 2: "Consumers … are assigned to partitions of topic A. ➔ Sends (msg, ID) tuples." ------


def test_a_consumer_reads_payloads_from_the_logs_of_its_interest_alone():
    cluster = toy()

    consumer = cluster.consumer("C1.a")

    assert [log.name for log in consumer.delivery.logs.values()] == ["P1", "P2", "P3"]


# -- Set-up 3: "The hierarchical ordering scheme orders the IDs and produces them to "Msg. TO"." ---


def test_what_a_collector_writes_are_ids_and_no_payloads():
    cluster = toy()
    cluster.multicast("P2", payload=b"secret" * 100)
    cluster.settle()

    (fetched,) = MemoryDriver(cluster.log).reader({TopicPartition("A.Msg-TO", 0): 0}).poll(0)

    (record,) = fetched.records
    plan = cluster.control().plan()
    assert decode(tag_in(plan, plan.collectors[0].name), record.value).tickets == (Ticket(1, 0, 1),)
    assert b"secret" not in record.value
    assert len(record.value) < 100


# -- Set-up 4: "Consumer groups are also subscribed to "Msg. TO"." ---------------------------------


def test_a_consumer_reads_the_stream_of_one_collector():
    cluster = toy()

    readers = [cluster.consumer(f"{name}.a").delivery.order.collector for name in TOY_CONSUMERS]

    assert readers == ["K1", "K2", "K3"]


# -- Set-up 5: "Consumers deliver a received message (msg, ID) as soon as they also received the ID
#    via the ordering scheme." ---------------------------------------------------------------------


def test_a_message_is_delivered_when_both_it_and_its_id_are_here_whichever_came_first():
    cluster = toy()
    cluster.multicast("P2")
    cluster.settle()
    order_first, payload_first = cluster.consumer("C2.a"), cluster.consumer("C2.b")
    payload_first.read_order()
    cluster.multicast("P3")

    order_first.read_order()
    before = order_first.deliver()
    order_first.read_payloads()
    payload_first.read_payloads()
    waiting = payload_first.deliver()
    cluster.settle()
    payload_first.read_order()

    assert before == []
    assert order_first.deliver() == ["P2:0"]
    assert waiting == ["P2:0"]
    assert payload_first.deliver() == ["P3:0"]


# -- "All their common interests have to follow a total order." ------------------------------------


def test_consumers_of_the_toy_example_agree_on_what_they_have_in_common():
    cluster = toy()
    for name in ("P1", "P5", "P3", "P4", "P3", "P2", "P1", "P4", "P3"):
        cluster.multicast(name)
        cluster.settle()

    delivered = {name: cluster.consumer(f"{name}.a").drain() for name in TOY_CONSUMERS}

    for one, other in combinations(TOY_CONSUMERS, 2):
        common = set(delivered[one]) & set(delivered[other])
        ours = [message for message in delivered[one] if message in common]
        theirs = [message for message in delivered[other] if message in common]
        assert ours == theirs
        assert ours


# -- "Msg-IDs are sent from partitions to consumers via layers formed by collectors." --------------


def test_an_id_goes_down_the_tree_layer_by_layer():
    cluster = toy()
    cluster.multicast("P3")
    root, leaf = cluster.nodes["K2.a"], cluster.nodes["K1.a"]

    leaf.look()
    too_early = leaf.step()
    root.look()
    at_the_root = root.step()
    root.store()
    leaf.look()
    below = leaf.step()

    assert too_early == []  # P3 enters the order at the root
    assert at_the_root == ["append own P3<1"]
    assert below == ["append relay of 0 to 1: P3<1"]


# -- "The collectors resemble common interests." ---------------------------------------------------


def test_a_collector_keeps_from_its_parent_what_is_in_its_own_bag_and_nothing_else():
    cluster = toy()
    cluster.multicast("P4")
    cluster.multicast("P2")
    cluster.settle("K2.a")
    leaf = cluster.nodes["K1.a"]

    leaf.look()

    assert leaf.step() == ["append relay of 0 to 1: P2<1"]


# -- "A consumer receives its order by having subscribed to the collectors that resemble its common
#    interest ➔ ordering of the msg-IDs." ----------------------------------------------------------


def test_the_order_at_a_child_is_the_parents_order_with_its_own_logs_in_between():
    cluster = toy()
    for name in ("P3", "P1", "P2"):
        cluster.multicast(name)
        cluster.settle()

    whole = cluster.consumer("C2.a").drain()
    below = cluster.consumer("C1.a").drain()

    assert whole == ["P3:0", "P2:0"]
    assert below == ["P3:0", "P1:0", "P2:0"]


# -- "If the lower level collectors share one or multiple partitions, the streams have to be merged,
#    such that the lower level streams order is preserved." ----------------------------------------


def arrivals(*lengths):
    """All ways in which streams of these lengths can arrive."""
    return sorted(set(permutations([i for i, n in enumerate(lengths) for _ in range(n)])))


def test_algorithm_1_keeps_both_orders_where_the_shared_messages_are_the_same():
    one, other = tagged("a@1 s@3 b@1 t@3"), tagged("s@3 x@5 t@3")

    for arrival in arrivals(4, 3):
        merged = merge([one, other], {"3"}, arrival)
        assert [message for message in merged if message in one] == one
        assert [message for message in merged if message in other] == other
        assert len(merged) == len(set(merged)) == 5


def test_algorithm_1_sends_what_is_not_shared_at_once_where_nothing_shared_is_pending():
    merging = Merge(2, {"3"})

    sent = merging.take(0, Tagged("a", "1"))

    assert [str(message) for message in sent] == ["a@1"]


# -- where Algorithm 1 does not hold ---------------------------------------------------------------


def test_algorithm_1_gives_two_orders_for_the_same_two_streams():
    streams = [tagged("a@2"), tagged("b@4")]

    results = [merge(streams, {"3"}, arrival) for arrival in arrivals(1, 1)]

    assert results == [tagged("a@2 b@4"), tagged("b@4 a@2")]
    # So two collectors (or one, before and after a crash) that merge the same streams disagree:
    history = HistoryBuilder()
    for number, result in enumerate(results):
        for message in result:
            history.delivery(consumer=f"C{number}", message_id=str(message), to=["2", "4"])
    assert uniform_prefix_order(history.history()) is not None


def test_our_stream_gives_the_same_order_to_everybody_whatever_arrives_first():
    cluster = InMemoryCluster()
    cluster.plan(["P2", "P4"], {"K1": (["P2", "P4"], None)}, {"C1": (["P2", "P4"], "K1")})
    first, second = cluster.node("K1.a"), cluster.node("K1.b")
    cluster.multicast("P2")
    cluster.multicast("P4")

    first.look("P2")
    second.look("P4")
    proposals = first.step() + second.step()
    landed = first.store() + second.store()
    cluster.settle()

    assert proposals == ["append own P2<1", "append own P4<1"]
    assert landed == ["0 orders P2[0,1)", "1 orders P4[0,1)"]
    assert cluster.consumer("C1.a").drain() == cluster.consumer("C1.b").drain() == ["P2:0", "P4:0"]


def test_algorithm_1_stalls_for_ever_when_a_shared_message_is_missing_in_one_stream():
    one = tagged("s@3 " + " ".join(f"a{n}@1" for n in range(50)))
    other = tagged(" ".join(f"b{n}@5" for n in range(50)))  # its s@3 got lost

    merged = merge([one, other], {"3"}, [0, 1] * 50 + [0])

    assert not [message for message in merged if message in one]


def test_algorithm_1_stalls_when_a_partition_is_shared_by_only_some_of_the_inputs():
    # Line 12 asks all inputs; P3 is shared by the first two, and the third never brings it.
    streams = [tagged("s@3 a@1"), tagged("s@3 b@4"), tagged("c@5 d@5")]

    merged = merge(streams, {"3"}, [0, 1, 2, 0, 1, 2])

    assert merged == tagged("c@5 d@5")


def test_algorithm_1_breaks_an_input_that_orders_two_shared_partitions_differently():
    one, other = tagged("s@3 t@4"), tagged("t@4 s@3 b@5")

    for arrival in arrivals(2, 3):
        merged = merge([one, other], {"3", "4"}, arrival)
        assert [message for message in merged if message in other] != other


def test_inputs_that_order_two_shared_partitions_differently_cannot_occur_in_a_tree():
    # Both orders would have to come from two collectors that decide {P3, P4}: two tops.
    cluster = toy()
    plan = cluster.control().plan()

    tops = {log: plan.top(log).name for log in ("P3", "P4")}

    assert tops == {"P3": "K2", "P4": "K2"}


def test_algorithm_1_loses_counts_and_queues_in_a_crash():
    one, other = tagged("s@3 a@1 t@3"), tagged("s@3 t@3 b@5")
    merging = Merge(2, {"3"})
    for message in one:
        merging.take(0, message)  # all of it waits in the queue

    merging = Merge(2, {"3"})  # a crash; the first stream is not sent again
    sent = [message for later in other for message in merging.take(1, later)]

    assert sent == []


def test_our_collector_goes_on_after_a_crash_from_its_own_stream():
    cluster = toy()
    cluster.multicast("P3")
    cluster.settle()
    del cluster.nodes["K1.a"]
    cluster.multicast("P3")
    cluster.settle()

    cluster.node("K1.b")
    cluster.settle()

    assert cluster.consumer("C1.a").drain() == ["P3:0", "P3:1"]


def test_algorithm_1_pairs_the_wrong_messages_for_a_late_joiner():
    whole, late = tagged("s@3 t@3 u@3"), tagged("t@3 u@3")  # the second input missed s@3

    merged = merge([whole, late], {"3"}, [0, 0, 0, 1, 1])

    # The first shared message of one meets the second of the other: t is ahead of its time in one
    # input, and u never comes.
    assert merged == tagged("s@3 t@3")


def test_our_late_joiner_delivers_what_everybody_delivers_from_there_on():
    cluster = toy()
    for name in ("P3", "P2", "P3", "P4"):
        cluster.multicast(name)
        cluster.settle()
    early = cluster.consumer("C2.a")
    early.read_order()
    early.read_payloads()
    early.deliver(2)

    late = cluster.consumer("C2.b", cursor=early.cursor)

    assert late.drain() == early.deliver(ALL) == ["P3:1", "P4:0"]


# -- "A proof of concept": agreement of each two is not enough -------------------------------------


def pairwise_history():
    """Three consumers of two partitions each; every two of them agree on all that they share."""
    history = HistoryBuilder()
    pairs = {"C1": ("A", "B"), "C2": ("B", "C"), "C3": ("C", "A")}
    for name, interest in pairs.items():
        history.interest(consumer=name, interest=interest)
    for name, order in {"C1": "ab", "C2": "bc", "C3": "ca"}.items():
        for message in order:
            history.delivery(consumer=name, message_id=message, to=[message.upper()])
    return history.history()


def test_agreement_of_every_pair_leaves_a_cycle_of_three():
    history = pairwise_history()

    pairwise, acyclic = uniform_prefix_order(history), uniform_acyclic_order(history)

    assert pairwise is None
    assert acyclic is not None
    assert len(acyclic.cycle) == 3


def test_a_tree_for_the_three_pairs_has_one_collector_that_decides_them_all():
    cluster = InMemoryCluster()
    pairs = {"C1": (["P1", "P2"], "K1"), "C2": (["P2", "P3"], "K1"), "C3": (["P3", "P1"], "K1")}
    cluster.plan(["P1", "P2", "P3"], {"K1": (["P1", "P2", "P3"], None)}, pairs)
    cluster.node("K1.a")
    for name in ("P3", "P1", "P2"):
        cluster.multicast(name)
        cluster.settle()
    history = HistoryBuilder()

    for name in pairs:
        for message_id in cluster.consumer(f"{name}.a").drain():
            history.delivery(consumer=name, message_id=message_id, to=[message_id.split(":")[0]])

    assert not check_all(history.history()).violations
