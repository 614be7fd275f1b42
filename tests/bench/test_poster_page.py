"""The poster's experiment: its page from a run's tables, and a small one for real, by Spark."""

import pytest

from bench.report.poster import Experiment, run
from bench.report.poster_plots import plots, points, times
from bench.report.report import write_poster_page
from tests.helpers.pages import Page

# Plain Kafka takes 10 ms, order twice as much and 0.8 of the rate, each consumer.
P50_MS = {"plain": 10.0, "ordered": 20.0}
RATE = {"plain": 100.0, "ordered": 80.0}


def document(sizes=(1, 2), data_sets=((100, 10_000), (1000, 10_000), (100, 1_000_000))):
    """A document as a run may write it."""
    runs, latencies, rates = [], [], []
    for kind in ("plain", "tree", "bottleneck"):
        for size in sizes:
            for messages, message_bytes in data_sets:
                name = f"{kind}-{size}-{messages}x{message_bytes}"
                about = {"kind": kind, "size": size, "messages": messages, "bytes": message_bytes}
                runs.append({"name": name, **about, "r": messages / message_bytes})
                for arm in ("plain",) if kind == "plain" else ("plain", "ordered"):
                    readers = 1 if kind == "tree" else size
                    side = {"run": name, "arm": arm}
                    latencies += [
                        {**side, "measure": "end_to_end", "p50_ms": P50_MS[arm]},
                        {**side, "measure": "publish", "p50_ms": 1.0},
                    ]
                    rates += [
                        {**side, "measure": "delivered", "megabytes_per_s": readers * RATE[arm]},
                        {**side, "measure": "accepted", "megabytes_per_s": 7.0},
                    ]
    order = {"holds": True, "deliveries": 5000, "inversions": 0, "unplaced": 0, "disagreements": 0}
    return {
        "command": "amcast bench poster --out DIR",
        "seconds": 9.5,
        "pairs": 2,
        "machine": {"cpus": 2, "cpu_model": "a <fast> one"},
        "versions": {"kafka": "4.3.1"},
        "source": {"commit": "abc", "changed": False},
        "runs": runs,
        "failed": [{"name": "tree-9", "error": "TimedOut: <late>"}],
        "pipeline": {
            "events": 10_000,
            "latencies": latencies,
            "rates": rates,
            "lost": 0,
            "order": order,
        },
    }


def test_a_point_is_one_consumers_rate_and_is_divided_by_plain_of_the_same_configuration():
    measured = points(document())
    assert {(point.p50_ms, point.megabytes_per_s) for point in measured} == {(10, 100), (20, 80)}
    divided = times(measured)
    assert {point.kind for point in divided} == {"tree", "bottleneck"}
    assert {(point.p50_ms, point.megabytes_per_s) for point in divided} == {(2.0, 0.8)}


def test_a_run_gives_latency_and_throughput_against_size_r_height_and_bottleneck():
    made = plots(document())
    assert [plot.name for plot in made] == [
        *("poster-latency", "poster-throughput"),
        *(
            f"poster-{figure}-times-by-{what}"
            for what in ("bytes", "r", "tree", "bottleneck")
            for figure in ("latency", "throughput")
        ),
    ]
    assert [line.arm for line in made[0].lines] == ["plain", "tree", "bottleneck"]
    by_height = next(plot for plot in made if plot.name == "poster-latency-times-by-tree")
    assert [line.label for line in by_height.lines] == [
        "smallest messages, 10 kB",
        "largest messages, 1 MB",
    ]
    assert by_height.lines[0].x == [1.0, 2.0]


@pytest.mark.slow
def test_the_posters_page_is_whole_and_needs_no_other_file():
    text = write_poster_page(document())
    page = Page(text)
    assert len(page.ids) == len(set(page.ids))
    assert {one.removeprefix("#") for one in page.refers} <= set(page.ids)
    assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)
    assert text.count('role="img"') == len(plots(document())) == text.count("<svg")
    words = " ".join(page.texts)
    for fact in ("a <fast> one", "TimedOut: <late>", "no violation", "the poster: small messages",
                 "10 kB: 2 (2 to 2) times plain", "r is at most 1", "5x to 10x"):  # fmt: skip
        assert fact in words


@pytest.mark.kafka
@pytest.mark.campaign
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning",
    "ignore:unclosed <socket:ResourceWarning",
)
def test_a_small_experiment_is_measured_figured_by_spark_and_drawn():
    small = Experiment(sizes=(2,), data_sets=((40, 10_000), (20, 50_000)), pairs=1)
    made = run(small, command="a test", progress=str)
    assert made["failed"] == []
    assert made["pipeline"]["order"]["holds"]
    assert made["pipeline"]["lost"] == 0
    # Two data sets: plain, and both arms of a tree and of a bottleneck. Few messages may all come
    # in one poll, which has no rate and makes no point.
    figured = made["pipeline"]["latencies"]
    delivered = {(row["run"], row["arm"]) for row in figured if row["measure"] == "end_to_end"}
    assert len(delivered) == 2 * (1 + 2 + 2)
    assert points(made)
    assert Page(write_poster_page(made)).ids
