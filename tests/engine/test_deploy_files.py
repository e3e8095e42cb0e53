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

from gpugate.store.provenance import CONTAINER_VARIABLE
from tests.support.patience import HANGS_S, wait_until

yaml = pytest.importorskip("yaml", reason="needs PyYAML, which the extra dev brings")

DEPLOY = Path(__file__).parents[2] / "deploy"
CLAIM, CRON = yaml.safe_load_all((DEPLOY / "kubernetes/nightly.yaml").read_text(encoding="utf-8"))
JOB: dict[str, Any] = CRON["spec"]["jobTemplate"]["spec"]
POD: dict[str, Any] = JOB["template"]["spec"]
(GATE,) = POD["containers"]
(CHECKOUT,) = POD["initContainers"]
VOLUMES = {volume["name"]: volume for volume in POD["volumes"]}
MOUNTS = {mount["mountPath"]: mount for mount in GATE["volumeMounts"]}
GPU = "nvidia.com/gpu"


def test_a_night_is_tried_once_and_alone_and_ends() -> None:
    assert CRON["spec"]["concurrencyPolicy"] == "Forbid"
    assert JOB["backoffLimit"] == 0
    assert POD["restartPolicy"] == "Never"
    assert 0 < JOB["activeDeadlineSeconds"] <= 6 * 3600


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
    mounted = {mount["name"] for container in (GATE, CHECKOUT) for mount in container["volumeMounts"]}
    assert mounted == set(VOLUMES)


@pytest.mark.parametrize("container", [GATE, CHECKOUT], ids=lambda container: container["name"])
def test_no_container_has_a_privilege(container: dict[str, Any]) -> None:
    assert POD["securityContext"]["runAsNonRoot"] is True
    assert POD["automountServiceAccountToken"] is False
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


def stand_ins(folder: Path, gate: int, doctor: int = 0, verdict: int = 0) -> dict[str, str]:
    """An environment in whose PATH srun runs what it is given, and pytest and gpugate only write down their words."""
    statuses = f"case $1 in doctor) exit {doctor};; verdict) exit {verdict};; esac;"
    programs = {
        "srun": 'while [ "${1#--}" != "$1" ]; do shift; done; exec "$@"',
        "gpugate": f'echo gpugate "$@" >> "$CALLS"; {statuses} exit 2',
        "pytest": f'for word; do echo "[$word]" >> "$CALLS"; done; exit {gate}',
    }
    for name, body in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    nights = {"GPUGATE_NIGHTS": str(folder / "nights"), "SLURM_JOB_ID": "17", "SLURM_SUBMIT_DIR": str(folder)}
    return {"PATH": f"{folder}:{os.environ['PATH']}", "CALLS": str(folder / "calls"), "HOSTNAME": "pod", **nights}


def catches(pid: int, number: signal.Signals) -> bool:
    """Returns True once the process has a handler of that signal; see proc_pid_status(5)."""
    (caught,) = re.findall(r"^SigCgt:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(encoding="utf-8"), re.MULTILINE)
    return bool(int(caught, 16) >> (number - 1) & 1)


@pytest.mark.parametrize("kind", ["pod", "image"])
def test_a_pod_that_ends_tells_pytest_and_waits_for_it(tmp_path: Path, kind: str) -> None:
    *command, script = GATE["command"] if kind == "pod" else image_command(tmp_path)
    here = script.replace("/nights", str(tmp_path / "nights")) if kind == "pod" else script
    environment = stand_ins(tmp_path, gate=0)
    slow = 'trap "echo told >> $CALLS; exit 2" TERM\ntouch begun\nwhile :; do sleep 0.02; done\n'
    (tmp_path / "pytest").write_text(f"#!/bin/sh\n{slow}")
    pod = subprocess.Popen([*command, here], cwd=tmp_path, env=environment, start_new_session=True)
    try:
        wait_until(lambda: (tmp_path / "begun").exists() and catches(pod.pid, signal.SIGTERM))
        pod.terminate()
        assert pod.wait(HANGS_S) == 2
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pod.pid, signal.SIGKILL)  # and what a failed test has left
    history = [f"gpugate history {tmp_path}/nights"] if kind == "pod" else []
    assert (tmp_path / "calls").read_text().splitlines()[1:] == ["told", *history]


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
def test_a_job_that_is_started_again_begins_without_its_older_run(tmp_path: Path, run: Any) -> None:
    run(tmp_path, gate=0)
    (night,) = (tmp_path / "nights").iterdir()
    for name in ("run.json", "run.json.cases"):
        (night / name).touch()
    run(tmp_path, gate=0)
    nights = list((tmp_path / "nights").iterdir())  # two, where midnight came between
    assert len(nights) == 2 or list(night.glob("run.json*")) == []


@pytest.mark.parametrize("run", [slurm, kubernetes])
@pytest.mark.parametrize("status", [0, 1, 5, 130])
def test_the_status_is_the_gates_and_the_history_cannot_change_it(tmp_path: Path, run: Any, status: int) -> None:
    assert run(tmp_path, gate=status) == status
    doctor, *gate, history = (tmp_path / "calls").read_text().splitlines()
    assert doctor == "gpugate doctor"
    assert {"[--gate]", "[gpu]", "[--perf-report]"} <= set(gate)
    assert history == f"gpugate history {tmp_path}/nights"
    (night,) = (tmp_path / "nights").iterdir()
    assert f"[{night}]" in gate
    assert (night / "doctor.txt").exists()


@pytest.mark.parametrize("run", [slurm, kubernetes])
@pytest.mark.parametrize("verdict", [0, 1, 2])
def test_a_gate_that_ended_with_0_is_green_only_by_the_verdict_of_its_night(
    tmp_path: Path, run: Any, verdict: int
) -> None:
    assert run(tmp_path, gate=0, verdict=verdict) == verdict
    (night,) = (tmp_path / "nights").iterdir()
    assert (tmp_path / "calls").read_text().splitlines()[-2:] == [
        f"gpugate verdict {night}",
        f"gpugate history {tmp_path}/nights",
    ]


@pytest.mark.parametrize("run", [slurm, kubernetes])
def test_a_machine_that_the_doctor_would_not_trust_is_not_measured(tmp_path: Path, run: Any) -> None:
    assert run(tmp_path, gate=0, doctor=1) == 1
    assert (tmp_path / "calls").read_text() == "gpugate doctor\n"


def test_words_behind_the_slurm_script_are_pytests(tmp_path: Path) -> None:
    assert slurm(tmp_path, "-k", "two words", gate=0) == 0
    assert "[-k]\n[two words]\n" in (tmp_path / "calls").read_text()
