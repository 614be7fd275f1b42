#!/usr/bin/env bash
# Two shops sell the same goods; then two projections make tables of their events.
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"

for shop in a b; do
  start "$shop" python "$folder/shop.py" "${cluster[@]}" --name "$shop" --orders 20
done
join 2
for tables in first second; do
  run projection.py "${cluster[@]}" --name both --database "$tables.db" --until-end >"$tables"
done
cmp first second # the positions that they went through
bounded python - <<'PY'
import json
import sqlite3
import sys

shops = [json.loads(line) for name in "ab" for line in open(name)]
shipped = [line["shipped"] for line in shops if line["shipped"]]
stock, orders = (
    [sqlite3.connect(f"{name}.db").execute(f"SELECT * FROM {table} ORDER BY 1").fetchall()
     for name in ("first", "second")]
    for table in ("stock", "orders")
)
print(f"stock {dict(stock[0])}, {len(orders[0])} orders, {len(shipped)} of them shipped now")
if stock[0] != stock[1] or orders[0] != orders[1]:
    sys.exit("two projections differ")
if min(dict(stock[0]).values()) < 0 or len(set(shipped)) < len(shipped):
    sys.exit("more was sold than there was, or an order was shipped twice")
PY
