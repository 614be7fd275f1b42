"""`examples/event_sourcing`: shops that contend, projections that are killed and rebuilt."""

import json
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from tests.helpers.example_programs import example_system

pytestmark = pytest.mark.timeout(600)


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
