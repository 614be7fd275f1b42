#!/usr/bin/env bash
# Two instances of the service take transfers at the same time, and come to the same balances.
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"

for instance in one two; do
  start "$instance" python "$folder/service.py" "${cluster[@]}" --accounts P1,P2,P3
  lines "$instance" 1 # its address
done
bounded python - "$(<one)" "$(<two)" <<'PY'
import collections
import json
import random
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

instances = sys.argv[1:]


def ask(url, document=None):
    data = None if document is None else json.dumps(document).encode()
    with urllib.request.urlopen(url, data, timeout=120) as answer:
        return json.load(answer)


def transfer(number):
    source, target = random.sample(["P1", "P2", "P3"], 2)
    document = {"from": source, "to": target, "amount": random.randint(1, 80)}
    return ask(f"{instances[number % 2]}/transfers", document)["result"].partition(":")[0]


with ThreadPoolExecutor(8) as pool:
    print(dict(collections.Counter(pool.map(transfer, range(60)))))
deadline = time.monotonic() + 300
while True:  # an instance applies a transfer a little later than the other
    first, second = (ask(f"{instance}/accounts") for instance in instances)
    if first == second:
        break
    if time.monotonic() > deadline:
        sys.exit(f"the instances differ: {first} and {second}")
    time.sleep(0.1)
money = first["balances"].values()
print(first["balances"])
sys.exit(None if min(money) >= 0 and sum(money) == 300 else "money was made or lost")
PY
