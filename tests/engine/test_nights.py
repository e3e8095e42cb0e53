"""The night of GitHub, Slurm, Kubernetes and the image: its exit status, and the shards that make one night.

The linters of `make lint` read the files; here their scripts run with stand-ins for pytest and gpugate.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.stand_ins import STEP, run_script, write_programs

yaml = pytest.importorskip("yaml", reason="needs PyYAML, which the extra dev brings")

ROOT = Path(__file__).parents[2]
NIGHTLY = yaml.safe_load((ROOT / ".github/workflows/nightly-gpu.yml").read_text(encoding="utf-8"))
GATE, MERGE = NIGHTLY["jobs"]["gate"], NIGHTLY["jobs"]["merge"]
STEPS: dict[str, dict[str, Any]] = {
    step["name"]: step for job in (GATE, MERGE) for step in job["steps"] if "name" in step
}
_, *CRONS = yaml.safe_load_all((ROOT / "deploy/kubernetes/nightly.yaml").read_text(encoding="utf-8"))
JOB, MERGE_JOB = (cron["spec"]["jobTemplate"]["spec"] for cron in CRONS)
POD, MERGE_POD = (job["template"]["spec"] for job in (JOB, MERGE_JOB))
DOCKERFILE = (ROOT / "deploy/Dockerfile").read_text(encoding="utf-8")
(IMAGE,) = re.findall(r"^CMD (.*)$", DOCKERFILE, re.MULTILINE)
COMMANDS: dict[str, list[str]] = {
    "github": [*STEP, STEPS["Gate"]["run"]],
    "slurm": ["bash", str(ROOT / "deploy/slurm/nightly.sh")],
    "kubernetes": POD["containers"][0]["command"],
    "image": json.loads(IMAGE),
}
MERGES = {
    "github": [*STEP, STEPS["Merge"]["run"]],
    "slurm": ["bash", str(ROOT / "deploy/slurm/merge.sh"), "17;cluster"],
    "kubernetes": MERGE_POD["containers"][0]["command"],
}
SHARDS = {
    "github": "night",
    "slurm": "nights/slurm-17/shards/5",
    "kubernetes": "nights/night-17/shards/3",
    "image": ".",
}


def run(folder: Path, command: list[str], pytest_body: str = "", **statuses: int) -> int:
    """Runs a script with programs of these exit statuses, and with the variables of every platform."""
    ends = "".join(f"{word}) exit {statuses.get(word, 0)};; " for word in ("doctor", "verdict"))
    write_programs(
        folder,
        srun='while [ "${1#--}" != "$1" ]; do shift; done; exec "$@"',
        gpugate=f'echo gpugate "$@" >> calls; case $1 in {ends} esac; exit 2',
        sleep="echo sleep >> calls",
        pytest=pytest_body or f'for word; do echo "[$word]" >> calls; done; exit {statuses.get("gate", 0)}',
    )
    variables = {"NIGHT": f"{folder}/night", "NIGHTS": "nights", "SHARD": "3", "SHARDS": "4", "SELECT": ""}
    variables |= {"ALLOW_MISSING": "", "GITHUB_STEP_SUMMARY": f"{folder}/summary", "RUNNER_TEMP": str(folder)}
    variables |= {"SLURM_SUBMIT_DIR": str(folder), "SLURM_ARRAY_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": "5"}
    variables |= {"SLURM_ARRAY_TASK_MIN": "1", "SLURM_ARRAY_TASK_COUNT": "4", "SLURM_ARRAY_TASK_STEP": "2"}
    variables |= {"JOB_NAME": "gpugate-nightly-17", "JOB_COMPLETION_INDEX": "3", "GPUGATE_SHARDS": "2"}
    here = [word.replace("/nights", f"{folder}/nights") for word in command]
    return run_script(folder, *here, GPUGATE_NIGHTS=f"{folder}/nights", **variables).returncode


def read_calls(folder: Path) -> list[str]:
    return (folder / "calls").read_text().splitlines()


@pytest.mark.parametrize("platform", COMMANDS)
@pytest.mark.parametrize(("gate", "verdict", "status"), [(0, 0, 0), (0, 2, 2), (1, 0, 1), (130, 0, 130)])
def test_a_night_ends_as_its_gate_and_is_green_only_by_the_verdict_that_it_stored(
    tmp_path: Path, platform: str, gate: int, verdict: int, status: int
) -> None:
    older = tmp_path / SHARDS[platform] / "run.json.cases"
    older.parent.mkdir(parents=True, exist_ok=True)
    older.touch()
    assert run(tmp_path, COMMANDS[platform], gate=gate, verdict=verdict) == status
    calls = read_calls(tmp_path)
    kept = calls[calls.index("[--perf-report]") + 1].strip("[]")
    assert "[--gate]" in calls
    assert (calls[-1] == f"gpugate verdict {kept}") is (gate == 0)
    if platform != "image":
        assert kept == str(tmp_path / SHARDS[platform])
        assert calls[calls.index("[--perf-shard]") + 1] == ("[4/2]" if platform == "kubernetes" else "[3/4]")
    if platform in ("slurm", "kubernetes"):
        assert not older.exists(), "a shard that is started again begins without its older run"
    if platform != "github":  # whose doctor is a step of its own
        assert run(tmp_path, COMMANDS[platform], doctor=1) == 1
        assert read_calls(tmp_path)[len(calls) :] == ["gpugate doctor"]


@pytest.mark.parametrize("platform", MERGES)
@pytest.mark.parametrize("status", [0, 2])
def test_the_status_of_the_merge_is_that_of_the_night_whatever_the_history_says(
    tmp_path: Path, platform: str, status: int
) -> None:
    night = (tmp_path / SHARDS[platform] / "../..").resolve() if platform != "github" else tmp_path / "night"
    for number in (3, 4):
        (night / f"shards/{number}").mkdir(parents=True)
        (night / f"shards/{number}/ended").touch()
    assert run(tmp_path, MERGES[platform], verdict=status) == status
    merged = f"gpugate verdict {night}/shards/3 {night}/shards/4 --merge {night}"
    history = [] if platform == "github" else [f"gpugate history {tmp_path}/nights"]
    assert read_calls(tmp_path) == [merged, *history]


@pytest.mark.parametrize("platform", ["kubernetes", "image"])
def test_a_container_that_ends_tells_pytest_and_waits_for_it(tmp_path: Path, platform: str) -> None:
    """The stand-in for pytest ends its shell, the container's first process, as Kubernetes and Docker do."""
    told = 'trap "echo told >> calls; exit 2" TERM\nkill $PPID\nfor _ in $(seq 999); do /bin/sleep 0.02; done'
    assert run(tmp_path, COMMANDS[platform], pytest_body=told) == 2
    assert read_calls(tmp_path)[1:] == ["told"]
    assert bool([*tmp_path.rglob("ended")]) is (platform == "kubernetes")


