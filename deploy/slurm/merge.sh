#!/usr/bin/env bash
# One night of the shards that the array of nightly.sh measured; it needs no GPU. ARRAY is the job id of the array:
#   sbatch --dependency=afterany:ARRAY deploy/slurm/merge.sh ARRAY
#SBATCH --job-name=gpugate-merge
#SBATCH --ntasks=1
#SBATCH --time=00:30:00
#SBATCH --output=gpugate-merge-%j.log
set -euo pipefail

cd "${SLURM_SUBMIT_DIR:-.}"
export PATH="$PWD/.venv/bin:$PATH"
nights="${GPUGATE_NIGHTS:-$HOME/gpugate-nights}"
night="$nights/slurm-${1%%;*}" # sbatch prints ID;CLUSTER where there are several clusters

status=0
gpugate verdict "$night"/shards/* --merge "$night" || status=$?
gpugate history "$nights" || true
exit "$status" # which Slurm then shows as the job's: that of the whole gate
