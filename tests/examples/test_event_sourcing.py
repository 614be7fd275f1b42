"""`examples/event_sourcing`: shops that contend, projections that are killed and rebuilt."""

import json
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from multicast import Producer
from tests.helpers.example_programs import example_system

# JSON that one reader could parse, and another, whose stack is deeper already, could not.
NESTED = b"[" * 200 + b"]" * 200
DEEP = [
    b'{"kind": "restocked", "item": "a", "quantity": 1, "x": ' + NESTED + b"}",
    b"[" * 100_000,
]
pytestmark = [
    pytest.mark.campaign,
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]


def tables(database):
    with closing(sqlite3.connect(database)) as opened:
        return [
            opened.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall()
            for table in ("stock", "orders", "position")
        ]


def test_shops_contend_and_projections_are_those_of_one_position(kafka_cluster, tmp_path):
    with example_system(kafka_cluster.bootstrap, "event_sourcing", tmp_path) as example:
        with ThreadPoolExecutor() as pool:
            runs = [
                pool.submit(example.run, "shop.py", "--name", name, "--orders", 20)
                for name in ("a", "b", "c")
            ]
            lines = [json.loads(line) for run in runs for line in run.result()]
        shipped = [line["shipped"] for line in lines if line["shipped"]]
        assert len(set(shipped)) == len(shipped) > 0

        whole, killed, again = (tmp_path / f"{name}.db" for name in ("whole", "killed", "again"))
        cursors = example.run("projection.py", "--name", "both", "--database", whole, "--until-end")
        # Killed twice; the third run gets to the end. The CHECK of the table holds all the time.
        for _ in range(2):
            example.killed_after(10, "projection.py", "--name", "both", "--database", killed)
        example.run("projection.py", "--name", "both", "--database", killed, "--until-end")
        assert tables(killed) == tables(whole)
        stock, orders, _ = tables(whole)
        assert {order for order, _ in orders} == {x["order"] for x in lines if x["placed"]}
        assert {order for order, state in orders if state == "shipped"} == set(shipped)

        # The state of a position in the middle is the same however it is reached.
        middle = cursors[len(cursors) // 2]
        example.run("projection.py", "--name", "both", "--database", again, "--up-to", middle)
        assert tables(again)[2] == [(1, middle, "both")]
        rebuilt = tables(again)
        again.unlink()
        up_to = ("--up-to", middle)  # the killed one must not come past it
        example.killed_after(5, "projection.py", "--name", "both", "--database", again, *up_to)
        example.run("projection.py", "--name", "both", "--database", again, "--up-to", middle)
        assert tables(again) == rebuilt

        # Projections of a part come to the same part.
        for name, table, expected in [("warehouse", 0, stock), ("sales", 1, orders)]:
            part = tmp_path / f"{name}.db"
            example.run("projection.py", "--name", name, "--database", part, "--until-end")
            assert tables(part)[table] == expected


def projected(example, database, *arguments, name="both"):
    where = ("--name", name, "--database", database, "--until-end")
    return example.run("projection.py", *where, *arguments)


def send(example, *payloads):
    where = {"bootstrap": example.system.bootstrap, "topic": example.system.topic}
    with Producer(**where) as producer:
        for payload in payloads:
            producer.multicast(payload, to={"orders", "stock"}).accepted()


def test_foreign_messages_change_nothing_and_an_unknown_event_ends_the_program(
    kafka_cluster, tmp_path
):
    database = tmp_path / "both.db"
    both = ("--name", "both", "--database", database, "--until-end")
    with example_system(kafka_cluster.bootstrap, "event_sourcing", tmp_path) as example:
        foreign = [None, b"", b"hello", b"\xff", b"[1]", b"{}", b'{"kind": 1}', *DEEP]
        send(example, *foreign)
        lines = example.run("shop.py", "--name", "a", "--orders", 4)
        assert len(lines) == 4
        done = example.outcome("projection.py", *both)
        assert done.stderr.splitlines() == [
            f"orders+stock:{offset} is no event, and changes nothing"
            for offset in range(len(foreign))
        ]
        assert projected(example, database) == []  # the foreign ones do not come again

        # A shop that was killed and is started again gives no order a second time.
        again = example.run("shop.py", "--name", "a", "--orders", 4)
        orders = [json.loads(line)["order"] for line in lines + again if json.loads(line)["placed"]]
        assert len(set(orders)) == len(orders)
        projected(example, database)
        before = tables(database)

        send(example, b'{"kind": "moved", "order": "a-0"}')
        for program in (("projection.py", *both), ("shop.py", "--name", "a")):
            sentence, code = example.refused(*program)
            assert "is an event of an unknown kind or form" in sentence
            assert code == 1
        assert tables(database) == before
