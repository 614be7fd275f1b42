"""`examples/cdc`: transactions of a source arrive whole and in order, over kill -9."""

import importlib.util
import json
import random
import sqlite3
import sys
from contextlib import closing, nullcontext
from typing import NamedTuple

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from hypothesis import given, settings
from hypothesis import strategies as st

from multicast import Consumer
from tests.helpers.example_programs import EXAMPLES, example_system
from tests.helpers.system import PATIENCE_S

FOLDER = EXAMPLES / "cdc"
READERS = {
    "crm": ["customers"],
    "shipping": ["orders", "lines"],
    "warehouse": ["customers", "orders", "lines"],
}
COUNT = 80


def module(name):
    """Load a program of the example; they import each other by their plain names."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    made = importlib.util.module_from_spec(spec)
    sys.modules[name] = made
    spec.loader.exec_module(made)
    return made


@pytest.fixture(scope="module")
def programs():
    names = ("source", "relay")
    try:
        yield [module(name) for name in names]
    finally:
        for name in names:
            sys.modules.pop(name, None)


def stream(source, seed):
    """The topics of a source, each with its records, after a restart of the connector."""
    rng = random.Random(seed)
    tables = source.SourceTables(rng)
    made = [source.records(tables, number) for number in range(25)]
    mixed = []
    for part in (made[:12], made[8:12], made[12:]):
        mixed += source.shuffled([record for one in part for record in one], rng)
    topics = {}
    for topic, _, value in mixed:
        topics.setdefault((topic, 0), []).append(value)
    return topics, [one[-1][1] for one in made]


@settings(max_examples=60)
@given(st.integers(0, 10**6))
def test_a_relay_that_crashes_anywhere_sends_every_transaction_whole_and_first_in_order(
    programs, seed
):
    """The topics are read in any order; after each crash the relay begins at its last commit."""
    source, relay = programs
    topics, names = stream(source, seed)
    rng = random.Random(seed)
    committed, noted = dict.fromkeys(topics, 0), relay.SentIDs(sqlite3.connect(":memory:"))
    sent = []
    for life in range(6):
        assembly, position = relay.Assembly(noted.is_noted), dict(committed)
        records = rng.randint(1, 150) if life < 5 else 10**6
        while records > 0:
            records -= 1
            open_topics = [place for place in topics if position[place] < len(topics[place])]
            if not open_topics:
                break
            place = rng.choice(open_topics)
            assembly.take(place, position[place], topics[place][position[place]])
            position[place] += 1
            while (whole := assembly.complete()) is not None:
                sent.append(whole)
                if life < 5 and rng.random() < 0.05:  # killed before it is noted
                    records = 0
                    break
                noted.note(whole[0])
                assembly.sent()
                if rng.random() < 0.3:
                    committed.update(assembly.next_offsets())
    # Nothing is kept back for ever: the next life would begin at the end.
    begin = committed | assembly.next_offsets()
    assert begin == {place: len(topics[place]) for place in topics}
    firsts = list(dict.fromkeys(name for name, _ in sent))
    assert firsts == names
    counts = {
        value["id"]: value["event_count"]
        for value in topics[source.TRANSACTIONS, 0]
        if value["status"] == "END"
    }
    for name, changes in sent:
        orders = [change["transaction"]["total_order"] for change in changes]
        assert orders == list(range(1, counts[name] + 1))


class Stored(NamedTuple):
    """A record as the client gives it."""

    where: str
    content: bytes
    place: int

    def topic(self):
        return self.where

    def value(self):
        return self.content

    def offset(self):
        return self.place

    def partition(self):
        return 0

    def error(self):
        return None


def event(table, name, number, **more):
    """A change of a row as a connector of Debezium writes it."""
    place = {"id": name, "total_order": str(number), "data_collection_order": "1"}
    row = {"op": "c", "before": None, "after": {"id": "r1"}, "source": {"table": table}}
    return f"shop.public.{table}", {**row, "transaction": place, **more}


def boundary(name, status, **counts):
    """BEGIN or END of a transaction."""
    tables = [{"data_collection": f"public.{each}", "event_count": counts[each]} for each in counts]
    value = {"status": status, "id": name, "event_count": sum(counts.values()) or None}
    return "shop.transaction", {**value, "data_collections": tables or None}


MYSQL = "3e11fa47-71ca-11e1-9e33-c80aa9429562:23"
FORMS = {
    "PostgreSQL: an ID for each record": (
        [boundary("571:100", "BEGIN"), event("orders", "571:110", 1), event("lines", "571:120", 2),
         boundary("571:130", "END", orders=1, lines=1)],
        [("571:130", 2)], None,
    ),
    "the number of a transaction comes again": (
        [event("orders", "571:110", 1), boundary("571:130", "END", orders=1),
         event("orders", "571:110", 1), boundary("571:130", "END", orders=1),
         event("orders", "571:910", 1), boundary("571:930", "END", orders=1)],
        [("571:130", 1), ("571:930", 1)], None,
    ),
    "MySQL: one ID": (
        [event("orders", MYSQL, 1), boundary(MYSQL, "END", orders=1)], [(MYSQL, 1)], None,
    ),
    "a table that is not read": (
        [event("orders", "9", 1), boundary("9", "END", orders=1, audit=4),
         boundary("10", "END", audit=1)],
        [("9", 1), ("10", 0)], None,
    ),
    "truncate": (
        [event("orders", "9", 1, op="t", after=None), boundary("9", "END", orders=1)],
        [("9", 1)], None,
    ),
    "a filter": (
        [event("orders", "9", 1), boundary("9", "END", orders=1, lines=1)], [],
        "END is at shop.transaction:0, lacks 1 of its 2 events; .* a filter",
    ),
    "no END": ([event("orders", "9", 1)], [], "has events, but no END"),
    "logical message": (
        [event("orders", "9", 1, op="m", source={})], [], "shop.public.orders:0 .* operation 'm'",
    ),
    "delete without a row": (
        [event("orders", "9", 1, op="d", after=None)], [], "orders:0 .* REPLICA IDENTITY",
    ),
    "snapshot": (
        [event("orders", "9", 1, transaction=None)], [], "provide.transaction.metadata=true",
    ),
    "Avro": ([("shop.public.orders", b"\0\0\0\0\7avro")], [], "orders:0 .*JsonConverter"),
    "no object": ([("shop.public.orders", b"[]")], [], "orders:0 .*JsonConverter"),
    "no ID": ([("shop.transaction", {"status": "END"})], [], "transaction:0 .*Debezium's form"),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_each_form_of_a_connector_is_relayed_or_refused_by_its_place(programs, form):
    _, relay = programs
    records, expected, refusal = FORMS[form]
    ends, sent = {}, []
    with closing(sqlite3.connect(":memory:")) as database:
        noted = relay.SentIDs(database)
        assembly = relay.Assembly(noted.is_noted)

        def run():
            for topic, value in records:
                content = value if isinstance(value, bytes) else json.dumps(value).encode()
                ends[topic] = ends.get(topic, -1) + 1
                relay.take(assembly, Stored(topic, content, ends[topic]))
                while (whole := assembly.complete()) is not None:
                    if whole[1]:
                        relay.message_of(*whole)
                    sent.append((whole[0], len(whole[1])))
                    noted.note(whole[0])
                    assembly.sent()
            if (lacking := assembly.pending()) is not None:
                raise ValueError(lacking)

        with pytest.raises(ValueError, match=refusal) if refusal else nullcontext():
            run()
    assert sent == expected


def begin_again(bootstrap, group):
    """Set the offsets of the relay's group to the begin of its topics."""
    topics = ["shop.transaction", *(f"shop.public.{table}" for table in READERS["warehouse"])]
    offsets = [confluent_kafka.TopicPartition(topic, 0, 0) for topic in topics]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    request = [confluent_kafka.ConsumerGroupTopicPartitions(group, offsets)]
    for answer in admin.alter_consumer_group_offsets(request).values():
        answer.result(PATIENCE_S)


