"""The kernels that Nsight Compute measured, from its CSV to a table of the longest of each side."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from gpugate.profiling import nsight_tools
from gpugate.profiling.capture_index import Capture, SideLabel
from gpugate.profiling.ncu_kernels import (
    METRICS,
    CountedKernel,
    NcuError,
    add_shares,
    bound_by,
    filters,
    longest_kernels,
    markdown,
    of_capture,
    read_launches,
    run_under_ncu,
)
from gpugate.session.options import Profiling
from tests.support.fake_ncu import Filters, install
from tests.support.fake_nsys import NVTX

COLUMNS = (
    "ID", "Process ID", "Kernel Name", "Block Size", "Grid Size",
    "Id:Domain:Start/Stop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg",
    "gpu__time_duration.sum", "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
)  # fmt: skip
UNITS = ("", "", "", "", "", "", "ns", *("%",) * 5)
RANGE = (
    '2888  "gpugate:step:Int64:64:RGB:0x76b900:REGISTERED:step"   "0:gpugate:{0}:Int64:1:RGB:0x999999:REGISTERED:{0}" '
)
GEMM, RELU, TINY = "_Z4gemmIfLb1EEvPKT_", "_ZN2at6native4reluE$v", "_Z4tinyv"
SPELLED = {GEMM: "void gemm<float, true>(const float *)", RELU: "void at::relu|<4>(float *)", TINY: "tiny()"}


def row(name: str, label: str, time: str, *percent: str, shape: int = 64, case: str = "a/fused/cuda") -> list[str]:
    ranges = RANGE.format(f"{case} {label}")
    return ["", "77", name, "(128, 1, 1)", f"({shape}, 1, 1)", ranges, time, *(percent or ("1",) * 5)]


ROWS = [
    row(RELU, "reference", "1,234,000", "10", "80.4", "79", "55", "0", shape=256),
    row(RELU, "reference", "600,000", shape=128),
    row(GEMM, "reference", "5,000,000", "91.5", "40", "20", "12", "88"),
    row(RELU, "reference", "300,000", shape=256),
    row(RELU, "reference", "300,000", shape=256),
    row(TINY, "reference", "900"),
    row(GEMM, "optimized", "1,500,000", "30", "40", "20", "12", "n/a"),
    row(GEMM, "optimized", "2,000,000", "50", "40", "20", "12", "n/a"),
]


def as_csv(*rows: list[str]) -> str:
    lines = [COLUMNS, UNITS, *([str(number), *cells[1:]] for number, cells in enumerate(rows))]
    return "\n".join(",".join(f'"{cell.replace(chr(34), chr(34) * 2)}"' for cell in cells) for cells in lines) + "\n"


def capture(label: SideLabel, case: str = "a/fused/cuda") -> Capture:
    return Capture(1, case, label, "the side", 1, 64, complete=True)


LAUNCHES = read_launches("==PROF== Connected\n" + as_csv(*ROWS))


def longest(label: SideLabel, count: int = 2) -> list[CountedKernel]:
    return longest_kernels(LAUNCHES, SPELLED, capture(label), count)


def test_the_kernels_that_take_most_of_a_step_with_all_their_launches() -> None:
    gemm, relu = longest("reference")
    assert (gemm.name, gemm.symbol, gemm.launches, gemm.step_ms, gemm.grid) == (SPELLED[GEMM], GEMM, 1, 5.0, "64x1x1")
    assert (relu.launches, relu.longest_ms, relu.grid) == (4, 1.234, "256x1x1")
    assert relu.step_ms == pytest.approx(2.434)
    assert gemm.share == pytest.approx(5.0 / 7.4349)
    assert [one.longest_ms for one in longest("optimized", 5)] == [2.0]
    assert longest_kernels(LAUNCHES, SPELLED, capture("optimized", "fused/cuda"), 5) == []


def test_the_shares_are_of_the_longest_launch() -> None:
    gemm, relu = add_shares(longest("reference"), LAUNCHES, capture("reference"))
    assert gemm.shares == {"compute": 91.5, "memory": 40, "dram": 20, "occupancy": 12, "tensor": 88}
    assert relu.shares == {"compute": 10, "memory": 80.4, "dram": 79, "occupancy": 55, "tensor": 0}
    (other,) = add_shares(longest("optimized"), LAUNCHES, capture("optimized"))
    assert other.shares is not None
    assert (other.shares["compute"], other.shares["tensor"]) == (50, None)
    elsewhere = [replace(launch, grid="1x1x1") for launch in LAUNCHES]
    assert [one.shares for one in add_shares(longest("reference"), elsewhere, capture("reference"))] == [None, None]


def test_ncu_looks_at_all_launches_of_the_longest_kernels_and_at_no_others() -> None:
    words = filters([*longest("reference"), *longest("optimized")])
    assert words == [
        "--kernel-name-base=mangled",
        r"--kernel-name=regex:^(_Z4gemmIfLb1EEvPKT_|_ZN2at6native4reluE.v)$",
    ]
    options = Filters(words)
    assert {launch.name for launch in LAUNCHES if options.lets_through(launch.name)} == {GEMM, RELU}


def test_more_names_than_an_argument_can_hold_are_one_sentence() -> None:
    launches = [replace(LAUNCHES[2], name=f"{GEMM}{number}" * 10) for number in range(1000)]
    kernels = longest_kernels(launches, {launch.name: "gemm" for launch in launches}, capture("reference"), 1000)
    with pytest.raises(NcuError, match="1000 names of kernels are too much for one ncu: choose fewer tests with -k"):
        filters(kernels)


def test_launches_are_told_apart_by_their_case() -> None:
    assert len(of_capture(LAUNCHES, capture("reference"))) == 6
    assert of_capture(LAUNCHES, capture("reference", "fused/cuda")) == []


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        ({"compute": 91, "memory": 40, "dram": 20, "tensor": 88}, "tensor cores"),
        ({"compute": 91, "memory": 40, "dram": 20, "tensor": 3}, "compute"),
        ({"compute": 10, "memory": 80, "dram": 79}, "DRAM"),
        ({"compute": 10, "memory": 80, "dram": 12}, "caches"),
        ({"compute": 13, "memory": 26, "dram": 4, "tensor": 0}, "latency"),
        ({}, ""),
    ],
)
def test_what_bounds_a_kernel_in_words(shares: dict[str, float], words: str) -> None:
    assert bound_by(shares) == words


def test_a_table_that_no_name_can_break() -> None:
    kernels = add_shares(longest("reference"), LAUNCHES, capture("reference"))
    text = markdown([(capture("reference"), [*kernels, *longest("optimized")])])
    assert "## a/fused/cuda, reference: the side" in text
    assert (
        "| `gemm<float, true>` | 67 % | 5.00 ms | 1 | 5.00 ms | tensor cores | 92 % | 40 % | 20 % | 88 % | 12 % "
        "| 64x1x1 | 128x1x1 |"
    ) in text
    assert "| `at::relu\\|<4>` | 33 % | 2.43 ms | 4 | 1.23 ms | DRAM | 10 % | 80 % | 79 % | 0 % | 55 % |" in text
    assert "| 3.50 ms | 2 | 2.00 ms |  |  |  |  |  |  | 64x1x1 |" in text


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
        read_launches(said)


SECRET = "hunter2-of-a-ci-job"
FOUND = [".gitignore", ".lock", "kernels.json", "kernels.md", "kernels.ncu-rep"]


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
    return tmp_path


def under_ncu(project: Path, reports: tuple[int, ...] = (0, 1), log: str = "", gone: str = "") -> tuple[int, str]:
    head = as_csv().rstrip("\n")
    install(project, ROWS, spelled=SPELLED, head=head, log=log, reports=reports, gone=[RANGE.format(gone)])
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
    assert sorted(path.name for path in (project / "found").iterdir()) == FOUND
    assert "`gemm<float, true>`" in (project / "found/kernels.md").read_text(encoding="utf-8")
    every = {path.name: path.read_bytes() for path in (project / "found").iterdir()}
    assert f'"PATH": "{project}:'.encode() in every["kernels.ncu-rep"]  # so that a secret in it would be seen
    assert [name for name, content in every.items() if SECRET.encode() in content] == []
    (kernel,) = json.loads(every["kernels.json"])
    assert (kernel["case_id"], kernel["label"], kernel["longest_ms"]) == ("a/fused/cuda", "reference", 5.0)
    assert kernel["shares"]["compute"] == 91.5


def test_the_first_run_takes_times_alone_and_the_second_counts_the_longest(project: Path) -> None:
    under_ncu(project)
    first, second = (set(json.loads(line)) for line in (project / "words").read_text().splitlines())
    assert {"--nvtx", "--import-sass=no", "--clock-control=none", "--profile-from-start=off"} <= first & second
    assert {"--metrics=gpu__time_duration.sum", "--cache-control=none"} <= first
    assert {"--kernel-name-base=mangled", rf"--kernel-name=regex:^({GEMM})$"} <= second
    assert next(word for word in second if word.startswith("--metrics=")).count(",") == len(METRICS)
    assert not any(word.startswith(("--kernel", "--launch", "--filter")) for word in first)


@pytest.mark.parametrize(
    ("log", "sentence"),
    [
        ("==ERROR== ERR_NVGPUCTRPERM: no permission", f"(ERR_NVGPUCTRPERM): {nsight_tools.PERMISSION}"),
        ("==ERROR== Unknown section", "ncu made no report (Unknown section): run it by hand to see more"),
        ("==PROF== a\n==WARNING== No kernels were profiled.", "no report (No kernels were profiled.): run it by hand"),
        ("", "ncu made no report (it said no error): run it by hand to see more"),
    ],
)
def test_without_a_report_it_says_how_to_get_one(project: Path, log: str, sentence: str) -> None:
    status, said = under_ncu(project, reports=(), log=log)
    assert status == 1
    assert sentence in said
    assert len((project / "words").read_text().splitlines()) == 1  # no second run


def test_without_counters_the_times_are_kept(project: Path) -> None:
    status, said = under_ncu(project, reports=(0,), log="==ERROR== Out of memory")
    assert status == 1
    assert "ncu made no report (Out of memory)" in said
    assert "| `gemm<float, true>` | 67 % | 5.00 ms |" in (project / "found/kernels.md").read_text(encoding="utf-8")


def test_where_no_side_was_captured_nothing_is_looked_for(project: Path) -> None:
    (project / "index.json").write_text('{"captures": [], "status": 5}', encoding="utf-8")
    status, said = under_ncu(project)
    assert (status, "ERROR" in said) == (5, False)
    assert len((project / "words").read_text().splitlines()) == 1


def test_a_second_run_without_the_kernels_of_the_first_is_told_and_has_the_times(project: Path) -> None:
    status, said = under_ncu(project, gone="a/fused/cuda reference")
    assert status == 1
    assert "ncu counted none of the longest kernels of a/fused/cuda reference: look at kernels.ncu-rep" in said
    assert "| `gemm<float, true>` | 67 % | 5.00 ms |" in (project / "found/kernels.md").read_text(encoding="utf-8")
