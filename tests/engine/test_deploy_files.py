"""The files of deploy/: what a schema cannot ask of them, and that their scripts keep the gate's exit status."""

import contextlib
import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpugate.commands.cli import _parser
from gpugate.commands.compare.report import Comparison, document
from gpugate.judging.duet import judge_duet
from gpugate.store.provenance import CONTAINER_VARIABLE
from gpugate.store.version import Version
from tests.engine.judging.test_duet import CASE, measured, process
from tests.support.patience import HANGS_S, wait_until

yaml = pytest.importorskip("yaml", reason="needs PyYAML, which the extra dev brings")

DEPLOY = Path(__file__).parents[2] / "deploy"
CLAIM, CRON, MERGE_CRON = yaml.safe_load_all((DEPLOY / "kubernetes/nightly.yaml").read_text(encoding="utf-8"))
JOB, MERGE_JOB = (cron["spec"]["jobTemplate"]["spec"] for cron in (CRON, MERGE_CRON))
POD, MERGE_POD = (job["template"]["spec"] for job in (JOB, MERGE_JOB))
(GATE,), (MERGE,) = POD["containers"], MERGE_POD["containers"]
(CHECKOUT,), (MERGE_CHECKOUT,) = POD["initContainers"], MERGE_POD["initContainers"]
VOLUMES = {volume["name"]: volume for volume in POD["volumes"]}
MOUNTS = {mount["mountPath"]: mount for mount in GATE["volumeMounts"]}
GPU = "nvidia.com/gpu"


def test_a_night_is_tried_once_and_alone_and_ends() -> None:
    assert {cron["spec"]["concurrencyPolicy"] for cron in (CRON, MERGE_CRON)} == {"Forbid"}
    assert (JOB["backoffLimitPerIndex"], "backoffLimit" in JOB, MERGE_JOB["backoffLimit"]) == (0, False, 0)
    assert {pod["restartPolicy"] for pod in (POD, MERGE_POD)} == {"Never"}
    assert 0 < JOB["activeDeadlineSeconds"] < MERGE_JOB["activeDeadlineSeconds"] <= 6 * 3600


def test_every_pod_has_a_shard_of_the_volume_that_all_of_them_share() -> None:
    assert JOB["completionMode"] == "Indexed"
    shards = {
        str(JOB["completions"]),
        str(JOB["parallelism"]),
        *(read_variables(one)["GPUGATE_SHARDS"] for one in BOTH),
    }
    assert len(shards) == 1
    assert CLAIM["spec"]["accessModes"] == ["ReadWriteMany"]


def test_the_job_that_merges_begins_in_the_minute_of_the_shards_with_the_same_code() -> None:
    schedules = {(cron["spec"]["schedule"], cron["spec"]["timeZone"]) for cron in (CRON, MERGE_CRON)}
    assert len(schedules) == 1
    assert MERGE_CHECKOUT["env"] == CHECKOUT["env"]
    assert {one["image"] for one in (MERGE, MERGE_CHECKOUT, CHECKOUT)} == {GATE["image"]}
    assert GPU not in MERGE["resources"]["limits"]


BOTH = (GATE, MERGE)


def read_variables(container: dict[str, Any]) -> dict[str, str | None]:
    return {variable["name"]: variable.get("value") for variable in container["env"]}


def test_the_gate_has_one_gpu_and_cores_of_its_own() -> None:
    resources = GATE["resources"]
    assert resources["limits"] == resources["requests"]
    assert resources["limits"][GPU] == "1"
    assert resources["limits"]["cpu"].isdecimal()
    assert CHECKOUT["resources"]["limits"] == CHECKOUT["resources"]["requests"]
    assert GPU not in CHECKOUT["resources"]["limits"]


def test_shared_memory_is_memory_and_counts_in_the_limit() -> None:
    volume = VOLUMES[MOUNTS["/dev/shm"]["name"]]["emptyDir"]  # noqa: S108  # in the container
    assert volume["medium"] == "Memory"
    assert int(volume["sizeLimit"].removesuffix("Gi")) < int(GATE["resources"]["limits"]["memory"].removesuffix("Gi"))


def test_baselines_are_read_only_and_results_are_kept() -> None:
    assert MOUNTS["/suite"]["readOnly"] is True
    assert VOLUMES[MOUNTS["/nights"]["name"]]["persistentVolumeClaim"]["claimName"] == CLAIM["metadata"]["name"]
    (checked_out,) = [mount["name"] for mount in CHECKOUT["volumeMounts"] if mount["mountPath"] == "/suite"]
    assert checked_out == MOUNTS["/suite"]["name"]


