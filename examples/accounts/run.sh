#!/usr/bin/env bash
# Three clerks move money at the same time; then the auditor reads all that they did.
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"

seed=0
for branch in P1 P1,P2 P2,P3; do
  seed=$((seed + 1))
  start "clerk$seed" python "$folder/clerk.py" "${cluster[@]}" --branch "$branch" --seed "$seed"
done
join 3
tail -n 3 clerk?
run audit.py "${cluster[@]}" # fails if an account was below zero, or money was made or lost
