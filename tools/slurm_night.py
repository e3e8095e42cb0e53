"""The cases of `make perf` as a night of an array of two tasks with a core each, on a Slurm that this program starts.

`python -m tools.slurm_night` submits both jobs of `deploy/slurm/` to a cluster of one node (`tests.support.slurm`),
waits for them some minutes, and writes `results/cpu/slurm.md`.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpugate.report.table import Table, columns
from gpugate.report.view import headline, tally
from gpugate.results.run import RunResult
from gpugate.store import run_file
from gpugate.store.json_file import write_atomically
from gpugate.store.night_files import run_path
from tests.support.slurm import PATH, EndedJob, name_missing, start_slurm

ROOT = Path(__file__).parents[1]
SCRIPTS, PAGE = ROOT / "deploy/slurm", ROOT / "results/cpu/slurm.md"
TASKS = 2
LIMIT_S = 3600.0
HEAD = f"""# A night on Slurm

`python -m tools.slurm_night` writes this page: the cases of `make perf` as an array of {TASKS} tasks with one core
each, by `deploy/slurm/nightly.sh` with `GPUGATE_GATE=off`, and `deploy/slurm/merge.sh`, on a Slurm of one node that the
command starts. The node only pretends to have GPUs, so that the cases of a GPU are skipped.

"""


def measure(nights: Path) -> tuple[Path, Mapping[str, EndedJob]]:
    """Runs the array and the merge. Returns the folder of the night, and the last state of each job by its name."""
    variables = {
        "PATH": f"{Path(sys.executable).parent}:{PATH}",
        "PYTHONPATH": str(ROOT),
        "GPUGATE_NIGHTS": str(nights),
        "GPUGATE_GATE": "off",
        "GPUGATE_STORE": "off",
    }
    with start_slurm(TASKS) as cluster:
        tasks = ("--oversubscribe", f"--array=1-{TASKS}", f"--output={nights}/task-%a.log", SCRIPTS / "nightly.sh")
        array = cluster.submit(*tasks, cwd=ROOT, **variables)
        merge = (f"--dependency=afterany:{array}", f"--output={nights}/merge.log", SCRIPTS / "merge.sh", array)
        merging = cluster.submit(*merge, cwd=ROOT, **variables)
        merged = cluster.wait_for(merging, LIMIT_S)
        ended = cluster.read_ended()
    shards = {f"shard {task}": ended[f"{array}_{task}"] for task in range(1, TASKS + 1)}
    return nights / f"slurm-{array}", {**shards, "whole night": merged}


def describe(jobs: Mapping[str, EndedJob], runs: Sequence[RunResult]) -> str:
    """The page: one row for each shard and for the merged night, in the order of the jobs.

    Raises ValueError for shards that do not have each case of the night exactly once.
    """
    *shards, night = runs
    if sorted(case_id for run in shards for case_id in run.cases) != sorted(night.cases):
        raise ValueError(f"the {len(shards)} shards do not have each case of the night exactly once")
    rows = tuple(
        (name, job.state, str(job.status), str(len(run.cases)), tally(run))
        for (name, job), run in zip(jobs.items(), runs, strict=True)
    )
    head = columns("job", "state", "exit status", "cases", "measured")
    where = f"{os.cpu_count()} CPU cores, load {os.getloadavg()[1]:.1f} over the last five minutes"
    words = f"The night: {headline(night)}. Each case is in exactly one shard. Measured on {where}."
    return f"{HEAD}{Table('', head, rows).markdown()}\n\n{words}\n"


def main() -> None:
    missing = name_missing()
    if missing is not None:
        sys.exit(missing)
    with tempfile.TemporaryDirectory() as folder:
        night, jobs = measure(Path(folder))
        for log in sorted(Path(folder).glob("*.log")):
            print(log.read_text(encoding="utf-8", errors="replace"))
        paths = [*(night / f"shards/{task}" for task in range(1, TASKS + 1)), night]
        page = describe(jobs, [run_file.read(run_path(path)) for path in paths])
    print(page)
    write_atomically(PAGE, page)


if __name__ == "__main__":
    main()
