"""`--perf-tolerance` in a run that measures: refused below the floor of the machine, and stored with the run."""

import pytest

from gpugate.commands.cli import main
from tests.support.tiny_project import TinyProject, check_no_traceback

UNBUILDABLE = """
def quick(context):
    raise AssertionError("built")
"""


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "100", "little", "1e-322", ""])
def test_a_tolerance_that_is_no_share_is_one_sentence(tiny: TinyProject, value: str) -> None:
    result = tiny.run(f"--perf-tolerance={value}")
    assert result.status == pytest.ExitCode.USAGE_ERROR
    sentence = f"ERROR: --perf-tolerance is {value!r}: give a number of percent above 0 and below 100"
    assert sentence in result.text
    check_no_traceback(result.text)


def test_a_tolerance_is_nothing_to_record(tiny: TinyProject) -> None:
    result = tiny.run("--update-baselines", "--perf-tolerance=3")
    assert result.status == pytest.ExitCode.USAGE_ERROR
    assert "ERROR: --perf-tolerance judges and --update-baselines records: run one after the other" in result.text


def test_a_tolerance_below_what_the_machine_resolves_is_refused_before_anything_is_measured(tiny: TinyProject) -> None:
    recorded = tiny.run("--perf-device=cpu", "--update-baselines", "-operf_processes=1")
    assert recorded.status == 0, recorded.text
    tiny.pretend_five_processes()
    tiny.workload(UNBUILDABLE)
    before = tiny.files()
    refused = tiny.run("--perf-tolerance=0.01", "--perf-device=cpu", "--perf-json=run.json")
    assert refused.status == pytest.ExitCode.USAGE_ERROR
    (said,) = [line for line in refused.text.splitlines() if line.startswith("ERROR: ")]
    assert "--perf-tolerance is 0.01 %, below the " in said
    assert "that this machine resolves for tiny/quick/cpu: ask for " in said
    assert tiny.files() == before
    smallest = said.partition("ask for ")[2].split()[0]
    tiny.workload()
    enough = tiny.run(f"--perf-tolerance={smallest}", "-k", "speedup", "--perf-device=cpu", "--perf-json=run.json")
    assert enough.status in (0, 1)
    assert tiny.json()["asked_tolerance"] == pytest.approx(float(smallest) / 100)
    assert main(["replay", str(tiny.path / "run.json")]) == 0, "a measured run is decided again digit for digit"
    tiny.run("--perf-tolerance=50", "-k", "speedup", "--perf-device=cpu", "--perf-json=run.json")
    assert tiny.verdict("throughput")["numbers"]["time_tolerance"] == 0.5


def test_a_tolerance_is_free_where_nothing_is_recorded(tiny: TinyProject) -> None:
    assert tiny.run("--perf-tolerance=0.01", "-k", "speedup", "--perf-device=cpu").status == 0
