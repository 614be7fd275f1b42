"""`amcast export` on a real broker: each row once, in order, however often it is killed."""

import json
import random
import signal
import subprocess
import sys

import pyarrow.dataset
import pytest

from multicast.consuming.subscription import SubscriptionRequest
from multicast.errors import Conflict, TopicChanged
from multicast.tables.export import ABOUT, Export, export, files, locked, rows_of
from multicast.testing import system
from tests.helpers.system import PATIENCE_S, amcast, until
from tests.spark.rows import INTERESTS, send, send_oddities
from tests.spark.rows import rows_of as delivered_rows

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(900)]


@pytest.fixture
def topic(amcast_topic):
    topic = amcast_topic(INTERESTS)
    send(topic, 300)
    send_oddities(topic)
    return topic


def command(topic, folder, *words, consumer="C1"):
    return [
        *("export", "--to", str(folder), "--consumer", consumer, "--rows", "20"),
        *("-b", topic.bootstrap, "-t", topic.topic, "--timeout", str(PATIENCE_S), *words),
    ]


def whole(topic, name="C1"):
    return delivered_rows(topic.drain(topic.consumer(name, committed=False)))


def exported(folder):
    rows = [row for path in files(folder) for row in rows_of(path)]
    places = [(row["epoch"], row["position"]) for row in rows]
    assert places == sorted(set(places))
    return rows


def test_an_export_that_is_killed_goes_on_without_a_lost_or_doubled_row(topic, tmp_path):
    # Test: kill an export that follows, after one or a few files; then export the rest. There are
    # always enough messages for so many files, however much was exported before a kill.
    folder, rng = tmp_path / "out", random.Random(3)
    words = [sys.executable, "-m", "multicast", *command(topic, folder)]
    for turn in range(3):
        send(topic, 120, seed=10 + turn)
        before = len(files(folder))
        wanted = before + rng.randint(1, 3)
        with subprocess.Popen([*words, "--follow"], stderr=subprocess.DEVNULL) as process:
            until(lambda: len(files(folder)) >= wanted or process.poll() is not None, "files")  # noqa: B023
            process.send_signal(signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL
    (folder / "_E000000001-P1-P2.parquet.part").write_bytes(b"left by a kill")
    fewer = {**INTERESTS, "topic": topic.topic, "consumer": INTERESTS["consumer"][:2]}
    topic.replan(fewer, uncovered=True)
    send(topic, 50, seed=2)
    done = amcast(*command(topic, folder))
    assert done.returncode == 0, done.stderr
    again = amcast(*command(topic, folder))
    assert (again.returncode, again.stderr.splitlines()[-1]) == (0, "exported 0")

    # Check: the rows of a plain consumer.
    assert [
        (
            *(row[name] for name in ("epoch", "message_id", "log", "offset", "to", "key")),
            *(row["value"], [(pair["key"], pair["value"]) for pair in row["headers"]]),
            *(round(row["timestamp"].timestamp() * 1000), row["cursor"]),
        )
        for row in exported(folder)
    ] == whole(topic)
    assert not list(folder.glob("*.part"))


def test_other_programs_read_the_folder_as_it_stands_also_while_it_is_written(topic, tmp_path):
    folder = tmp_path / "out"
    assert amcast(*command(topic, folder)).returncode == 0
    (folder / "_E000000001-P1-P2.parquet.part").write_bytes(b"unfinished")
    table = pyarrow.dataset.dataset(folder, format="parquet").to_table()
    assert table.sort_by("position")["cursor"].to_pylist() == [row[-1] for row in whole(topic)]


def test_an_export_does_not_go_on_with_another_topic_of_the_same_name(tmp_path):
    """In memory: a topic that is deleted and recreated, as with a broker whose data was wiped."""
    interests = {"topic": "A", "partitions": ["P1", "P2"]}
    interests["consumer"] = [{"name": "C1", "interest": ["P1", "P2"]}]
    other = {**interests, "partitions": ["P1", "P2", "P3"]}  # IDs of topics in memory are the same
    what = Export("A", SubscriptionRequest.of("C1", None), 100, PATIENCE_S)

    def exports(system, folder):
        with locked(folder, what):
            return export(system.driver, folder, what, "earliest", follow=False, progress=str).rows

    with system(interests) as first, system(other) as recreated:
        for each, count in ((first, 3), (recreated, 9)):
            with each.producer() as producer:
                for number in range(count):
                    producer.multicast(b"", to={f"P{1 + number % 2}"}).ordered()

        # Test: as many rows as the folder has would be left out.
        assert exports(first, tmp_path) == 3
        with pytest.raises(TopicChanged, match="an export in a new folder"):
            exports(recreated, tmp_path)

        # Check: the folder goes on with its own topic, also one that does not say yet which it is.
        about = json.loads((tmp_path / ABOUT).read_text())
        assert exports(first, tmp_path) == 0
        del about["origin"]
        (tmp_path / ABOUT).write_text(json.dumps(about) + "\n")
        assert exports(first, tmp_path) == 0
        with pytest.raises(TopicChanged):
            exports(recreated, tmp_path)

        # Check: a file that a full disk has cut off does not make the folder anybody's.
        (tmp_path / ABOUT).write_text("")
        with pytest.raises(Conflict, match="was cut off"):
            exports(recreated, tmp_path)


def test_a_folder_belongs_to_one_export(topic, tmp_path):
    folder = tmp_path / "out"
    assert amcast(*command(topic, folder)).returncode == 0
    other = amcast(*command(topic, folder, consumer="C2"))
    assert other.returncode == 5
    assert json.loads((folder / ABOUT).read_text())["consumer"] == "C1"
    assert "holds an export of" in other.stderr
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("x")
    mine = amcast(*command(topic, tmp_path / "mine"))
    assert mine.returncode == 2
    assert "is not empty" in mine.stderr
    follower = [sys.executable, "-m", "multicast", *command(topic, tmp_path / "f", "--follow")]
    with subprocess.Popen(follower, stderr=subprocess.DEVNULL) as process:
        until(lambda: files(tmp_path / "f"), "a file")
        second = amcast(*command(topic, tmp_path / "f"))
        process.kill()
    assert second.returncode == 5
    assert "another process" in second.stderr
