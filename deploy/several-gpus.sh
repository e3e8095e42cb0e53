#!/usr/bin/env bash
# Several GPUs of one machine measure at once, a process each: runs that `gpugate record` makes baselines of.
#
#   deploy/several-gpus.sh JOBS DIR [SECONDS]
#
# JOBS has a line for each process: NAME | pytest's -k | about how many seconds it takes | more arguments of pytest. They
# begin in this order, each on the next GPU that is free, with that GPU's share of the cores. DIR gets NAME.json, NAME.txt
# and log.txt, which has a line for each job that ended. A job that would not end within SECONDS of the beginning (3600)
# is skipped, and one that has not is interrupted. PYTHON chooses the interpreter. The status is 1 where a job failed or
# was skipped.
set -euo pipefail
set -m # workers are groups of their own: without, SIGINT would be ignored in all of them

[ $# -ge 2 ] || {
  sed -n '4s/^# */usage: /p' "$0" >&2
  exit 2
}
limit=${3:-3600} python=${PYTHON:-python3}
mkdir -p "$2"
folder=$(realpath "$2")
gpus=$(nvidia-smi --list-gpus | wc -l)
((gpus)) || {
  echo "nvidia-smi lists no GPU: run it where there is one" >&2
  exit 2
}
cores=$(($(nproc) / gpus))
left=$(mktemp -d)
workers=()
trap 'rm -rf "$left"' EXIT
trap interrupt INT TERM
grep -Ev '^ *(#|$)' "$1" | sed 's/^ *//; s/ *| */|/g' >"$left/jobs"
: >"$folder/log.txt"

interrupt() {
  local worker
  for worker in "${workers[@]}"; do kill -INT -- "-$worker" 2>/dev/null || true; done
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
  local gpu=$1 first=$(($1 * cores)) job name expression seconds more began status
  while job=$(next_job) && [ -n "$job" ]; do
    IFS='|' read -r name expression seconds more <<<"$job"
    began=$SECONDS
    if ((began + seconds > limit)); then
      echo "$name skipped: it takes about $seconds s, and $((limit - began)) are left" >>"$folder/log.txt"
      continue
    fi
    status=0
    # shellcheck disable=SC2086 # more arguments are several words
    CUDA_VISIBLE_DEVICES=$gpu taskset --cpu-list "$first-$((first + cores - 1))" \
      timeout --foreground --signal INT --kill-after 30 $((limit - began)) \
      "$python" -m pytest perf_tests -m gpu -p no:cacheprovider -k "$expression" --perf-json "$folder/$name.json" $more \
      >"$folder/$name.txt" 2>&1 </dev/null || status=$?
    echo "$name status $status on GPU $gpu, $((SECONDS - began)) s from $began s on" >>"$folder/log.txt"
  done
}

for ((gpu = 0; gpu < gpus; gpu++)); do
  work "$gpu" &
  workers+=($!)
done
wait
cat "$folder/log.txt"
! grep -qE ' skipped: | status [^0]' "$folder/log.txt"
