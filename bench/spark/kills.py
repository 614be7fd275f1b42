"""Kills streaming queries at random moments, and judges what their sinks hold.

    python -m bench.spark.kills [--kills 100] [--seed 1] [--minutes 60]

One broker, five partitions, a producer that sends all the time, and an epoch change each minute.
Two queries of `format("amcast")` read the same consumer at the same time, one into Spark's sink for
files, the other by `foreachBatch` into SQLite. Each gets half of the kills
(`bench/spark/campaign.py` says which ones). Then the producer ends, both queries read what
is left, and each sink must hold what a plain consumer delivers: each message once, and in order.
After so many minutes the kills end, if they are not complete.

Printed are the kills of each kind, the epochs, and the rows of each sink. The exit code is not 0 if
a sink holds anything else, or if a query ended by itself.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path

from bench.harness import figures
from bench.spark.campaign import PORTIONS, BackgroundSender, drawn, finish, judge, kill, stored
from bench.spark.streamed import Sink, StreamedQuery
from collectors.testing.running import RunningTopic
from multicast.local.cluster import LocalCluster

_SINKS: tuple[Sink, ...] = ("files", "sqlite")
_EPOCH_S = 60.0  # some turns of both queries
_SETS = [["P1"], ["P2"], ["P3"], ["P4"], ["P5"], ["P1", "P3"], ["P2", "P3", "P4"], ["P2", "P4"]]


def interests(epoch: int) -> dict[str, object]:
    """Give what consumers read in an epoch: in every second one C1 reads P4, too."""
    own = ["P1", "P2", "P3", "P4"] if epoch % 2 == 0 else ["P1", "P2", "P3"]
    return {
        "topic": "A",
        "partitions": ["P1", "P2", "P3", "P4", "P5"],
        "destinations": [["P1", "P3"], ["P2", "P3", "P4"]],
        "consumer": [
            {"name": "C1", "interest": own},
            {"name": "C2", "interest": ["P2", "P3", "P4"]},
            {"name": "C5", "interest": ["P5"]},
        ],
    }


def run(
    topic: RunningTopic, folder: Path, *, kills: int, seed: int, minutes: float
) -> dict[str, float]:
    """Run the campaign on a topic; give the figures. Raises what `kill` and `judge` raise."""
    queries = {}
    for sink in _SINKS:
        (folder / sink).mkdir()
        queries[sink] = StreamedQuery(
            topic.bootstrap, topic.topic, folder / sink, sink, consumer="C1", **PORTIONS
        )
    epoch = 1
    with (
        ThreadPoolExecutor(len(queries)) as pool,
        BackgroundSender(topic, _SETS, drawn(f"{seed}")),
    ):
        works = {
            sink: pool.submit(
                kill,
                query,
                (kills + place) // len(queries),
                drawn(f"{seed} {sink}"),
                seconds=60 * minutes,
            )
            for place, (sink, query) in enumerate(queries.items())
        }
        while wait(works.values(), _EPOCH_S, return_when=FIRST_EXCEPTION).not_done:
            for work in works.values():
                if work.done():
                    work.result()  # raises at once what ended one of them
            epoch += 1
            topic.replan({**interests(epoch), "topic": topic.topic})
            figures.progress(f"epoch {epoch}")
    delivered = [
        str(message.message_id) for message in topic.drain(topic.consumer("C1", committed=False))
    ]
    measured: dict[str, float] = {"epochs": epoch}
    for sink, query in queries.items():
        figures.progress(f"judging {sink}")
        for kind, count in sorted(works[sink].result().items()):
            measured[f"{sink}_kills_{kind.replace(' ', '_')}"] = count
        finish(query)
        held = stored(query)
        judge(held, delivered)
        measured[f"{sink}_rows"] = len(held)
    return measured


def main(arguments: Sequence[str]) -> None:
    """Run the campaign, and print the figures."""
    parser = figures.parser("kills", __doc__, room="spark")
    parser.add_argument("--kills", type=int, default=100, help="of both queries together")
    parser.add_argument("--seed", type=int, default=1, help="of messages, victims and moments")
    parser.add_argument("--minutes", type=float, default=60.0, help="of kills, at most")
    options = parser.parse_args(arguments)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="amcast-kills-")))
        cluster = stack.enter_context(LocalCluster(brokers=1))
        topic = stack.enter_context(RunningTopic(cluster.bootstrap, interests(1)))
        measured = run(
            topic, folder, kills=options.kills, seed=options.seed, minutes=options.minutes
        )
        document = figures.document(
            "kills", measured, kafka=cluster.version, arguments=arguments, room="spark"
        )
    figures.show(document, options.output)


if __name__ == "__main__":
    main(sys.argv[1:])
