"""Workers that are killed again and again lose nothing, and repeat only what they may."""

import itertools
import random
import subprocess
import sys
from collections import defaultdict

import pytest

from multicast import Consumer
from tests.helpers.system import until
from tests.running.parts import sample

TO = {"P1", "P2"}
INTERESTS = {"consumers": {"C1": TO}, "destinations": [TO]}
KINDS = ["threads", "processes", "tasks"]
MESSAGES_OF_A_RUN = 500


def multicast(topic, count, rng):
    """Transfers that touch two accounts, and deposits to one, over three logs."""
    with topic.producer() as producer:
        for number in range(count):
            accounts = rng.sample([b"a%d" % account for account in range(12)], 1 + number % 2)
            to = rng.choice([{"P1"}, {"P2"}, TO])
            producer.multicast(b" ".join([b"%d" % number, *accounts]), to=to)


def handled(file):
    """The lines that are whole: the run, the message's ID, and its payload."""
    lines = [line.split(b" ", 3) for line in file.read_bytes().splitlines(keepends=True)]
    return [
        (int(run), f"{log.decode()}:{int(offset)}", payload.strip())
        for run, log, offset, payload in lines
    ]


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kills", sample([5, 30], of=1))
def test_kill_9_loses_nothing_and_repeats_only_what_was_not_committed(
    kills, amcast_topic, tmp_path
):
    # Init.
    rng, topic = random.Random(kills), amcast_topic(INTERESTS)
    multicast(topic, MESSAGES_OF_A_RUN * kills, rng)
    file = tmp_path / "handled"
    file.touch()
    common = [topic.bootstrap, topic.topic, str(file)]
    # Test.
    cursors = []
    for run, kind in zip(range(kills + 1), itertools.cycle(KINDS), strict=False):
        with Consumer(topic.bootstrap, topic=topic.topic, name="C1") as consumer:
            cursors.append(consumer.position)
        command = [sys.executable, "-m", "tests.multicast.workers.program", *common]
        with subprocess.Popen([*command, str(run), kind]) as process:
            if run == kills:
                assert process.wait(120) == 0
                break
            enough = file.read_bytes().count(b"\n") + rng.randint(1, 2 * MESSAGES_OF_A_RUN)
            until(
                lambda: file.read_bytes().count(b"\n") >= enough or process.poll() is not None,  # noqa: B023
                "messages that are handled",
            )
            process.kill()
    # Check.
    assert len(set(cursors)) > 2, "they were killed before they had committed"
    order = topic.drain(topic.consumer("C1", committed=False))
    places = {str(message.message_id): place for place, message in enumerate(order)}
    first_free = {str(message.cursor): place + 1 for place, message in enumerate(order)}
    lines = handled(file)
    assert {message for _, message, _ in lines} == set(places), "a message was lost"
    assert [run for run, *_ in lines] == sorted(run for run, *_ in lines), "an orphan went on"
    assert len(lines) > len(places), "nothing was killed in the middle"
    of_key = defaultdict(list)
    for run, message, payload in lines:
        assert places[message] >= first_free.get(str(cursors[run]), 0), "it was committed"
        for key in payload.split()[1:]:
            of_key[run, key].append(places[message])
            of_key[key].append(places[message])
    for key, handled_places in of_key.items():
        whole = isinstance(key, tuple)
        first = handled_places if whole else list(dict.fromkeys(handled_places))
        assert first == sorted(first), f"the order of {key}"
