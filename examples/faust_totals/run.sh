#!/usr/bin/env bash
# A worker of Faust adds up what three messages move; what one account gives, another one gets.
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"

export DATADIR=data TOTALS=totals
start worker python "$folder/totals.py" worker --without-web
printf '%s\n' "anna -5 bert 5" "bert -2 anna 2" "anna -10 cora 10" | bounded amcast send --to P1,P2
lines totals 6
cat totals
bounded python - <<'PY'
import sys

last = {}
for line in open("totals"):
    account, window, total = line.split()
    last[account, window] = int(total)
sys.exit("the totals do not add up to 0" if sum(last.values()) else None)
PY
