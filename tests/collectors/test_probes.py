"""Probes during a change of the tree: what they count as the delay of a message."""

from collectors.reconfiguration.probes import Probes
from tests.helpers.plans import chain
from tests.helpers.small import Small, until


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
