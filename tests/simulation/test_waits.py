"""Steady traffic beside one incident: no message waits longer than the bound that users know."""

import pytest

from bench.simulation.waits import BOUND_MS, Incident, WaitSchedule, WaitSimulation, draw_waits
from bench.simulator import main
from tests.running.parts import sample
from tests.simulation.months import MonthSimulation

SLOW_LOG = [
    WaitSchedule(seed, incident, count, rate=8, shape=shape, producers=2, lag_ms=lag)
    for seed, (incident, count, shape, lag) in enumerate(
        [
            (Incident.TICKETS, 3000, "even", 1),
            (Incident.MESSAGES, 134, "random", 2),
            (Incident.REFUSED, 134, "random", 1),
            (Incident.REFUSED_OFTEN, 2, "even", 2),
            (Incident.FROZEN, 1, "bursts", 2),
            (Incident.ORDER_FROZEN, 1, "even", 2),
            (Incident.STALLED, 1, "random", 2),
        ]
    )
]
BUSY_LOG = [  # the first rests no more often than the others, at a quarter of their work
    WaitSchedule(4, Incident.TICKETS, 3000, rate=40, shape="even", producers=3, lag_ms=1),
    WaitSchedule(0, Incident.TICKETS, 3000, rate=160, shape="even", producers=3, lag_ms=1),
    WaitSchedule(1, Incident.MESSAGES, 134, rate=160, shape="random", producers=3, lag_ms=1),
    WaitSchedule(2, Incident.TICKETS, 3000, rate=2000, shape="even", producers=3, lag_ms=1),
    WaitSchedule(3, Incident.MESSAGES, 134, rate=2000, shape="random", producers=3, lag_ms=1),
]
FEW = 8


def names(schedule):
    return f"{schedule.rate}-{schedule.incident.name.lower()}"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("schedule", [*sample(SLOW_LOG, of=4), *sample(BUSY_LOG, of=1)], ids=names)
def test_no_message_waits_longer_than_the_bound_and_all_is_soon_as_before(schedule):
    outcome = WaitSimulation(schedule).run()
    assert outcome.violation is None, outcome
    assert outcome.longest <= BOUND_MS
    if schedule.incident in (Incident.TICKETS, Incident.REFUSED):
        # As many skips as tickets without a message. A few of these pay the debt of messages that
        # the collector has ordered before their own tickets came.
        assert schedule.count - FEW <= outcome.skips <= schedule.count


def test_without_an_incident_no_skip_is_written():
    calm = WaitSchedule(0, Incident.NOTHING, 1, rate=30, shape="random", producers=2, lag_ms=1)
    outcome = WaitSimulation(calm).run()
    assert (outcome.violation, outcome.skips) == (None, 0)


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_no_drawn_schedule_of_waits_violates_the_bound(capsys):
    assert main(["--waits", "--schedules", "32", "--processes", "2"]) == 0
    assert "violations 0" in capsys.readouterr().out


def test_one_seed_gives_one_schedule_of_each_incident():
    assert draw_waits(5) == draw_waits(5)
    drawn = {draw_waits(seed).incident for seed in range(len(Incident))}
    assert drawn == set(Incident)


def test_after_weeks_no_state_is_larger_than_it_must_be():
    _, months, violation = MonthSimulation(seed=0, days=30).live()
    assert violation is None
    assert months.checkpoints > 20, "there are some to bound"


@pytest.mark.campaign
@pytest.mark.slow
def test_after_a_year_no_state_is_larger_than_it_must_be():
    weeks, year, violation = MonthSimulation(seed=1, days=365).live()
    assert violation is None
    assert year.read <= 2 * weeks.read
