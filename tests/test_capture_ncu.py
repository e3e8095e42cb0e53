"""The kernels that Nsight Compute measured, from its CSV to a table of the longest of each side."""

import os
from pathlib import Path

import pytest

from gpugate.options import Profiling
from gpugate.profiling import nsight_tools
from gpugate.profiling.capture_index import Capture, SideLabel
from gpugate.profiling.ncu_capture import run_under_ncu
from gpugate.profiling.ncu_table import PERCENTAGES, NcuError, longest, markdown, read_kernels
from tests.fake_nsys import NVTX

COLUMNS = (
    "ID", "Process ID", "Kernel Name", "Block Size", "Grid Size",
    "Id:Domain:Start/Stop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg",
    "gpu__time_duration.sum", "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "sm__inst_executed_pipe_tensor_op_hmma.avg.pct_of_peak_sustained_active",
    "sm__pipe_tensor_op_imma_cycles_active.avg.pct_of_peak_sustained_active",
    "sm__pipe_tensor_cycles_active.max.pct_of_peak_sustained_elapsed",
)  # fmt: skip
UNITS = ("", "", "", "", "", "", "ns", *("%",) * 7)
RANGE = "1:gpugate:a/fused/cuda {}:INT64:1:ARGB:0xff:REGISTERED:a/fused/cuda {}"


def row(number: int, name: str, label: str, time: str, *percent: str) -> tuple[str, ...]:
    return (str(number), "77", name, "(128, 1, 1)", "(64, 1, 1)", RANGE.format(label, label), time, *percent)


ROWS = (
    row(0, "at::vectorized<4, float>", "reference", "1,234,000", "10", "80.4", "79", "55", "0", "n/a", "99"),
    row(1, "gemm|tn", "reference", "5,000,000", "91.5", "40", "20", "12", "88", "3", "99"),
    row(2, "tiny", "reference", "900", "1", "1", "1", "1", "0", "0", "99"),
    row(3, "gemm", "optimized", "2,000,000", "99", "40", "20", "12", "n/a", "n/a", "99"),
)


def as_csv(*rows: tuple[str, ...]) -> str:
    return "\n".join(",".join(f'"{cell}"' for cell in cells) for cells in (COLUMNS, UNITS, *rows)) + "\n"


def capture(label: SideLabel, case: str = "a/fused/cuda") -> Capture:
    return Capture(1, case, label, "the side", 1, 64, complete=True)


def test_the_longest_kernels_of_a_side() -> None:
    kernels = read_kernels("==PROF== Connected\n" + as_csv(*ROWS))
    assert [kernel.name for kernel in longest(kernels, capture("reference"), 2)] == [
        "gemm|tn",
        "at::vectorized<4, float>",
    ]
    (gemm,) = longest(kernels, capture("optimized"), 5)
    assert (gemm.time_ms, gemm.compute_percent, gemm.dram_percent, gemm.occupancy_percent) == (2.0, 99, 20, 12)
    assert gemm.tensor_percent is None
    assert longest(kernels, capture("optimized", "fused/cuda"), 5) == []


def test_the_busiest_pipe_of_the_tensor_cores_counts() -> None:
    kernels = read_kernels(as_csv(*ROWS))
    assert [kernel.tensor_percent for kernel in kernels] == [0, 88, 0, None]


def test_a_table_that_no_name_can_break() -> None:
    kernels = read_kernels(as_csv(*ROWS))
    text = markdown([(capture("reference"), longest(kernels, capture("reference"), 2))])
    assert "## a/fused/cuda, reference: the side" in text
    assert "| gemm\\|tn | 5.00 ms | 92 % | 40 % | 20 % | 12 % | 88 % | (64, 1, 1) | (128, 1, 1) |" in text
    assert "| `at::vectorized<4, float>` | 1.23 ms | 10 % | 80 % | 79 % | 55 % | 0 % |" in text


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ("", "ncu printed no table of kernels .nothing.: run it by hand"),
        ("==ERROR== Failed to open", "ncu printed no table of kernels .==ERROR== Failed to open.: run it by hand"),
        ('"ID","Kernel Name"\n"0","gemm"\n', "ncu printed no gpu__time_duration.sum: run a newer"),
    ],
)
def test_what_is_no_table_is_one_sentence(said: str, problem: str) -> None:
    with pytest.raises(NcuError, match=problem):
        read_kernels(said)


