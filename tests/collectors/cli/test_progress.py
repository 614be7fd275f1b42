"""How far a collector is, as `amcast collectors status` reads it from the order."""

from collectors.cli.main import describe
from tests.helpers.plans import chain
from tests.helpers.small import Small, state_of


def rows(system):
    state, names = state_of(system), [node.name for node in system.plan.collectors]
    return {name: describe(system.driver, state, state.plan(), name) for name in names}


def test_what_a_parent_has_ordered_and_nobody_relays_is_lag():
    with Small(chain()) as system:
        system.run("K1")
        with system.producer() as producer:
            producer.multicast(b"", to={"P2"}).ordered(60)
        found = rows(system)
        assert (found["K1"]["state"], found["K1"]["lag"]) == ("up to date", 0)
        assert (found["K2"]["state"], found["K2"]["lag"]) == ("behind", 1)
        assert found["K2"]["lag_by_log"] == {"P2": 1, "P3": 0}
