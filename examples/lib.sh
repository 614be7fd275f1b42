# What each run.sh begins with: a broker, the example's plan and its collectors; and how it ends.
#
# Where AMCAST_BOOTSTRAP is set these brokers serve. Else one starts for this run alone, in a folder
# of its own and on a free port, so no other one is touched. The topic has the name of the example's
# folder. What is started here ends with the script, which works in a new folder that goes, too.

set -euo pipefail

folder=$(cd "$(dirname "${BASH_SOURCE[1]}")" && pwd)
export AMCAST_TOPIC=${folder##*/}
PATH=$folder/../../.venv/bin:$PATH
command -v amcast >/dev/null || {
  echo "there is no command amcast: run \"make .venv/ready\" in the checkout" >&2
  exit 1
}
work=$(mktemp -d)
cd "$work"
pids=()
own_broker=false

# Ten minutes are for a machine that is very slow; a step that needs longer hangs.
bounded() {
  timeout --foreground --kill-after=30 600 "$@"
}

# Run a program of the example to its end: run PROGRAM [ARGUMENT ...]
run() {
  bounded python "$folder/$1" "${@:2}"
}

# Start a command beside the script, with its output in a file: start FILE COMMAND [ARGUMENT ...]
start() {
  timeout --foreground --kill-after=30 3600 "${@:2}" >"$1" 2>"$1.log" &
  pids+=($!)
}

# Wait for the commands that were started last, and fail with them: join HOW_MANY
join() {
  local pid
  for pid in "${pids[@]: -$1}"; do
    wait "$pid"
  done
}

# Wait until a file has so many lines, while the command that was started last runs: lines FILE COUNT
lines() {
  local deadline=$((SECONDS + 600))
  until [[ -e $1 && $(wc -l <"$1") -ge $2 ]]; do
    kill -0 "${pids[-1]}" && ((SECONDS < deadline)) || {
      echo "$1 did not come to $2 lines" >&2
      return 1
    }
    sleep 0.2
  done
}

end() {
  local code=$?
  trap - EXIT INT TERM
  if ((code)); then
    echo "the example ended with exit code $code" >&2
    tail -n 5 ./*.log >&2 || true
  fi
  kill "${pids[@]}" 2>/dev/null || true
  wait # at most 30 s: see --kill-after
  if $own_broker; then
    bounded amcast local down --dir "$work/broker" --wipe >/dev/null 2>&1 || true
  fi
  cd /
  rm -rf "$work"
  exit "$code"
}
trap end EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

if [[ -z ${AMCAST_BOOTSTRAP:-} ]]; then
  own_broker=true
  AMCAST_BOOTSTRAP=$(bounded amcast local up --dir "$work/broker" --timeout 300)
fi
export AMCAST_BOOTSTRAP
cluster=(--bootstrap "$AMCAST_BOOTSTRAP" --topic "$AMCAST_TOPIC")
bounded amcast topology plan "$folder/interests.toml" --out plan.json >plan 2>plan.log
bounded amcast topology apply plan.json >apply 2>apply.log
start collectors amcast collectors run --web-port 0
bounded amcast collectors status --wait healthy --timeout 300 >status 2>status.log
