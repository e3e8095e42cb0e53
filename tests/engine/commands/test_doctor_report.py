"""The doctor's report, and one real examination of this machine without a GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpugate.commands import doctor
from gpugate.commands.cli import main
from gpugate.commands.doctor import children
from gpugate.commands.doctor.finding import Group, ProbeResult, ProbeState
from gpugate.commands.doctor.render import document, text
from gpugate.machine.environment import Environment
from gpugate.store.codec import from_json
from tests.conftest import H200
from tests.support.doctor_cases import Hospital, Scripted, fails, healthy, refuses, says

ROOT = Path(doctor.__file__).parents[3]


@pytest.fixture
def hospital(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hospital:
    made = healthy(tmp_path, monkeypatch)
    monkeypatch.setattr(children, "Children", lambda: Scripted(made.script, made.path))
    return made


def test_the_table_fits_80_columns_and_says_everything(hospital: Hospital) -> None:
    hospital.script |= {"cupti": says(0), "package": fails("ImportError: [Errno 5] is no markup")}
    found = hospital.diagnosis()
    said = text(found, 80, colour=False)
    lines = said.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line for line in lines if line != line.rstrip()] == []
    shown = " ".join(said.split())
    for finding in found.findings:
        assert f"{finding.name} {finding.state.value} " in shown
        assert finding.sentence.split()[-1] in shown
    assert "ImportError: [Errno 5] is no markup" in shown
    assert [line for line in lines if line in [group.value for group in Group]] == [group.value for group in Group]
    assert lines[-1] == "a gate run here would not be trustworthy: CUPTI"


def test_the_document_has_what_the_table_has(hospital: Hospital) -> None:
    found = hospital.diagnosis()
    told = json.loads(document(found))
    assert (told["format"], told["format_version"], told["trustworthy"]) == ("gpugate-doctor", 1, True)
    assert from_json(Environment, told["environment"]) == H200
    assert [
        ProbeResult(Group(f["group"]), f["name"], ProbeState(f["state"]), f["sentence"]) for f in told["findings"]
    ] == list(found.findings)


def test_status_0_says_that_a_gate_run_would_be_trustworthy(
    hospital: Hospital, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["doctor", "--baselines", str(hospital.path / "baselines")]
    assert main(words) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "a gate run here would be trustworthy"
    assert main(["doctor", "--baselines", str(hospital.path)]) == 1
    hospital.script["cupti"] = says(0)
    capsys.readouterr()
    assert main([*words, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["trustworthy"] is False


@pytest.mark.parametrize("device", ["cuda:7", "gpu"])
def test_a_device_that_is_not_there_is_one_sentence(
    hospital: Hospital, device: str, capsys: pytest.CaptureFixture[str]
) -> None:
    hospital.script["machine"] = refuses("there is no device 'cuda:7', torch sees 1 GPU(s): use another")
    assert main(["doctor", "--device", device]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"gpugate doctor: there is no device '{device}'")
    assert len(said.splitlines()) == 1


def test_this_machine_is_examined_without_a_gpu(tmp_path: Path) -> None:
    """In a folder without baselines, which passes no gate."""
    environment = {**os.environ, "TMPDIR": str(tmp_path), "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    environment["GPUGATE_TEST_SECRET"] = "a-value-of-the-environment"
    command = [sys.executable, "-m", "gpugate", "doctor", "--json"]
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    told = json.loads(ended.stdout)
    found = {finding["name"]: finding for finding in told["findings"]}
    assert ended.returncode == 1
    assert told["environment"]["device_kind"] == "cpu"
    assert (found["GPU"]["state"], found["baselines"]["state"]) == ("absent", "bad")
    assert "matmul" in found["yardsticks"]["sentence"]
    assert [name for name, finding in found.items() if "could not be looked at" in finding["sentence"]] == []
    assert "a-value-of-the-environment" not in ended.stdout
    assert list(tmp_path.iterdir()) == [], "something was left behind"
