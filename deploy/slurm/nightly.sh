#!/usr/bin/env bash
# One gate on several GPUs of a Slurm cluster, from the root of the checkout, whose environment `make` has made. Each task
# of this array measures a shard of the night on one GPU, and merge.sh makes one night of all shards:
#   job=$(sbatch --parsable deploy/slurm/nightly.sh [further words for pytest])
#   sbatch --dependency=afterany:"$job" deploy/slurm/merge.sh "$job"
#SBATCH --job-name=gpugate-nightly
#SBATCH --array=1-4
#SBATCH --gpus=1
#SBATCH --exclusive
#SBATCH --time=04:00:00
#SBATCH --signal=INT@120
#SBATCH --output=gpugate-nightly-%A-%a.log
# --array: as many tasks as there are GPUs to use; sbatch --array=1-8 gives another number.
# --exclusive: the whole node for each task, since neighbours share its cores, its memory and its power.
# --signal: two minutes before the limit the step gets what Ctrl-C sends, and keeps what it has measured.
set -euo pipefail

cd "${SLURM_SUBMIT_DIR:-.}"
export PATH="$PWD/.venv/bin:$PATH"
night="${GPUGATE_NIGHTS:-$HOME/gpugate-nights}/slurm-$SLURM_ARRAY_JOB_ID"
shard="$night/shards/$SLURM_ARRAY_TASK_ID"
mkdir -p "$shard"
rm -f "$shard"/run.json* # of a task that was started again

# GPUGATE_GATE=off: a developer's run of all cases, such as the first one of a machine, which has no records yet.
gate=()
if [ "${GPUGATE_GATE:-on}" != off ]; then
  gate=(-m gpu --gate --allow-missing gpus) # each task has one GPU
  srun --ntasks=1 --gpus=1 gpugate doctor | tee "$shard/doctor.txt"
fi

status=0
own="$(((SLURM_ARRAY_TASK_ID - SLURM_ARRAY_TASK_MIN) / ${SLURM_ARRAY_TASK_STEP:-1} + 1))/$SLURM_ARRAY_TASK_COUNT"
srun --ntasks=1 --gpus=1 pytest perf_tests "${gate[@]}" --perf-shard "$own" --perf-report "$shard" "$@" || status=$?
# A gate that ended itself with 0 has judged nothing: what it stored decides.
((status || !${#gate[@]})) || gpugate verdict "$shard" || status=$?
exit "$status" # which Slurm then shows as the task's