def test_a_run_stores_the_image_and_compares_with_the_recorded_code() -> None:
    assert CONTAINER_VARIABLE in {variable["name"] for variable in GATE["env"]}
    assert "readOnly" not in MOUNTS["/suite/.git"]  # git writes there where it adds a worktree
    assert MOUNTS["/suite/.git"]["subPath"] == ".git"


def test_every_mount_has_its_volume() -> None:
    for pod in (POD, MERGE_POD):
        containers = [*pod["containers"], *pod["initContainers"]]
        mounted = {mount["name"] for container in containers for mount in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["volumes"]}


@pytest.mark.parametrize(
    ("pod", "container"),
    [(POD, GATE), (POD, CHECKOUT), (MERGE_POD, MERGE), (MERGE_POD, MERGE_CHECKOUT)],
    ids=lambda value: value.get("name", ""),
)
def test_no_container_has_a_privilege(pod: dict[str, Any], container: dict[str, Any]) -> None:
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_the_image_is_nvidias_of_a_fixed_release_and_not_root() -> None:
    lines = (DEPLOY / "Dockerfile").read_text(encoding="utf-8").splitlines()
    (base,) = [line for line in lines if line.startswith("FROM ")]
    assert re.fullmatch(r"FROM nvcr\.io/nvidia/pytorch:\d\d\.\d\d-py3", base)
    *_, user = [line for line in lines if line.startswith("USER ")]
    assert user == f"USER {POD['securityContext']['runAsUser']}:{POD['securityContext']['runAsGroup']}"
    assert GATE["image"] == CHECKOUT["image"]
    assert GATE["image"].rpartition(":")[2] in base


def stand_ins(folder: Path, gate: int = 0, doctor: int = 0, verdict: int = 0, merge: int = 0) -> dict[str, str]:
    """An environment in whose PATH srun runs what it is given, and pytest and gpugate only write down their words."""
    statuses = f"case $1 in doctor) exit {doctor};; verdict) exit {verdict};; merge) exit {merge};; esac;"
    programs = {
        "srun": 'while [ "${1#--}" != "$1" ]; do shift; done; exec "$@"',
        "gpugate": f'echo gpugate "$@" >> "$CALLS"; {statuses} exit 2',
        "sleep": "exit 0",
        "pytest": f'for word; do echo "[$word]" >> "$CALLS"; done; exit {gate}',
    }
    for name, body in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    nights = {"GPUGATE_NIGHTS": str(folder / "nights"), "SLURM_SUBMIT_DIR": str(folder)}
    task = {"SLURM_ARRAY_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": "3", "GPUGATE_DURATIONS": "/nights/before"}
    pod = {"JOB_NAME": "gpugate-nightly-17", "JOB_COMPLETION_INDEX": "3", "GPUGATE_SHARDS": "2"}
    return {"PATH": f"{folder}:{os.environ['PATH']}", "CALLS": str(folder / "calls"), **nights, **task, **pod}


def catches(pid: int, number: signal.Signals) -> bool:
    """Returns True once the process has a handler of that signal; see proc_pid_status(5)."""
    (caught,) = re.findall(r"^SigCgt:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(encoding="utf-8"), re.MULTILINE)
    return bool(int(caught, 16) >> (number - 1) & 1)


@pytest.mark.parametrize("kind", ["pod", "image"])
def test_a_pod_that_ends_tells_pytest_and_waits_for_it(tmp_path: Path, kind: str) -> None:
    *command, script = GATE["command"] if kind == "pod" else image_command(tmp_path)
    here = script.replace("/nights", str(tmp_path / "nights")) if kind == "pod" else script
    environment = stand_ins(tmp_path, gate=0)
    slow = 'trap "echo told >> $CALLS; exit 2" TERM\ntouch begun\nwhile :; do /bin/sleep 0.02; done\n'
    (tmp_path / "pytest").write_text(f"#!/bin/sh\n{slow}")
    pod = subprocess.Popen([*command, here], cwd=tmp_path, env=environment, start_new_session=True)
    try:
        wait_until(lambda: (tmp_path / "begun").exists() and catches(pod.pid, signal.SIGTERM))
        pod.terminate()
        assert pod.wait(HANGS_S) == 2
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pod.pid, signal.SIGKILL)  # and what a failed test has left
    assert (tmp_path / "calls").read_text().splitlines()[1:] == ["told"]
    assert (SHARD in [str(path.parent.relative_to(tmp_path)) for path in tmp_path.rglob("ended")]) is (kind == "pod")


SHARD = "nights/night-17/shards/3"  # of the pod; the task of Slurm has a night of another name


