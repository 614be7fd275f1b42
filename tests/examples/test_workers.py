"""`examples/workers`: every message has one effect, in the order of its key, over kill -9."""

import sqlite3
import time
from contextlib import closing

import pytest

from multicast import Consumer, Producer
from tests.helpers.example_programs import example_system
from tests.helpers.system import PATIENCE_S

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(600)]
MESSAGES = 3000
KEYS = 7


def effects(database):
    if not database.exists():
        return []
    with closing(sqlite3.connect(database, timeout=30)) as opened:
        if not opened.execute("SELECT 1 FROM sqlite_master WHERE name = 'effects'").fetchall():
            return []
        return opened.execute("SELECT key, payload FROM effects ORDER BY step").fetchall()


def test_keys_and_payloads_may_be_any_bytes(kafka_cluster, tmp_path):
    """Programs of others write to a topic; a worker that ended made the reader wait for ever."""
    database = tmp_path / "done.db"
    sent = [(b"\xff", b"\xfe"), (None, None), (b"", b""), (b"k", b"text")]
    with example_system(kafka_cluster.bootstrap, "workers", tmp_path) as example:
        with Producer(example.system.bootstrap, topic=example.system.topic) as producer:
            for key, payload in sent:
                producer.multicast(payload, to={"P1"}, key=key).accepted(PATIENCE_S)
        example.run("workers.py", "--database", database, "--until-end")
        assert sorted(effects(database), key=str) == sorted(sent, key=str)


def test_each_message_has_one_effect_in_its_keys_order_though_the_process_is_killed(
    kafka_cluster, tmp_path
):
    database = tmp_path / "done.db"
    with example_system(kafka_cluster.bootstrap, "workers", tmp_path) as example:
        where = {"bootstrap": example.system.bootstrap, "topic": example.system.topic}
        with Producer(**where) as producer:
            receipts = [
                producer.multicast(
                    b"%d" % number,
                    to=[{"P1"}, {"P2"}, {"P1", "P2"}][number % 3],
                    key=b"k%d" % (number % KEYS),
                )
                for number in range(MESSAGES)
            ]
            for receipt in receipts:
                receipt.accepted(PATIENCE_S)
        deadline = time.monotonic() + PATIENCE_S
        with example.running("workers.py", "--database", database):
            while len(effects(database)) < MESSAGES // 3:
                assert time.monotonic() < deadline
        some = len(effects(database))
        assert some < MESSAGES, "the process was killed too late"
        last = example.run("workers.py", "--database", database, "--until-end")[-1]
        again = int(last.split()[0])
        assert MESSAGES - some <= again < MESSAGES, "nothing was committed before the kill"
        done = effects(database)
        assert sorted(int(payload) for _, payload in done) == list(range(MESSAGES))
        with Consumer(**where, name="all", committed=False) as consumer:
            order = [
                (record.key, record.value)
                for batch in consumer.until_end()
                for record in batch.records
            ]
        for key in {key for key, _ in order}:
            assert [e for e in done if e[0] == key] == [e for e in order if e[0] == key]