SECRET = "hunter2-of-a-ci-job"
NCU = """#!/bin/sh
# Stands in for ncu: prints a table that is there, or writes a report and its own log, and an index as pytest would.
# What it knows of its environment is in the report, and in the table.
case "$1 $*" in
  --import*--nvtx*|--import*--section*) echo "==ERROR== Invalid option --nvtx specified for --import"; exit 1 ;;
  --import*) sed "s/gemm|tn/gemm|tn $CI_JOB_TOKEN/" "{folder}/table.csv"; exit 0 ;;
esac
echo "$@" > "{folder}/words"
for word in "$@"; do case "$word" in
  --log-file=*) echo "{log}" > "${{word#--log-file=}}" ;;
  --export=*) stem="${{word#--export=}}" ;;
esac; done
{make} "$stem.ncu-rep"
cp "{folder}/index.json" "$GPUGATE_PROFILED_IN/index.json"
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "nvtx.py").write_text(NVTX, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    captures = (
        '{"number": 1, "case_id": "a/fused/cuda", "label": "reference", "side": "baseline", "steps": 1, "items": 64,'
        ' "complete": true}'
    )
    (tmp_path / "index.json").write_text(f'{{"captures": [{captures}], "status": 0}}', encoding="utf-8")
    (tmp_path / "table.csv").write_text(as_csv(*ROWS), encoding="utf-8")
    return tmp_path


def under_ncu(project: Path, make: str = "env >", log: str = "") -> tuple[int, str]:
    (project / "ncu").write_text(NCU.format(folder=project, make=make, log=log), encoding="utf-8")
    (project / "ncu").chmod(0o755)
    said: list[str] = []
    status = run_under_ncu(Profiling("ncu", project / "found", kernels=1), ["-k", "x"], said.append)
    return status, "\n".join(said)


def test_a_run_under_ncu_leaves_its_report_and_a_table_and_no_secret(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI_JOB_TOKEN", SECRET)
    status, said = under_ncu(project)
    assert status == 0, said
    assert "ncu: 1 kernels in" in said
    assert sorted(path.name for path in (project / "found").iterdir()) == [
        ".lock", "kernels.json", "kernels.md", "kernels.ncu-rep",
    ]  # fmt: skip
    assert "gemm" in (project / "found/kernels.md").read_text(encoding="utf-8")
    every = {path.name: path.read_bytes() for path in (project / "found").iterdir()}
    assert f"PATH={project}:".encode() in every["kernels.ncu-rep"]  # so that a secret in it would be seen
    assert [name for name, content in every.items() if SECRET.encode() in content] == []
    assert '"time_ms": 5.0' in (project / "found/kernels.json").read_text(encoding="utf-8")
    words = (project / "words").read_text(encoding="utf-8").split()
    assert {"--nvtx", "--import-sass=no", "--clock-control=none"} <= set(words)
    assert next(word for word in words if word.startswith("--metrics=")).count(",") == len(PERCENTAGES)


@pytest.mark.parametrize(
    ("log", "sentence"),
    [
        ("==ERROR== ERR_NVGPUCTRPERM: no permission", f"(ERR_NVGPUCTRPERM): {nsight_tools.PERMISSION}"),
        ("==ERROR== Unknown section", "ncu made no report (Unknown section): run it by hand to see more"),
    ],
)
def test_without_a_report_it_says_how_to_get_one(project: Path, log: str, sentence: str) -> None:
    status, said = under_ncu(project, make=":", log=log)
    assert status == 1
    assert sentence in said
