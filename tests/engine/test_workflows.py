"""The workflows: what the linters of `make lint` do not ask, and that their scripts do what they say."""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml", reason="needs PyYAML, which the extra dev brings")

ROOT = Path(__file__).parents[2]
PATHS = sorted((ROOT / ".github/workflows").glob("*.yml"))
TEXTS = {path.name: path.read_text(encoding="utf-8") for path in PATHS}
WORKFLOWS: dict[str, dict[Any, Any]] = {name: yaml.safe_load(text) for name, text in TEXTS.items()}
NIGHTLY = WORKFLOWS["nightly-gpu.yml"]
STEPS: dict[str, dict[str, Any]] = {step["name"]: step for step in NIGHTLY["jobs"]["gate"]["steps"] if "name" in step}
TRIGGERS = True  # YAML 1.1 reads the key `on` so


def jobs() -> list[dict[str, Any]]:
    return [job for workflow in WORKFLOWS.values() for job in workflow["jobs"].values()]


def steps() -> list[dict[str, Any]]:
    return [step for job in jobs() for step in job["steps"]]


def test_both_workflows_are_there() -> None:
    assert sorted(WORKFLOWS) == ["ci.yml", "nightly-gpu.yml"]


@pytest.mark.parametrize("name", TEXTS)
def test_every_action_is_pinned_to_a_commit_with_its_version(name: str) -> None:
    uses = re.findall(r"uses: *(.*)", TEXTS[name])
    assert uses
    assert [one for one in uses if not re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", one)] == []


def test_one_action_has_one_commit_everywhere() -> None:
    pins = {step["uses"] for step in steps() if "uses" in step}
    assert len({pin.partition("@")[0] for pin in pins}) == len(pins)


def test_a_job_may_read_the_repository_and_nothing_else() -> None:
    assert all(workflow["permissions"] == {} for workflow in WORKFLOWS.values())
    assert all(job["permissions"] == {"contents": "read"} for job in jobs())
    checkouts = [step for step in steps() if step.get("uses", "").startswith("actions/checkout@")]
    assert len(checkouts) == len(jobs())
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)


@pytest.mark.parametrize("name", TEXTS)
def test_no_secret_is_asked_for(name: str) -> None:
    assert "secrets" not in TEXTS[name]
    assert "github.token" not in TEXTS[name]


def test_no_script_is_made_of_what_somebody_typed() -> None:
    assert [step["run"] for step in steps() if "${{" in step.get("run", "")] == []


def test_nothing_runs_twice_at_once_nor_for_ever() -> None:
    assert all(workflow["concurrency"]["group"] for workflow in WORKFLOWS.values())
    assert NIGHTLY["concurrency"]["cancel-in-progress"] is False
    assert all(0 < job["timeout-minutes"] <= 360 for job in jobs())


def test_code_that_nobody_has_read_never_reaches_the_gpu() -> None:
    assert sorted(NIGHTLY[TRIGGERS]) == ["schedule", "workflow_dispatch"]
    assert [workflow for workflow in TEXTS if "pull_request_target" in TEXTS[workflow]] == []
    assert "self-hosted" in NIGHTLY["jobs"]["gate"]["runs-on"]
    assert "self-hosted" not in WORKFLOWS["ci.yml"]["jobs"]["ci"]["runs-on"]


def test_labels_of_our_own_are_declared() -> None:
    declared = yaml.safe_load((ROOT / ".github/actionlint.yaml").read_text(encoding="utf-8"))
    ours = set(NIGHTLY["jobs"]["gate"]["runs-on"]) - {"self-hosted", "linux", "x64"}
    assert ours == set(declared["self-hosted-runner"]["labels"])


def test_the_night_goes_doctor_gate_autopsy_profiles_summary_artifact() -> None:
    doctor, gate, autopsy, profiles, *always = list(STEPS)[-6:]
    assert STEPS[doctor]["run"].startswith("gpugate doctor")
    assert "--gate" in STEPS[gate]["run"]
    assert STEPS[autopsy]["if"] == STEPS[profiles]["if"] == "failure() && steps.gate.outcome == 'failure'"
    assert "--nsys=" in STEPS[profiles]["run"]
    assert STEPS[profiles]["continue-on-error"] is True  # they decide nothing
    assert all(STEPS[name]["if"].startswith("always()") for name in always)
    assert STEPS[always[-1]]["with"]["retention-days"] == 90
    assert [name for name in STEPS if "--explain" in STEPS[name].get("run", "")] == [autopsy]


def test_steps_leave_the_job_time_to_tell() -> None:
    limits = [step["timeout-minutes"] for step in NIGHTLY["jobs"]["gate"]["steps"] if "timeout-minutes" in step]
    assert sum(limits) + 20 <= NIGHTLY["jobs"]["gate"]["timeout-minutes"]  # the first night installs 5 GB


def test_every_option_that_a_night_uses_exists() -> None:
    files = [*TEXTS.values(), *((ROOT / "deploy" / name).read_text() for name in ("Dockerfile", "slurm/nightly.sh"))]
    used = {
        word for text in files for word in re.findall(r"(?<!\S)(--(?:perf-[a-z]+|gate|explain|allow-missing))", text)
    }
    options = (ROOT / "gpugate/session/options.py").read_text(encoding="utf-8")
    assert {"--gate", "--explain", "--perf-report", "--allow-missing"} == used
    assert sorted(word for word in used if f'"{word}"' not in options) == []


