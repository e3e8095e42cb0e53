"""The night of GitHub, Slurm, Kubernetes and the image: its exit status, and the shards that make one night.

The linters of `make lint` read the files; here their scripts run with stand-ins for pytest and gpugate.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.patience import HANGS_S, wait_until
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
SHARDS = {"github": "night", "slurm": "nights/slurm-17/shards/3", "kubernetes": "nights/night-17/shards/3"}


def prepare(folder: Path, **statuses: int) -> dict[str, str]:
    """Writes programs with these exit statuses, and returns the variables of every platform."""
    ends = "".join(f"{word}) exit {statuses.get(word, 0)};; " for word in ("doctor", "verdict", "merge"))
    write_programs(
        folder,
        srun='while [ "${1#--}" != "$1" ]; do shift; done; exec "$@"',
        gpugate=f'echo gpugate "$@" >> calls; case $1 in {ends} esac; exit 2',
        sleep="echo sleep >> calls",
        pytest=f'for word; do echo "[$word]" >> calls; done; exit {statuses.get("gate", 0)}',
    )
    github = {"NIGHT": f"{folder}/night", "NIGHTS": "nights", "SHARD": "3", "SHARDS": "4"}
    github |= {
        "SELECT": "",
        "ALLOW_MISSING": "",
        "GITHUB_STEP_SUMMARY": f"{folder}/summary",
        "RUNNER_TEMP": str(folder),
    }
    slurm = {"SLURM_SUBMIT_DIR": str(folder), "SLURM_ARRAY_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": "3"}
    slurm |= {"GPUGATE_NIGHTS": f"{folder}/nights"}
    kubernetes = {"JOB_NAME": "gpugate-nightly-17", "JOB_COMPLETION_INDEX": "3", "GPUGATE_SHARDS": "2"}
    return {**github, **slurm, **kubernetes}


def run(folder: Path, command: list[str], **statuses: int) -> int:
    here = [word.replace("/nights", f"{folder}/nights") for word in command]
    return run_script(folder, *here, **prepare(folder, **statuses)).returncode


def read_calls(folder: Path) -> list[str]:
    return (folder / "calls").read_text().splitlines()


@pytest.mark.parametrize("platform", COMMANDS)
@pytest.mark.parametrize(
    ("gate", "verdict", "status"), [(0, 0, 0), (0, 1, 1), (0, 2, 2), (1, 0, 1), (5, 0, 5), (130, 0, 130)]
)
def test_a_night_ends_as_its_gate_and_is_green_only_by_the_verdict_that_it_stored(
    tmp_path: Path, platform: str, gate: int, verdict: int, status: int
) -> None:
    assert run(tmp_path, COMMANDS[platform], gate=gate, verdict=verdict) == status
    calls = read_calls(tmp_path)
    kept = calls[calls.index("[--perf-report]") + 1].strip("[]")
    assert "[--gate]" in calls
    assert (calls[-1] == f"gpugate verdict {kept}") is (gate == 0)
    if platform != "image":
        assert kept == str(tmp_path / SHARDS[platform])
        assert calls[calls.index("[--perf-shard]") + 1] == ("[3/4]" if platform == "github" else f"[{platform}]")


@pytest.mark.parametrize("platform", ["slurm", "kubernetes", "image"])
def test_a_machine_that_the_doctor_refuses_is_not_measured(tmp_path: Path, platform: str) -> None:
    assert run(tmp_path, COMMANDS[platform], doctor=1) == 1
    assert read_calls(tmp_path) == ["gpugate doctor"]


@pytest.mark.parametrize("platform", ["slurm", "kubernetes"])
def test_a_shard_that_is_started_again_begins_without_its_older_run(tmp_path: Path, platform: str) -> None:
    shard = tmp_path / SHARDS[platform]
    shard.mkdir(parents=True)
    for name in ("run.json", "run.json.cases"):
        (shard / name).touch()
    run(tmp_path, COMMANDS[platform])
    assert list(shard.glob("run.json*")) == []


@pytest.mark.parametrize("platform", MERGES)
@pytest.mark.parametrize("status", [0, 1, 2])
def test_the_status_of_the_merge_is_that_of_the_night_whatever_the_history_says(
    tmp_path: Path, platform: str, status: int
) -> None:
    night = (tmp_path / SHARDS[platform] / "../..").resolve() if platform != "github" else tmp_path / "night"
    for number in (3, 4):
        (night / f"shards/{number}").mkdir(parents=True)
        (night / f"shards/{number}/ended").touch()
    assert run(tmp_path, MERGES[platform], merge=status) == status
    merged = f"gpugate merge {night}/shards/3 {night}/shards/4 --output {night}"
    history = [] if platform == "github" else [f"gpugate history {tmp_path}/nights"]
    assert read_calls(tmp_path) == [merged, *history]


def test_the_merge_of_kubernetes_waits_for_a_shard_until_its_time_is_over(tmp_path: Path) -> None:
    run(tmp_path, MERGES["kubernetes"])
    minutes = read_calls(tmp_path).count("sleep")
    assert JOB["activeDeadlineSeconds"] < minutes * 60 < MERGE_JOB["activeDeadlineSeconds"] - 300


@pytest.mark.parametrize("platform", ["kubernetes", "image"])
def test_a_container_that_ends_tells_pytest_and_waits_for_it(tmp_path: Path, platform: str) -> None:
    command = [word.replace("/nights", f"{tmp_path}/nights") for word in COMMANDS[platform]]
    variables = {**prepare(tmp_path), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    write_programs(
        tmp_path, pytest='trap "echo told >> calls; exit 2" TERM\ntouch begun\nwhile :; do /bin/sleep 0.02; done'
    )
    pod = subprocess.Popen(command, cwd=tmp_path, env=variables, start_new_session=True)

    def has_trap() -> bool:  # see proc_pid_status(5)
        (caught,) = re.findall(r"SigCgt:\s*(\w+)", Path(f"/proc/{pod.pid}/status").read_text(encoding="utf-8"))
        return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)

    try:
        wait_until(lambda: (tmp_path / "begun").exists() and has_trap())
        pod.terminate()
        assert pod.wait(HANGS_S) == 2
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pod.pid, signal.SIGKILL)  # and what a failed test has left
    assert read_calls(tmp_path)[1:] == ["told"]
    assert bool([*tmp_path.rglob("ended")]) is (platform == "kubernetes")


def test_a_pod_of_kubernetes_has_a_shard_and_whole_cores_and_is_tried_once() -> None:
    counts = [str(JOB["completions"]), str(JOB["parallelism"])]
    for pod in (POD, MERGE_POD):
        counts += [one["value"] for one in pod["containers"][0]["env"] if one["name"] == "GPUGATE_SHARDS"]
        assert pod["restartPolicy"] == "Never"
        assert pod["securityContext"]["runAsNonRoot"]
        for container in (*pod["containers"], *pod["initContainers"]):
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"]["limits"] == container["resources"]["requests"]
    assert len(counts) == 4
    assert len(set(counts)) == 1
    assert (JOB["backoffLimitPerIndex"], MERGE_JOB["backoffLimit"]) == (0, 0)
    assert len({cron["spec"]["schedule"] for cron in CRONS}) == 1  # the Jobs then have one number in their names


def test_a_red_shard_of_github_ends_no_other_one_and_everything_is_kept() -> None:
    assert GATE["strategy"]["fail-fast"] is False
    assert (MERGE["needs"], MERGE["if"]) == ("gate", "!cancelled()")
    assert STEPS["Gate"]["if"] == "!cancelled()"
    for name in ("Keep the shard", "Summary", "Keep the night"):
        assert STEPS[name]["if"].startswith("always()")
    for name in ("Autopsy of what failed", "Profiles of what failed"):
        assert STEPS[name]["if"] == "failure() && steps.gate.outcome == 'failure'"
    limits = [step.get("timeout-minutes", 0) for step in GATE["steps"]]
    assert sum(limits) + 20 <= GATE["timeout-minutes"]  # the first night installs 5 GB


def test_what_the_autopsy_sees_pass_is_profiled_nevertheless(tmp_path: Path) -> None:
    """Without --gate it may pass; pytest would then no longer know it as failed."""
    variables = prepare(tmp_path)
    failed = tmp_path / ".pytest_cache/lastfailed"
    for folder in (failed.parent, tmp_path / "night"):
        folder.mkdir()
    failed.touch()
    forgets = 'for word; do case "$word" in cache_dir=*) rm "${word#cache_dir=}/lastfailed";; esac; done; exit 1'
    write_programs(tmp_path, pytest=forgets)
    assert run_script(tmp_path, *STEP, STEPS["Autopsy of what failed"]["run"], **variables).returncode == 1
    assert failed.exists()
    assert not (tmp_path / "autopsy-cache/lastfailed").exists()


@pytest.mark.parametrize("merged", [True, False])
def test_a_night_without_a_shard_has_a_summary_too(tmp_path: Path, merged: bool) -> None:
    if merged:
        (tmp_path / "night/shards/1").mkdir(parents=True)
        (tmp_path / "night/shards/1/doctor.txt").write_text("looked at it\n")
        (tmp_path / "night/summary.md").write_text("### gate: all good\n")
    assert run(tmp_path, [*STEP, STEPS["Summary"]["run"]]) == 0
    written = (tmp_path / "summary").read_text()
    assert written.startswith("### gate: all good\n" if merged else "No shard was merged")
    assert ("```text\nlooked at it\n```" in written) is merged
