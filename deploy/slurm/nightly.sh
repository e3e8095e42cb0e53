#!/usr/bin/env bash
# One gate on one GPU of a Slurm cluster, from the root of the checkout, whose environment `make` has made:
#   sbatch deploy/slurm/nightly.sh [further words for pytest]
#SBATCH --job-name=gpugate-nightly
#SBATCH --gpus=1
#SBATCH --exclusive
#SBATCH --time=04:00:00
#SBATCH --signal=INT@120
#SBATCH --output=gpugate-nightly-%j.log
# --exclusive: the whole node, since neighbours share its cores, its memory and its power.
# --signal: two minutes before the limit the step gets what Ctrl-C sends, and keeps what it has measured.
set -euo pipefail

cd "${SLURM_SUBMIT_DIR:-.}"
export PATH="$PWD/.venv/bin:$PATH"
nights="${GPUGATE_NIGHTS:-$HOME/gpugate-nights}"
night="$nights/$(date -u +%Y-%m-%d)-${SLURM_JOB_ID:-$$}"
# Nodes share this folder, in which several of them must not write one SQLite file; a fleet gives postgresql://...
export GPUGATE_STORE="${GPUGATE_STORE:-off}"
mkdir -p "$night"
rm -f "$night"/run.json* # of a job that was started again

srun --ntasks=1 --gpus=1 gpugate doctor | tee "$night/doctor.txt"

status=0
srun --ntasks=1 --gpus=1 pytest perf_tests -m gpu --gate --perf-report "$night" "$@" || status=$?
# A process that ended itself with 0 has judged nothing: what it stored decides.
((status)) || gpugate verdict "$night" || status=$?
gpugate history "$nights" || true
exit "$status" # which Slurm then shows as the job's