def test_the_pods_of_kubernetes_are_one_night_on_whole_cores_each_tried_once(tmp_path: Path) -> None:
    counts = {str(JOB["completions"]), str(JOB["parallelism"])}
    for pod in (POD, MERGE_POD):
        counts |= {one["value"] for one in pod["containers"][0]["env"] if one["name"] == "GPUGATE_SHARDS"}
        for resources in (container["resources"] for container in (*pod["containers"], *pod["initContainers"])):
            assert (resources["limits"], pod["restartPolicy"]) == (resources["requests"], "Never")
    assert (len(counts), JOB["backoffLimitPerIndex"], MERGE_JOB["backoffLimit"]) == (1, 0, 0)
    assert len({cron["spec"]["schedule"] for cron in CRONS}) == 1  # the Jobs then have one number in their names
    run(tmp_path, MERGES["kubernetes"])  # no shard ends: the merge waits until their time is over
    assert JOB["activeDeadlineSeconds"] < read_calls(tmp_path).count("sleep") * 60 < MERGE_JOB["activeDeadlineSeconds"]


def test_a_red_shard_of_github_ends_no_other_one_and_everything_is_kept() -> None:
    assert GATE["strategy"]["fail-fast"] is False
    assert (MERGE["needs"], MERGE["if"], STEPS["Gate"]["if"]) == ("gate", "!cancelled()", "!cancelled()")
    assert all(STEPS[name]["if"].startswith("always()") for name in ("Keep the shard", "Summary", "Keep the night"))
    limits = [step.get("timeout-minutes", 0) for step in GATE["steps"]]
    assert sum(limits) + 20 <= GATE["timeout-minutes"]  # the first night installs 5 GB


def test_the_autopsy_of_github_forgets_no_failure_and_a_night_without_a_shard_has_a_summary(tmp_path: Path) -> None:
    """Without --gate a test that failed may pass; pytest would then no longer know it as failed."""
    failed = tmp_path / ".pytest_cache/lastfailed"
    for folder in (failed.parent, tmp_path / "night"):
        folder.mkdir()
    failed.touch()
    forgets = 'for word; do case "$word" in cache_dir=*) rm "${word#cache_dir=}/lastfailed";; esac; done; exit 1'
    assert run(tmp_path, [*STEP, STEPS["Autopsy of what failed"]["run"]], pytest_body=forgets) == 1
    assert (failed.exists(), (tmp_path / "autopsy-cache/lastfailed").exists()) == (True, False)
    assert run(tmp_path, [*STEP, STEPS["Summary"]["run"]]) == 0
    assert (tmp_path / "summary").read_text().startswith("No shard was merged")
