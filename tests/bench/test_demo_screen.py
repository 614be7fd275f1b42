"""The demo's last screen: which delivery belongs to which phase."""

from bench.demo.screen import Delivered, document, phases

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