def shard_of(run: Any) -> str:
    return SHARD if run is kubernetes else SHARD.replace("night-17", "slurm-17")


def slurm(folder: Path, *words: str, **statuses: int) -> int:
    command = ["bash", str(DEPLOY / "slurm/nightly.sh"), *words]
    return subprocess.run(command, env=stand_ins(folder, **statuses), capture_output=True, check=False).returncode


def kubernetes(folder: Path, **statuses: int) -> int:
    *command, script = GATE["command"]
    here = script.replace("/nights", str(folder / "nights"))
    environment = stand_ins(folder, **statuses)
    return subprocess.run([*command, here], cwd=folder, env=environment, capture_output=True, check=False).returncode


def docker(folder: Path, **statuses: int) -> int:
    environment = stand_ins(folder, **statuses)
    return subprocess.run(image_command(folder), cwd=folder, env=environment, check=False).returncode


def image_command(folder: Path) -> list[str]:
    """Returns the command of the image, with a writable folder of nights."""
    (command,) = re.findall(r"^CMD (.*)$", (DEPLOY / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    return [word.replace("/nights", str(folder / "nights")) for word in json.loads(command)]


@pytest.mark.parametrize(("gate", "verdict", "status"), [(0, 0, 0), (0, 1, 1), (0, 2, 2), (1, 0, 1), (5, 0, 5)])
def test_the_image_ends_as_its_gate_and_with_the_verdict_of_the_night(
    tmp_path: Path, gate: int, verdict: int, status: int
) -> None:
    assert docker(tmp_path, gate=gate, verdict=verdict) == status
    calls = (tmp_path / "calls").read_text().splitlines()
    night = calls[calls.index("[--perf-report]") + 1].strip("[]")
    assert (f"gpugate verdict {night}" in calls) is (gate == 0)


@pytest.mark.parametrize("run", [slurm, kubernetes])
def test_a_shard_that_is_started_again_begins_without_its_older_run(tmp_path: Path, run: Any) -> None:
    run(tmp_path)
    for name in ("run.json", "run.json.cases"):
        (tmp_path / shard_of(run) / name).touch()
    run(tmp_path)
    assert list((tmp_path / shard_of(run)).glob("run.json*")) == []


@pytest.mark.parametrize("run", [slurm, kubernetes])
@pytest.mark.parametrize("status", [0, 1, 5, 130])
def test_the_status_of_a_shard_is_its_gates(tmp_path: Path, run: Any, status: int) -> None:
    assert run(tmp_path, gate=status) == status
    doctor, *gate = (tmp_path / "calls").read_text().splitlines()
    assert doctor == "gpugate doctor"
    assert {"[--gate]", "[gpu]", "[--perf-report]"} <= set(gate)
    assert gate[gate.index("[--perf-durations]") :][:2] == ["[--perf-durations]", "[/nights/before]"]
    assert f"[{'slurm' if run is slurm else 'kubernetes'}]" == gate[gate.index("[--perf-shard]") + 1]
    assert f"[{tmp_path / shard_of(run)}]" in gate
    assert (tmp_path / shard_of(run) / "doctor.txt").exists()


@pytest.mark.parametrize("run", [slurm, kubernetes])
@pytest.mark.parametrize("verdict", [0, 1, 2])
def test_a_gate_that_ended_with_0_is_green_only_by_the_verdict_of_its_shard(
    tmp_path: Path, run: Any, verdict: int
) -> None:
    assert run(tmp_path, verdict=verdict) == verdict
    assert (tmp_path / "calls").read_text().splitlines()[-1] == f"gpugate verdict {tmp_path / shard_of(run)}"


def test_a_night_of_slurm_without_the_gate_asks_neither_the_doctor_nor_for_a_verdict(tmp_path: Path) -> None:
    environment = {**stand_ins(tmp_path, doctor=1, verdict=1), "GPUGATE_GATE": "off"}
    assert subprocess.run(["bash", str(DEPLOY / "slurm/nightly.sh")], env=environment, check=False).returncode == 0
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls[:3] == ["[perf_tests]", "[--perf-shard]", "[slurm]"]
    assert not {"[--gate]", "[gpu]"} & set(calls)
    assert calls[-1] == f"[{tmp_path / shard_of(slurm)}]"


def merge_by_slurm(folder: Path, **statuses: int) -> int:
    command = ["bash", str(DEPLOY / "slurm/merge.sh"), "17;cluster"]
    return subprocess.run(command, env=stand_ins(folder, **statuses), capture_output=True, check=False).returncode


def merge_by_kubernetes(folder: Path, **statuses: int) -> int:
    *command, script = MERGE["command"]
    here = script.replace("/nights", str(folder / "nights"))
    environment = {**stand_ins(folder, **statuses), "JOB_NAME": "gpugate-merge-17"}
    return subprocess.run([*command, here], env=environment, capture_output=True, check=False).returncode


@pytest.mark.parametrize(("run", "merge"), [(slurm, merge_by_slurm), (kubernetes, merge_by_kubernetes)])
@pytest.mark.parametrize("status", [0, 1, 2])
def test_shards_are_merged_where_they_are_and_the_history_cannot_change_the_status(
    tmp_path: Path, run: Any, merge: Any, status: int
) -> None:
    run(tmp_path)
    shard = tmp_path / shard_of(run)
    (shard.parent / "4").mkdir()
    (shard.parent / "4/ended").touch()
    (tmp_path / "calls").unlink()
    assert merge(tmp_path, merge=status) == status
    assert (tmp_path / "calls").read_text().splitlines() == [
        f"gpugate merge {shard} {shard.parent}/4 --output {shard.parents[1]}",
        f"gpugate history {tmp_path}/nights",
    ]


@pytest.mark.parametrize(("ended", "minutes"), [(2, 0), (1, 250), (0, 250)])
def test_the_job_that_merges_waits_until_all_shards_have_ended_or_their_time_is_over(
    tmp_path: Path, ended: int, minutes: int
) -> None:
    for number in range(ended):
        (tmp_path / f"nights/night-17/shards/{number}").mkdir(parents=True)
        (tmp_path / f"nights/night-17/shards/{number}/ended").touch()
    environment = stand_ins(tmp_path)
    (tmp_path / "sleep").write_text('#!/bin/sh\necho "$1" >> "$CALLS.slept"\n')
    *command, script = MERGE["command"]
    here = script.replace("/nights", str(tmp_path / "nights"))
    given = {**environment, "JOB_NAME": "gpugate-merge-17"}
    assert subprocess.run([*command, here], env=given, capture_output=True, check=False).returncode == 0
    slept = tmp_path / "calls.slept"
    assert (slept.read_text().split() if slept.exists() else []) == ["60"] * minutes
    assert minutes * 60 + 300 < MERGE_JOB["activeDeadlineSeconds"]
    assert JOB["activeDeadlineSeconds"] < 250 * 60


@pytest.mark.parametrize("run", [slurm, kubernetes])
def test_a_machine_that_the_doctor_would_not_trust_is_not_measured(tmp_path: Path, run: Any) -> None:
    assert run(tmp_path, gate=0, doctor=1) == 1
    assert (tmp_path / "calls").read_text() == "gpugate doctor\n"


def test_words_behind_the_slurm_script_are_pytests(tmp_path: Path) -> None:
    assert slurm(tmp_path, "-k", "two words") == 0
    assert "[-k]\n[two words]\n" in (tmp_path / "calls").read_text()


@pytest.mark.parametrize(
    ("status", "milliseconds", "expected"),
    [(0, [10], 0), (1, [10, 10.5], 1), (2, [10], 2), (130, None, 130), (125, [10], 64), (125, [10, 10.5], 1)],
)
def test_a_container_compares_in_a_copy_and_undecided_cases_alone_have_a_status_of_their_own(
    tmp_path: Path, status: int, milliseconds: list[float] | None, expected: int
) -> None:
    """Docker has the status 125, too."""
    for folder in ("home", "source/deploy"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "source/deploy/compare.sh").write_bytes((DEPLOY / "compare.sh").read_bytes())
    duets = [judge_duet(CASE, [process(measured(10, head_ms))] * 3) for head_ms in milliseconds or []]
    compared = Comparison(Version("a", tmp_path), Version("b", tmp_path), [process(measured(10, 10))], duets, {})
    (tmp_path / "made.json").write_text(json.dumps(document(compared), indent=1))
    written = f'cp {tmp_path}/made.json "$HOME/compare.json";' if milliseconds else ""
    (tmp_path / "gpugate").write_text(f'#!/bin/sh\npwd; echo "$@"; {written} exit {status}\n')
    (tmp_path / "gpugate").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path / "home")}
    command = ["bash", str(tmp_path / "source/deploy/compare.sh"), "base", "head"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == expected, ended.stderr
    assert ended.stdout == ((tmp_path / "made.json").read_text() if milliseconds else "")
    folder, words, *_ = ended.stderr.splitlines()
    assert folder == str(tmp_path / "home/versions")
    arguments = _parser(["compare"]).parse_args(words.split())
    assert (arguments.base, arguments.head, arguments.marker, arguments.exact) == ("base", "head", "gpu", False)
