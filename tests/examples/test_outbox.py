"""The outbox of `examples/outbox`: every committed row has its effect once, in the same order."""

import signal
import sqlite3
from contextlib import closing

import pytest

from multicast import Producer
from tests.helpers.example_programs import example_system

pytestmark = pytest.mark.timeout(600)
ORDERS = 60


@pytest.fixture
def example(kafka_cluster, tmp_path):
    with example_system(kafka_cluster.bootstrap, "outbox", tmp_path) as running:
        yield running


def rows(path, query):
    with closing(sqlite3.connect(path)) as database:
        return database.execute(query).fetchall()


def test_each_row_has_one_effect_though_relay_and_reader_are_killed_and_rows_are_stored_twice(
    example, tmp_path
):
    shop, books = tmp_path / "shop.db", tmp_path / "books.db"
    example.run("shop.py", "--database", shop, "--orders", ORDERS, cluster=False)
    total = rows(shop, "SELECT count(*) FROM outbox")[0][0]
    sent = example.killed_after(25, "relay.py", "--database", shop)
    assert sent == [str(number) for number in range(1, 26)]
    # The state after a kill between the append and the mark, three rows deep, so that rows of
    # every destination set are stored twice.
    with closing(sqlite3.connect(shop)) as database, database:
        database.execute("UPDATE outbox SET sent = 0 WHERE id > 22")
    example.killed_after(10, "reader.py", "--database", books)
    example.run("relay.py", "--database", shop, "--until-empty")
    assert rows(shop, "SELECT count(*) FROM outbox WHERE sent = 0") == [(0,)]
    lines = example.run("reader.py", "--database", books, "--until-end")
    assert {"dropped 23", "dropped 24", "dropped 25"} <= set(lines)

    applied = rows(books, "SELECT number FROM applied ORDER BY step")
    assert sorted(applied) == [(number,) for number in range(1, total + 1)]
    expected = rows(
        shop,
        "SELECT item, sum(q) FROM (SELECT item, -quantity AS q FROM orders UNION ALL "
        "SELECT item, quantity FROM deliveries) GROUP BY item ORDER BY item",
    )
    assert rows(books, "SELECT item, quantity FROM stock ORDER BY item") == expected
    assert rows(books, "SELECT item, amount FROM revenue ORDER BY item") == rows(
        shop, "SELECT item, sum(quantity * price) FROM orders GROUP BY item ORDER BY item"
    )
    # Readers of other interests: the same order, and of each destination set the shop's own.
    for interest in ("stock", "billing"):
        other = tmp_path / f"{interest}.db"
        example.run("reader.py", "--database", other, "--interest", interest, "--until-end")
        numbers = rows(other, "SELECT number FROM applied ORDER BY step")
        assert numbers == [number for number in applied if number in set(numbers)]
    orders = rows(shop, "SELECT id FROM outbox WHERE payload LIKE '%\"order\"%' ORDER BY id")
    assert [number for number in applied if number in set(orders)] == orders


def test_two_relays_of_one_outbox_do_no_harm(example, tmp_path):
    """The first one is stopped with all rows in its memory, and sends them after the second."""
    shop, books = tmp_path / "shop.db", tmp_path / "books.db"
    # So many that the first one cannot send all of them before it is stopped.
    example.run("shop.py", "--database", shop, "--orders", 4 * ORDERS, cluster=False)
    total = rows(shop, "SELECT count(*) FROM outbox")[0][0]
    with example.running("relay.py", "--database", shop) as first:
        sent = [first.stdout.readline().strip()]
        first.send_signal(signal.SIGSTOP)
        try:
            ((left,),) = rows(shop, "SELECT count(*) FROM outbox WHERE sent = 0")
            assert left > 1
            example.run("relay.py", "--database", shop, "--until-empty")
        finally:
            first.send_signal(signal.SIGCONT)
        while sent[-1] != str(total):
            sent.append(first.stdout.readline().strip())
            assert sent[-1]
    lines = example.run("reader.py", "--database", books, "--until-end")
    dropped = sum(line.startswith("dropped") for line in lines)
    assert dropped >= left - 1  # it may have stored one more before it stopped
    applied = rows(books, "SELECT number FROM applied ORDER BY step")
    assert sorted(applied) == [(number,) for number in range(1, total + 1)]


def test_foreign_messages_are_skipped_and_a_row_that_cannot_be_applied_ends_the_reader(
    example, tmp_path
):
    shop, books = tmp_path / "shop.db", tmp_path / "books.db"
    example.run("shop.py", "--database", shop, "--orders", 3, cluster=False)
    last = {"source": b"s", "number": b"1"}
    foreign = [{}, {"source": b"s"}, {**last, "number": b"x"}, {**last, "number": b"9" * 30}]
    where = {"bootstrap": example.system.bootstrap, "topic": example.system.topic}
    with Producer(**where) as producer:
        for headers in foreign:
            producer.multicast(b"hello", to={"stock"}, headers=headers).accepted()
        producer.multicast(None, to={"stock"}, headers=[("source", None)]).accepted()
        example.run("relay.py", "--database", shop, "--until-empty")
        lines = example.run("reader.py", "--database", books, "--until-end")
        skipped = [line for line in lines if line.startswith("skipped")]
        assert skipped == [f"skipped stock:{n}: no relay has sent it" for n in range(5)]
        assert sum(line.startswith("applied") for line in lines) == 4
        before = rows(books, "SELECT * FROM stock"), rows(books, "SELECT cursor FROM position")

        for payload in (None, b"hello", b"\xff", b"[" * 100_000, b'{"kind": "gift"}'):
            producer.multicast(payload, to={"stock"}, headers=last).accepted()
    for _ in range(2):
        sentence, code = example.refused("reader.py", "--database", books, "--until-end")
        assert sentence.startswith("stock:6, row 1 of s, cannot be applied; ")
        assert code == 1
    after = rows(books, "SELECT * FROM stock"), rows(books, "SELECT cursor FROM position")
    assert after == before


def test_rows_of_a_second_shop_are_not_taken_for_copies(example, tmp_path):
    """Each shop begins with row 1; a file that was deleted and made again is another shop."""
    books = tmp_path / "books.db"
    for name in ("first", "second"):
        shop = tmp_path / f"{name}.db"
        example.run("shop.py", "--database", shop, "--orders", 3, cluster=False)
        example.run("relay.py", "--database", shop, "--until-empty")
    lines = example.run("reader.py", "--database", books, "--until-end")
    assert [line for line in lines if line.startswith("applied")] == lines[:-1]
    assert len(lines) == 2 * 4 + 1
    stock = ("--interest", "stock", "--database", books, "--until-end")
    assert example.refused("reader.py", *stock) == (
        "the books are those of billing,stock; name another file",
        2,
    )