def rows(database):
    with closing(sqlite3.connect(database)) as opened:
        found = opened.execute("SELECT name, id, value FROM rows").fetchall()
        applied = [name for (name,) in opened.execute("SELECT id FROM applied ORDER BY step")]
    copied = {}
    for table, key, value in found:
        copied.setdefault(table, {})[key] = json.loads(value)
    return copied, applied


@pytest.mark.timeout(600)
def test_readers_of_any_tables_have_the_sources_rows_though_all_are_killed(kafka_cluster, tmp_path):
    truth = tmp_path / "truth.json"
    with example_system(kafka_cluster.bootstrap, "cdc", tmp_path) as example:
        example.run(
            "source.py", "--bootstrap", example.system.bootstrap, "--transactions", COUNT,
            "--truth", truth, cluster=False,
        )  # fmt: skip
        state = tmp_path / "relay.db"
        for lines in (30, 10):
            example.killed_after(lines, "relay.py", "--state", state)
        # As if the kill had come before the last IDs were noted, and before any commit.
        with closing(sqlite3.connect(state)) as opened, opened:
            assert opened.execute("DELETE FROM sent WHERE rowid > 35").rowcount > 0
        begin_again(example.system.bootstrap, f"cdc-relay-{example.system.topic}")
        example.run("relay.py", "--state", state, "--quiet", "10")
        with closing(sqlite3.connect(state)) as opened:
            assert opened.execute("SELECT count(*) FROM sent").fetchone() == (COUNT,)
        expected = json.loads(truth.read_text())
        common = None
        for name, tables in READERS.items():
            database = tmp_path / f"{name}.db"
            options = ["--name", name, "--tables", ",".join(tables), "--database", database]
            example.killed_after(10, "reader.py", *options)
            lines = example.run("reader.py", *options, "--until-end")
            copied, applied = rows(database)
            assert copied == {table: expected[table] for table in tables}
            if name == "warehouse":
                assert "copy" in lines
                common = applied
        assert [int(one.split(":")[0]) for one in common] == list(range(500, 500 + COUNT))
        for name in ("crm", "shipping"):
            _, applied = rows(tmp_path / f"{name}.db")
            assert applied == [one for one in common if one in set(applied)]

        # At every position the tables fit together, as they do in the source.
        where = {"bootstrap": example.system.bootstrap, "topic": example.system.topic}
        tables, seen = {table: {} for table in READERS["warehouse"]}, set()
        with Consumer(**where, name="warehouse", group="check", committed=False) as consumer:
            for batch in consumer.until_end():
                for record in batch.records:
                    transaction = json.loads(record.value)
                    if transaction["transaction"] in seen:
                        continue
                    seen.add(transaction["transaction"])
                    for change in transaction["changes"]:
                        before, after = change["before"], change["after"]
                        if after is None:
                            del tables[change["table"]][before["id"]]
                        else:
                            tables[change["table"]][after["id"]] = after
                    totals = sum(order["total"] for order in tables["orders"].values())
                    assert totals == sum(line["amount"] for line in tables["lines"].values())
                    orders = sum(customer["orders"] for customer in tables["customers"].values())
                    assert orders == len(tables["orders"])
        assert tables == expected
