"""The scripts of deploy/slurm on a real Slurm: the night of an array whose tasks were stopped."""

import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpugate.commands.cli import main
from tests.support import tiny_project
from tests.support.patience import HANGS_S, wait_until
from tests.support.slurm import PATH, Cluster, EndedJob, require_slurm, start_slurm
from tests.support.tiny_project import TinyProject

SCRIPTS = tiny_project.ROOT / "deploy/slurm"
# Two tasks share the node, which the script would give to each of them as a whole.
SHARED = "--oversubscribe"
OPTIMIZATION = 'Optimization("{}", {}, {{"cpu": 0.01}})'
BUILDS = """
import os

HERE = Path(__file__).parent


def quick(context):
    (HERE / f"gpu-of-{os.environ['SLURM_ARRAY_TASK_ID']}").write_text(os.environ["CUDA_VISIBLE_DEVICES"])
    return sleeping(1)


def stuck(context):
    (HERE / f"stuck-{os.environ['SLURM_ARRAY_TASK_ID']}").touch()
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    require_slurm()
    with start_slurm() as started:
        yield started


class Night:
    """The jobs of a night of a project with these cases, submitted as deploy/README.md submits them."""

    def __init__(self, cluster: Cluster, folder: Path, tasks: int, **builds: str) -> None:
        self.project = TinyProject(folder)
        self.project.workload(BUILDS, ", ".join(OPTIMIZATION.format(*names) for names in builds.items()))
        variables = {
            **tiny_project.environment(folder),
            "PATH": f"{Path(sys.executable).parent}:{PATH}",
            "GPUGATE_NIGHTS": str(folder / "nights"),
            "GPUGATE_GATE": "off",
        }
        array = (SHARED, f"--array=1-{tasks}", SCRIPTS / "nightly.sh", "--perf-device=cpu", *tiny_project.SHORT)
        self.tasks, self.array = tasks, cluster.submit(*array, cwd=folder, **variables)
        dependency = f"--dependency=afterany:{self.array}"
        self.merging = cluster.submit(dependency, SCRIPTS / "merge.sh", self.array, cwd=folder, **variables)
        self.folder = folder / f"nights/slurm-{self.array}"

    def wait(self, cluster: Cluster) -> tuple[EndedJob, dict[int, EndedJob]]:
        """The last states of the merge, and of each task that began."""
        whole, ended = cluster.wait_for(self.merging, HANGS_S), cluster.read_ended()
        tasks = {task: ended.get(f"{self.array}_{task}") for task in range(1, self.tasks + 1)}
        return whole, {task: job for task, job in tasks.items() if job is not None}

    def cases_of(self, folder: str) -> dict[str, dict[str, Any]]:
        cases: dict[str, dict[str, Any]] = self.project.json(f"{self.folder / folder}/run.json")["cases"]
        return cases

    def log(self) -> str:
        return (self.project.path / f"gpugate-merge-{self.merging}.log").read_text(encoding="utf-8")


def test_a_night_names_the_shards_whose_tasks_were_stopped_and_has_no_verdict(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A case that ends, two that do not, and one whose task waits for a GPU: each is a shard, by its name."""
    night = Night(cluster, tmp_path, 4, a="quick", b="stuck", c="stuck", d="quick")
    cluster.call("scancel", f"{night.array}_4")
    wait_until(lambda: {path.name for path in tmp_path.glob("stuck-*")} == {"stuck-2", "stuck-3"})
    cluster.call("scancel", "--signal=KILL", f"{night.array}_2")  # Slurm sends a job SIGTERM first,
    cluster.call("scancel", "--signal=KILL", f"{night.array}_3.0")  # and a step nothing else
    whole, tasks = night.wait(cluster)
    assert {number: task.state for number, task in tasks.items()} == {1: "COMPLETED", 2: "CANCELLED", 3: "FAILED"}
    assert tasks[3].status == 128 + signal.SIGKILL
    assert whole == EndedJob("FAILED", 1)
    problems = re.findall(r"^ERROR: shard (\d) of 4 .*(is missing|was cut off)", night.log(), re.MULTILINE)
    assert sorted(problems) == [("2", "was cut off"), ("3", "was cut off"), ("4", "is missing")]
    assert "ERROR: no shard measured tiny/c/cpu, tiny/d/cpu\n" in night.log()
    assert {name: case["measurement"] is not None for name, case in night.cases_of(".").items()} == {
        "tiny/a/cpu": True,
        "tiny/b/cpu": False,
    }
    assert re.fullmatch("[01]", (tmp_path / "gpu-of-1").read_text())
    assert main(["verdict", str(night.folder)]) == 2
    assert "was interrupted, so it has no verdict" in capsys.readouterr().err
