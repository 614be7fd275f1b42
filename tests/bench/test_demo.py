"""The demo: one JSON document, every guarantee judged, the phases of its last screen."""

import gzip
import json
import re
from importlib import resources

from bench.demo.cli import lay_out, read_commits
from bench.demo.screen import Delivered, document, phases
from tests.helpers.system import amcast

SAMPLE = resources.files("bench").joinpath("workloads/kafka-commits-2000.jsonl.gz")
S = 1_000_000_000


def test_the_demo_orders_real_commits_kills_a_collector_and_proves_the_order(
    kafka_cluster, tmp_path
):
    lines = gzip.decompress(SAMPLE.read_bytes()).splitlines(keepends=True)[:400]
    file = tmp_path / "commits.jsonl"
    file.write_bytes(b"".join(lines))
    history = tmp_path / "history.jsonl"
    done = amcast(
        "demo", "--input", str(file), "--rate", "100", "-o", "json", "--history", str(history),
        "-b", kafka_cluster.bootstrap, "-t", f"demo-{tmp_path.name}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["messages"] == 400
    assert result["deliveries"] > 400
    assert (result["violations"], result["not_checked"]) == (0, ["fifo order"])
    assert result["covered"] > 0
    assert result["latency_ms"]["p50"] <= result["latency_ms"]["p99"]
    assert result["throughput_per_s"] > 0
    phases = result["phases"]
    assert phases["plain_kafka_ms"]["count"] > 0
    counts = [phases[f"{name}_ms"]["count"] for name in ("warm_up", "steady", "caught_in_failover")]
    assert sum(counts) == result["deliveries"]
    assert phases["failover_s"] > 0
    assert phases["affected_teams"]
    assert result["replay"]["same"]
    assert result["replay"]["deliveries"] == result["teams"][result["replay"]["team"]]
    assert result["killed"] in [node["name"] for node in result["tree"]["collectors"]]
    work = result["measured_work"]
    uncounted = [row["name"] for row in work["collectors"] if row["dropped_measured"] is None]
    # The two instances start together. If the standby was the later one, it has counted everything.
    assert uncounted in ([result["killed"]], [])
    # With tickets messages do without it for a while, so perhaps nobody acts in its place yet.
    reasons = r"another process took it over meanwhile|http://\S+/status cannot be read \(.+\)"
    for sentence, name in zip(work["not_counted"], uncounted, strict=True):
        assert re.fullmatch(rf"not counted: {name}: ({reasons})", sentence)
    counted = [row for row in work["collectors"] if row["name"] not in uncounted]
    assert sum(row["passed_on_measured"] + row["dropped_measured"] for row in counted) > 0
    for row in (*counted, *work["consumers"]):
        assert row["passed_on_measured"] == row["passed_on_predicted"], row
        assert row["dropped_measured"] == row["dropped_predicted"], row
    assert amcast("verify", str(history)).returncode == 0


def test_the_sample_is_2000_commits_and_its_plan_covers_every_destination_set():
    commits = read_commits(None)
    assert len(commits) == 2000
    plan, text = lay_out(commits, "commits")
    assert all(plan.cover(commit.to) is not None for commit in commits)
    assert len([log for log in plan.logs if len(log.to) > 1]) == 41
    assert f"cost {plan.objective.cost:g}" in text


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