def ran(name: str, folder: Path, **programs: str) -> "subprocess.CompletedProcess[str]":
    """A step's script as a runner runs it, in `folder`, with stand-ins for the programs that it calls."""
    for program, body in programs.items():
        path = folder / program
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
    script = folder / "step.sh"
    script.write_text(STEPS[name]["run"])
    files = {key: str(folder / key.lower()) for key in ("GITHUB_ENV", "GITHUB_STEP_SUMMARY", "NIGHT", "NIGHTS", "HOME")}
    (folder / "runner_temp").mkdir(exist_ok=True)
    files["RUNNER_TEMP"] = str(folder / "runner_temp")
    given = {"PATH": f"{folder}:{os.environ['PATH']}", "SELECT": "a or b", "ALLOW_MISSING": "nvenc", **files}
    run_ids = {"GITHUB_RUN_ID": "17", "GITHUB_RUN_ATTEMPT": "2"}
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)]
    return subprocess.run(command, cwd=folder, env={**given, **run_ids}, capture_output=True, text=True, check=False)


def test_a_night_has_a_directory_of_its_own(tmp_path: Path) -> None:
    assert ran("A directory for this night, beside those before", tmp_path).returncode == 0
    said = dict(line.split("=", 1) for line in (tmp_path / "github_env").read_text().splitlines())
    assert Path(said["NIGHT"]).is_dir()
    assert Path(said["NIGHT"]).parent == Path(said["NIGHTS"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\d-17-2", Path(said["NIGHT"]).name)


@pytest.mark.parametrize("status", [0, 1])
def test_the_doctor_is_kept_and_stops_what_he_would_not_trust(tmp_path: Path, status: int) -> None:
    (tmp_path / "night").mkdir()
    assert ran("Doctor", tmp_path, gpugate=f"echo looked at it; exit {status}").returncode == status
    assert (tmp_path / "night/doctor.txt").read_text() == "looked at it\n"


@pytest.mark.parametrize("status", [0, 1, 2, 130])
def test_the_gates_status_is_the_steps(tmp_path: Path, status: int) -> None:
    ended = ran("Gate", tmp_path, pytest=f'for word; do echo "[$word]"; done; exit {status}', gpugate="exit 0")
    assert ended.returncode == status
    assert "[-k]\n[a or b]\n[--gate]\n[--allow-missing]\n[nvenc]\n[--perf-report]" in ended.stdout


@pytest.mark.parametrize("verdict", [0, 1, 2])
def test_a_gate_that_ended_with_0_is_green_only_by_the_verdict_of_its_night(tmp_path: Path, verdict: int) -> None:
    ended = ran("Gate", tmp_path, pytest="exit 0", gpugate=f'echo "$@"; exit {verdict}')
    assert (ended.returncode, ended.stdout) == (verdict, f"verdict {tmp_path}/night\n")


def test_an_autopsy_that_fails_fails_and_is_kept(tmp_path: Path) -> None:
    (tmp_path / "night").mkdir()
    (tmp_path / ".pytest_cache").mkdir()
    assert ran("Autopsy of what failed", tmp_path, pytest="echo the copy; exit 1").returncode == 1
    assert (tmp_path / "night/autopsy.txt").read_text() == "the copy\n"


def test_what_the_autopsy_sees_pass_is_profiled_nevertheless(tmp_path: Path) -> None:
    """Without --gate it may pass; pytest would then no longer know it as failed."""
    (tmp_path / "night").mkdir()
    failed = tmp_path / ".pytest_cache/v/cache/lastfailed"
    failed.parent.mkdir(parents=True)
    failed.write_text("of the gate")
    forgets = 'for word; do case "$word" in cache_dir=*) rm "${word#cache_dir=}/v/cache/lastfailed";; esac; done'
    ended = ran("Autopsy of what failed", tmp_path, pytest=forgets)
    assert ended.returncode == 0, ended.stderr
    assert not (tmp_path / "runner_temp/autopsy-cache/v/cache/lastfailed").exists()
    assert failed.read_text() == "of the gate"
    assert "cache_dir" not in STEPS["Profiles of what failed"]["run"]


def test_the_summary_is_the_nights(tmp_path: Path) -> None:
    (tmp_path / "night").mkdir()
    (tmp_path / "night/summary.md").write_text("### gate: all good\n")
    (tmp_path / "night/doctor.txt").write_text("looked at it\n")
    assert ran("Summary", tmp_path, gpugate='echo "$1 of nights"').returncode == 0
    said = (tmp_path / "github_step_summary").read_text()
    assert said.startswith("### gate: all good\n")
    assert "```text\nlooked at it\n```" in said
    assert "```text\nhistory of nights\n```" in said


def test_a_night_that_did_not_begin_has_a_summary_too(tmp_path: Path) -> None:
    assert ran("Summary", tmp_path, gpugate="exit 2").returncode == 0
    assert (tmp_path / "github_step_summary").read_text().startswith("The gate did not begin")
