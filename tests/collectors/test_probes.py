"""Probes during a change of the tree: what they count as the delay of a message."""

from dataclasses import replace

from collectors.reconfiguration.probes import Probes
from multicast.control import ends_record, log_partition, markers_record
from multicast.messages import epoch_header
from tests.helpers.plans import chain
from tests.helpers.small import Small, until
from topology.tree import Subscription


def sent(system, count):
    with system.producer() as producer:
        for _ in range(count):
            producer.multicast(b"", to={"P1"}).ordered(60)


def test_what_waited_for_a_probe_to_be_opened_says_nothing_about_delivery():
    with Small(chain()) as system:
        system.run("K1")
        probes = Probes(system.driver, system.plan)
        sent(system, 20)  # behind the positions, and before anybody reads
        with probes:
            names = {probe.name for probe in probes._probes}
            (first,) = [probe for probe in probes._probes if probe.name == "C1"]
            until(lambda: len(first.deliveries) == 20)
            seen = probes.judged(system.plan)
        assert seen.messages > 0
        assert seen.violations == seen.unread == ()
        assert seen.delay_p99_ms is None
        assert seen.delay_p99_ms_of == dict.fromkeys(names)


def test_what_comes_while_all_read_counts():
    with Small(chain()) as system:
        system.run("K1")
        with Probes(system.driver, system.plan) as probes:
            sent(system, 20)
            (first,) = [probe for probe in probes._probes if probe.name == "C1"]
            until(lambda: len(first.deliveries) == 20)
            seen = probes.judged(system.plan)
        assert seen.delay_p99_ms_of["C1"] is not None
        assert len(first.delays) == 20


def test_an_interest_that_the_new_plan_changes_is_that_of_each_message_s_epoch():
    with Small(chain()) as system:
        p3, p4 = (log_partition(system.plan.log(name)) for name in ("P3", "P4"))
        with Probes(system.driver, system.plan) as probes:
            (probe,) = [probe for probe in probes._probes if probe.name == "C4"]
            system.log.write(p4, b"before")
            until(lambda: len(probe.deliveries) == 1)
            after = replace(
                chain(epoch=2),
                collectors=system.plan.collectors[:1],
                consumers=(system.plan.consumers[0], Subscription("C4", ("P3",), None)),
            )
            system.propose(after)
            system.log.write(p4, None, headers=[epoch_header("P4", 2)])
            system.write(markers_record(system.previous, 1, {"P4": 2}, attempt="1"))
            system.write(
                ends_record(system.previous, 1, {"P1": 0, "P2": 0, "P3": 0, "P4": 2}, attempt="1")
            )
            system.log.write(p3, b"after")
            until(lambda: len(probe.deliveries) == 2)
            seen = probes.judged(after)
        assert seen.messages == 2
        assert seen.violations == ()
