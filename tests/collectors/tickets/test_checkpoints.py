"""Checkpoints over days and months, on the system in memory: when they are written, and kept."""

from multicast.control import ControlReader
from multicast.testing import system

INTERESTS = {"consumers": {"C1": {"P1", "P2"}, "C2": {"P2", "P3"}}}
HOUR_S = 3600


def state_of(double):
    control = ControlReader(double.driver, double.topic)
    try:
        return control.refresh()
    finally:
        control.close()


def test_instances_that_never_live_for_six_hours_write_checkpoints_all_the_same():
    with system(INTERESTS) as double:
        for log in ("P1", "P2", "P3"):
            double.producer().multicast(b"", to={log})
        names = [node.name for node in double.plan.collectors]
        for _ in range(6):
            for name in names:
                double.crash(name)
                double.restart(name)
            double.run(5 * HOUR_S)
        assert all(state_of(double).checkpoints(1, name) for name in names)
