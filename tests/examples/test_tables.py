"""Tables that examples keep in SQLite: what they refuse, and where they stop. No broker runs."""

import importlib.util
import sqlite3
import sys
from argparse import Namespace
from contextlib import closing
from dataclasses import replace

import pytest

from multicast import AmcastError, Cursor
from multicast.errors import UsageError
from multicast.testing import system
from tests.helpers.example_programs import EXAMPLES

ALL = {"orders", "stock"}
INTERESTS = {"consumers": {"both": ALL}, "destinations": [ALL]}
EARLIER = "CREATE TABLE position (only INTEGER PRIMARY KEY CHECK (only = 1), cursor TEXT)"


def program(example, name, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, str(EXAMPLES / example)])
    path = EXAMPLES / example / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"{example}_{name}", path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture
def projection(monkeypatch):
    return program("event_sourcing", "projection", monkeypatch)


@pytest.fixture
def database():
    with closing(sqlite3.connect(":memory:")) as opened:
        yield opened


def test_tables_of_an_earlier_version_are_refused(projection, database, monkeypatch):
    database.execute(EARLIER)
    with pytest.raises(UsageError, match="an earlier version made the tables"):
        projection.Projection(database, "both")
    reader = program("outbox", "reader", monkeypatch)
    with pytest.raises(UsageError, match="an earlier version made the books"):
        reader.position(database, {"stock"})


def test_a_projection_stops_before_a_message_after_its_cursor(projection, capsys):
    def project(consumer, up_to):
        with closing(sqlite3.connect(":memory:")) as database:
            tables = projection.Projection(database, "both")
            projection.project(tables, consumer, Namespace(up_to=up_to, until_end=True))
        return capsys.readouterr().out.split()

    with system(INTERESTS) as s:
        for to in (ALL, {"orders"}, {"stock"}, ALL):
            s.producer().multicast(b'{"kind": "shipped", "order": "x"}', to=to).ordered()
        cursors = project(s.consumer("both", committed=False), "")
        assert len(cursors) == 4
        assert project(s.consumer("both", committed=False), cursors[2]) == cursors[:3]
        last = Cursor.parse(cursors[3])
        between = str(replace(last, next=last.next - 1))
        assert between not in cursors
        assert project(s.consumer("both", committed=False), between) == cursors[:3]


def test_an_event_that_sqlite_cannot_store_is_one_sentence(projection, database):
    with system(INTERESTS) as s:
        s.producer().multicast(b'{"kind": "shipped", "order": "\\ud800"}', to=ALL).ordered()
        tables = projection.Projection(database, "both")
        consumer = s.consumer("both", committed=False)
        with pytest.raises(AmcastError, match=r"the tables cannot take orders\+stock:0: "):
            projection.project(tables, consumer, Namespace(up_to="", until_end=True))
