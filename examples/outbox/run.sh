#!/usr/bin/env bash
# A shop writes its database only; a relay and a reader bring each row to the books, once.
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"

run shop.py --database shop.db --orders 60
run relay.py "${cluster[@]}" --database shop.db --until-empty >relayed
run reader.py "${cluster[@]}" --database books.db --until-end >applied
tail -n 3 applied
bounded python - <<'PY'
import sqlite3
import sys

shop, books = sqlite3.connect("shop.db"), sqlite3.connect("books.db")
rows = shop.execute("SELECT id FROM outbox ORDER BY id").fetchall()
query = "SELECT number FROM applied WHERE source = ? ORDER BY number"
applied = books.execute(query, shop.execute("SELECT name FROM source").fetchone()).fetchall()
print(f"{len(rows)} rows of the shop, {len(applied)} of them in the books")
sys.exit(None if applied == rows else "a row has no effect, or two")
PY
