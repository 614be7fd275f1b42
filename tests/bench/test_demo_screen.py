"""The demo's last screen: which delivery belongs to which phase, and the order as a picture."""

import pytest

from bench.demo.screen import Delivered, document, phases, show
from bench.measured_work import MeasuredWork, WorkRow
from multicast.history import HistoryBuilder
from multicast.properties import check_all

S = 1_000_000_000


def delivered(message, sent_s, after_s):
    return Delivered(message, int(sent_s * S), int((sent_s + after_s) * S))


def test_each_delivery_is_in_one_phase_and_the_failover_is_the_slowest_teams():
    teams = {
        "killed": [
            delivered("a", 1, 0.1),  # warm-up
            delivered("b", 4, 0.1),  # steady, before the kill at 5 s
            delivered("c", 4.9, 3.1),  # caught
            delivered("d", 6, 2),  # caught; the first after the kill: at 8 s
            delivered("e", 7, 1.1),  # caught: multicast before 8 s
            delivered("f", 9, 0.2),  # steady
        ],
        "below": [delivered("g", 6, 3)],  # moves at 9 s
        "other": [delivered("h", 6, 0.1), delivered("i", 0.5, 0.4)],
    }
    plain = [delivered("p0", 1, 0.3), delivered("p1", 3, 0.05), delivered("p2", 6, 0.04)]
    found = phases(teams, ["killed", "below"], 0, 5 * S, plain)
    assert [round(ms) for ms in found.warm_up] == [100, 400]
    assert [round(ms) for ms in found.steady] == [100, 100, 200]
    assert [round(ms) for ms in found.caught] == [1100, 2000, 3000, 3100]
    assert [round(ms) for ms in found.plain] == [40, 50]  # without the warm-up's
    assert found.failover_s == 4
    assert document(found)["steady_p50_by_plain"] == 2
    without = phases(teams, [], 0, None)
    assert (len(without.caught), without.failover_s) == (0, None)
    assert document(without)["caught_in_failover_ms"] == {"count": 0}
    assert document(without)["steady_p50_by_plain"] is None


@pytest.mark.parametrize("same", [True, False])
def test_the_screen_tells_the_phases_the_order_and_the_verdict(capsys, same):
    teams = {
        "one": [delivered("P1:0", 1, 0.2), delivered("P1:1", 4, 0.01), delivered("P1:2", 5.1, 2)],
        "two": [delivered("P1:1", 4, 0.03)],
    }
    result = {
        "messages": 3,
        "deliveries": 4,
        "seconds": 21.5,
        "rate_per_s": 100.0,
        "killed": "K2",
        "phases": document(phases(teams, ["one"], 0, 5 * S, [delivered("P1:0", 4, 0.02)])),
        "replay": {"team": "one", "deliveries": 3, "seconds": 0.25, "same": same},
    }
    work = MeasuredWork(1.0, (WorkRow("K1", 5, 5, 2, 2),), (WorkRow("one", 0, None, 3, 3),), ())
    report = check_all(HistoryBuilder().history())
    show(result, report, work, teams)
    lines = capsys.readouterr().out.splitlines()

    def after(beginning):
        (found,) = [line for line in lines if line.strip().startswith(beginning)]
        return found.strip().removeprefix(beginning).split()

    # The three phases, each with its own figures, and none over all of them.
    assert after("first 2 s") == ["1", "200.0", "ms", "200.0", "ms", "200.0", "ms"]
    assert after("steady") == ["2", "30.0", "ms", "30.0", "ms", "30.0", "ms"]
    assert after("plain Kafka beside it") == ["1", *["20.0", "ms"] * 3]
    assert after("Steady p50:")[:6] == ["1.5", "times", "that", "of", "plain", "Kafka,"]
    assert after("caught in the failover") == ["1", *["2,000.0", "ms"] * 3]
    failover = " ".join(after("Failover:"))
    assert failover.startswith("collector K2 was killed")
    assert failover.endswith("(one) got new messages again after 2.10 s, from its standby")
    replayed = " ".join(after("Replay:"))
    assert "once more, from the start, in 250 ms" in replayed
    assert replayed.endswith("the same sequence" if same else "ANOTHER SEQUENCE")
    assert [after(f"P1:{offset}") for offset in range(3)] == [["1", "·"], ["2", "1"], ["3", "·"]]
    assert after("Guarantees, checked over all deliveries:") == ["no", "violations"]
