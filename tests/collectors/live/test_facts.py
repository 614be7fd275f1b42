"""What follows from what was read: states, rates, lags and changes."""

from types import SimpleNamespace

import pytest

from collectors.live.facts import (
    CollectorView,
    Reported,
    State,
    begun,
    judged,
    layout,
    moment,
    worst_check,
)
from collectors.live.ordered_runs import OrderedRuns
from multicast.order.runs import Run
from tests.helpers.plans import chain

RUNNING = Reported(state="running", process="a")
GONE = Reported(why="http://h:1/status cannot be read (refused)", known=True)


@pytest.mark.parametrize(
    ("reported", "lag", "late", "state", "words"),
    [
        (RUNNING, 0, 0, State.UP, ""),
        (RUNNING, 5, 3, State.UP, ""),
        (RUNNING, 5, 4, State.BEHIND, "5 messages wait"),
        (Reported(state="starting"), 0, 0, State.STARTING, "starts"),
        (Reported(state="failed", error="it broke"), 0, 0, State.DOWN, "it broke"),
        (Reported(state="running", held=("P1",)), 9, 9, State.HELD, "transaction holds up P1"),
        (Reported(state="running", lost={"P1": 7}), 0, 0, State.HELD, "lost: P1 from offset 7 on"),
        (GONE, 0, 0, State.DOWN, "its process does not answer; run"),
        (GONE, 7, 0, State.DOWN, "7 messages wait for it"),
        (Reported(why="no page"), 0, 0, State.SILENT, "no page"),
        (Reported(why="no page"), 7, 4, State.DOWN, "nobody orders its logs; 7 messages"),
    ],
)
def test_a_state_follows_from_the_process_and_from_what_waits(reported, lag, late, state, words):
    found, sentence = judged(CollectorView(lag=lag, late_ticks=late), reported)
    assert found is state
    assert words in sentence


def tick(picture, now, ends, k1, k2, **reported):
    picture.tick(now, ends, {"K1": k1, "K2": k2}, {"K1": RUNNING, "K2": RUNNING, **reported})


def test_a_broker_that_goes_and_comes_is_a_change_and_stays_known_in_the_next_epoch():
    picture = begun(chain(), 0, None)
    for away in ([], [3], [3], []):
        picture.take_cluster(1000, {"brokers": 3, "away": away, "consumers": []})
    picture.take_cluster(1000, {"error": "no answer", "consumers": []})  # says nothing of brokers
    changes = [(event["text"], event["state"]) for event in picture.events]
    assert changes == [("broker 3 is away", "down"), ("broker 3 is back", "up")]
    assert moment(begun(chain(epoch=2), 4000, picture))["cluster"]["error"] == "no answer"


def test_rates_lags_and_changes_are_those_of_the_logs_and_of_the_parent():
    picture = begun(chain(), 0, None)
    ends = {"P1": 10, "P2": 10, "P3": 10, "P4": 4}
    tick(picture, 1000, ends, {"P1": 0, "P2": 0}, {"P2": 0, "P3": 10})
    tick(picture, 2000, ends, {"P1": 10, "P2": 8}, {"P2": 6, "P3": 10}, K2=GONE)
    facts = moment(picture)
    assert picture.lags == {"P1": 0, "P2": 4, "P3": 0, "P4": 0}  # K2 lacks what K1 lacks, too
    assert facts["totals"]["rate"] == 18.0  # P4 is its own order and did not grow
    assert facts["totals"]["lag"] == 4
    state, rate, relayed, lag, *_ = facts["collectors"]["K2"]
    assert (state, rate, relayed, lag) == ("down", 6.0, 6.0, 2)  # K1 has two that K2 has not
    assert [event["state"] for event in facts["events"]] == ["down"]
    assert list(picture.unhealthy) == ["K2"]

    other = Reported(state="running", process="b")
    tick(picture, 3000, ends, {"P1": 10, "P2": 10}, {"P2": 10, "P3": 10}, K1=other)
    texts = [event["text"] for event in moment(picture)["events"]]
    assert texts[1:] == ["K1 is run by another process now", "K2 is up"]
    after = begun(chain(epoch=2), 4000, picture)
    assert "epoch 2 is in force" in moment(after)["events"][-1]["text"]
    assert [spec["depth"] for spec in layout(after)["collectors"]] == [0, 1]


def test_the_worst_check_is_shown_and_none_is_off():
    bad = {"state": "violated", "witness": "x"}
    assert worst_check([{"state": "ok"}, bad, None, {"state": 3}, "ok"]) == bad
    assert worst_check([None, {}]) == {"state": "off"}


def test_the_last_runs_of_a_log_are_known_in_bounded_memory(monkeypatch):
    monkeypatch.setattr("collectors.live.ordered_runs._RUNS_MAX", 8)
    monkeypatch.setattr("collectors.live.ordered_runs._RUNS_OF_LOG_MIN", 4)
    runs, stream = OrderedRuns(), SimpleNamespace(plan=chain(), collector="K1", own={0})
    for first in range(0, 100, 2):
        runs.add(stream, first, (Run(0, first, first + 2), Run(1, first, first + 2)), 1000 + first)
    assert (runs.of("P1", 99).record, runs.of("P1", 99).time_ms) == (98, 1098)
    assert runs.of("P1", 100) is None
    assert runs.of("P1", 0) is None
    assert runs.of("P2", 0) is None
