#!/usr/bin/env bash
# Several GPUs of one machine measure at once, a process each: runs that `gpugate record` makes baselines of.
#
#   deploy/several-gpus.sh JOBS DIR [SECONDS]
#
# JOBS has a line for each process: NAME | pytest's -k | about how many seconds it takes | more arguments of pytest. They
# begin in this order, each on the next GPU that is free, with that GPU's share of the cores. DIR gets NAME.json, NAME.txt
# and log.txt, which has a line for each job that ended. A job that would not end within SECONDS of the beginning (3600)
# is skipped, and one that has not is interrupted. PYTHON chooses the interpreter. The status is 1 where a job failed or
# did not run.
set -euo pipefail
set -m # workers are groups of their own: without, SIGINT would be ignored in all of them

refuse() {
  echo "$1" >&2
  exit 2
}

[ $# -ge 2 ] || refuse "$(sed -n '4s/^# */usage: /p' "$0")"
limit=${3:-3600} python=${PYTHON:-python3}
mkdir -p "$2"
folder=$(realpath "$2")
gpus=$(nvidia-smi --list-gpus | grep -c '^GPU' || true)
((gpus)) || refuse "nvidia-smi lists no GPU: run it where there is one"
# Those that this shell may use, which need not begin with 0.
read -ra cores < <("$python" -c 'import os; print(*sorted(os.sched_getaffinity(0)))')
share=$((${#cores[@]} / gpus))
((share)) || refuse "${#cores[@]} cores are too few for $gpus GPUs: each needs one at least"

left=$(mktemp -d)
trap 'rm -rf "$left"' EXIT
{ grep -Ev '^ *(#|$)' "$1" || true; } | sed 's/^ *//; s/ *| */|/g' >"$left/jobs"
jobs=$(wc -l <"$left/jobs")
((jobs)) || refuse "$1 has no job: give it a line NAME | EXPRESSION | SECONDS for each"
strange=$(grep -Evm 1 '^[A-Za-z0-9._-]+\|[^|]+\|[1-9][0-9]*(\|.*)?$' "$left/jobs" || true)
[ -z "$strange" ] || refuse "\"$strange\" is no job: write NAME | EXPRESSION | SECONDS | more arguments"
: >"$folder/log.txt"

interrupt() {
  local worker
  for worker in $(jobs -p); do kill -INT -- "-$worker" 2>/dev/null || true; done
  wait
  exit 130
}

next_job() { # whoever asks first gets it
  (
    flock 9
    head -n 1 "$left/jobs"
    sed -i 1d "$left/jobs"
  ) 9>"$left/lock"
}

work() {
  local gpu=$1 job name expression seconds more began status ours
  trap 'exit 130' INT # else only a job that is ended by the signal would end this loop, and pytest ends by itself
  ours=$(IFS=, && echo "${cores[*]:gpu*share:share}")
  while job=$(next_job) && [ -n "$job" ]; do
    IFS='|' read -r name expression seconds more <<<"$job"
    began=$SECONDS
    if ((began + seconds > limit)); then
      echo "$name skipped: it takes about $seconds s, and $((limit - began)) are left" >>"$folder/log.txt"
      continue
    fi
    status=0
    rm -f "$folder/$name.json"
    # shellcheck disable=SC2086 # more arguments are several words
    CUDA_VISIBLE_DEVICES=$gpu taskset --cpu-list "$ours" \
      timeout --foreground --signal INT --kill-after 30 $((limit - began)) \
      "$python" -m pytest perf_tests -m gpu -p no:cacheprovider -k "$expression" --perf-json "$folder/$name.json" $more \
      >"$folder/$name.txt" 2>&1 </dev/null || status=$?
    # A process that ended itself with 0 may have left no whole run.
    ((status)) || "$python" -m gpugate verdict --without-gate "$folder/$name.json" >>"$folder/$name.txt" 2>&1 || status=$?
    echo "$name status $status on GPU $gpu, $((SECONDS - began)) s from $began s on" >>"$folder/log.txt"
  done
}

trap interrupt HUP INT TERM
for ((gpu = 0; gpu < gpus; gpu++)); do
  work "$gpu" &
done
wait
cat "$folder/log.txt"
[ "$(grep -c ' status 0 on GPU ' "$folder/log.txt")" -eq "$jobs" ]
