#!/usr/bin/env bash
# This script compares two commits of the repository that contains it, in the container of .github/workflows/compare.yml.
# The table goes to stderr, the JSON to stdout. The exit status is that of `gpugate compare`, except for 125, which is also
# Docker's own status for a container that it cannot start: here it is 64, or 1 where a case is slower.
set -euo pipefail
cp -r "$(dirname "$0")/.." "$HOME/versions"
cd "$HOME/versions"

status=0
gpugate compare "$1" "$2" -m gpu --processes 4 --json "$HOME/compare.json" >&2 || status=$?
cat "$HOME/compare.json" || true
if [ "$status" -eq 125 ]; then
  status=64
  ! grep -q '"outcome": "SLOWER"' "$HOME/compare.json" || status=1
fi
exit "$status"
