#!/usr/bin/env bash
# A source writes 100 transactions in Debezium's form; two readers of other tables copy them.
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"

run source.py --bootstrap "$AMCAST_BOOTSTRAP" --transactions 100 --truth truth.json
start relayed python "$folder/relay.py" "${cluster[@]}" --state relay.db
lines relayed 100
for reader in shipping:orders,lines warehouse:customers,orders,lines; do
  name=${reader%:*}
  run reader.py "${cluster[@]}" --name "$name" --tables "${reader#*:}" --database "$name.db" \
    --until-end >"$name"
done
bounded python - <<'PY'
import json
import sqlite3
import sys

truth = json.load(open("truth.json"))
for name, tables in ("shipping", ["orders", "lines"]), ("warehouse", list(truth)):
    copied = {table: {} for table in tables}
    for table, key, value in sqlite3.connect(f"{name}.db").execute("SELECT * FROM rows"):
        copied[table][key] = json.loads(value)
    print(f"{name}: " + ", ".join(f"{len(copied[table])} {table}" for table in tables))
    if copied != {table: truth[table] for table in tables}:
        sys.exit(f"{name} has other rows than the source")
PY
