"""`examples/faust_totals`: each message counts once in its window, over kill -9."""

from collections import Counter

import pytest

from multicast import Consumer, Producer
from tests.helpers.example_programs import EXAMPLES, example_system
from tests.helpers.faust_worker import FaustWorker
from tests.helpers.system import PATIENCE_S, until

pytestmark = pytest.mark.timeout(900)
ACCOUNTS = 5
SETS = ({"P1"}, {"P2"}, {"P1", "P2"}, {"P3"})
KILLS = 3
FOREIGN = (None, b"hello", b"\xff", b"a1 5 a2", b"a1 five")
MESSAGES = 2000  # between two kills


def send(where, first, count):
    """Multicast transfers; those to P3 are not for the consumer."""
    with Producer(**where) as producer:
        for foreign in FOREIGN:
            producer.multicast(foreign, to={"P1"})
        receipts = [
            producer.multicast(
                b"a%d -%d a%d %d" % (number % ACCOUNTS, number, number * 7 % ACCOUNTS, number),
                to=SETS[number % len(SETS)],
            )
            for number in range(first, first + count)
        ]
        for receipt in receipts:
            receipt.ordered(PATIENCE_S)


def expected(where):
    """All totals as they are after each message, by account and window."""
    totals, steps = Counter(), []
    with Consumer(**where, name="totals", committed=False) as consumer:
        for batch in consumer.until_end():
            for record in batch.records:
                if record.value in FOREIGN:
                    continue
                words = record.value.decode().split()
                moved = Counter()
                for account, amount in zip(words[::2], words[1::2], strict=True):
                    moved[account] += int(amount)
                for account, amount in moved.items():
                    key = (account, str(record.timestamp_ms // 1000))
                    totals[key] += amount
                    steps.append((*key, str(totals[key])))
    return steps


def test_each_message_counts_once_in_its_window_though_the_worker_is_killed(
    kafka_cluster, tmp_path
):
    with example_system(kafka_cluster.bootstrap, "faust_totals", tmp_path) as example:
        where = {"bootstrap": example.system.bootstrap, "topic": example.system.topic}
        program = EXAMPLES / "faust_totals" / "totals.py"
        worker = FaustWorker(program, *where.values(), tmp_path)
        for kill in range(KILLS):
            lines = len(worker.lines())
            with worker.running(WINDOW_S="1", TOTALS=str(worker.seen)):
                send(where, kill * MESSAGES, MESSAGES)
                enough = lines + MESSAGES // 2
                until(lambda least=enough: len(worker.lines()) >= least, "totals", pause=0.1)
        steps = expected(where)
        with worker.running(WINDOW_S="1", TOTALS=str(worker.seen)) as process:
            until(lambda: worker.lines()[-1:] == [list(steps[-1])], "the last total")
            assert worker.ends(process) == 0
        wanted = {step[:2]: step[2] for step in steps}
        assert {tuple(words[:2]): words[2] for words in worker.lines()} == wanted
