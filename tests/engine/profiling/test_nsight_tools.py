"""The commands of nsys for an existing report: its export and its expert rules."""

import os
from pathlib import Path

import pytest

from gpugate.profiling import nsight_tools
from gpugate.profiling.export_schema import ProfileError
from gpugate.profiling.nsight_tools import Nsys, export_report, findings, parse_rules, run_nsys
from tests.support.fake_nsys import on_path
from tests.support.patience import started_once, wait_until
from tests.support.tiny_project import running

SAID = """\
Processing [r.sqlite] with [/opt/nsight-systems/2025.3.2/host-linux-x64/rules/cuda_memcpy_async.py]...

 ** CUDA Async Memcpy with Pageable Memory (cuda_memcpy_async):

There were no problems detected related to memcpy operations using pageable
memory.

Processing [r.sqlite] with [/opt/nsight-systems/2025.3.2/host-linux-x64/rules/cuda_memcpy_sync.py]...

 ** CUDA Synchronous Memcpy (cuda_memcpy_sync):

The following are synchronous memory transfers that block the host.

Suggestion: Use cudaMemcpy*Async() APIs instead.

 Duration (ns)  Start (ns)    Src Kind  Dst Kind      API Name
 -------------  -----------  --------  --------  ----------------
     1,008,390  360,484,139  Device    Pageable  cudaMemcpy_v3020
       577,585  357,164,672  Pageable  Device    cudaMemcpy_v3020

Processing [r.sqlite] with [/opt/nsight-systems/2025.3.2/host-linux-x64/rules/cuda_memset_sync.py]...
SKIPPED: r.sqlite could not be analyzed because it does not contain the required CUDA data.

Processing [r.sqlite] with [/opt/nsight-systems/2025.3.2/host-linux-x64/rules/gpu_gaps.py]...

 ** GPU Gaps (gpu_gaps):

The following are ranges where a GPU is idle for more than 500ms.

 Row#  Duration (ns)
 ----  -------------
    1    600,000,000
    2    600,000,000
    3    600,000,000
    4    600,000,000
    5    600,000,000
    6    600,000,000
"""


def test_rules_that_found_something_are_told_with_the_first_rows() -> None:
    memcpy, gaps = parse_rules(SAID)
    assert (memcpy.rule, memcpy.title) == ("cuda_memcpy_sync", "CUDA Synchronous Memcpy")
    assert memcpy.advice == (
        "The following are synchronous memory transfers that block the host. "
        "Suggestion: Use cudaMemcpy*Async() APIs instead."
    )
    assert memcpy.headings == ("Duration (ns)", "Start (ns)", "Src Kind", "Dst Kind", "API Name")
    assert memcpy.rows[1] == ("577,585", "357,164,672", "Pageable", "Device", "cudaMemcpy_v3020")
    assert (memcpy.count, gaps.rule, gaps.count, len(gaps.rows)) == (2, "gpu_gaps", 6, 5)


def test_words_that_are_no_rules_are_no_findings() -> None:
    assert parse_rules("Generating SQLite file\n") == ()


def test_advice_without_a_table_is_a_finding() -> None:
    text = "Processing [r.sqlite] with [/rules/new_rule.py]...\n\n ** New Rule (new_rule):\n\nDo less.\n"
    (finding,) = parse_rules(text)
    assert (finding.advice, finding.headings, finding.rows, finding.count) == ("Do less.", (), (), 0)


def test_nsys_is_asked_for_its_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "said").write_text(SAID)
    on_path(tmp_path, monkeypatch, f'echo "$@" > {tmp_path}/asked; cat {tmp_path}/said')
    assert len(findings(tmp_path / "r.sqlite")) == 2
    assert (tmp_path / "asked").read_text() == f"analyze --format column {tmp_path}/r.sqlite\n"


def test_nsys_that_is_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setitem(nsight_tools.PLACES, "nsys", ())
    with pytest.raises(ProfileError, match="nsys was not found: install Nsight Systems, or put its nsys on PATH"):
        run_nsys(["analyze"], 5)


def test_nsys_that_fails_says_its_last_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path(tmp_path, monkeypatch, "echo first; echo the report is from the future >&2; exit 3")
    with pytest.raises(ProfileError, match=r"ended with status 3 \(the report is from the future\): run it by hand"):
        run_nsys(["analyze"], 5)


def test_nsys_that_hangs_is_killed_with_what_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path(tmp_path, monkeypatch, f"sleep 3600 & echo $! > {tmp_path}/child; wait")
    started_once(lambda: (tmp_path / "child").exists() and (tmp_path / "child").read_text(), monkeypatch)
    with pytest.raises(ProfileError, match=r"did not end within 0\.5 s"):
        run_nsys(["export"], 0.5)
    child = int((tmp_path / "child").read_text())
    wait_until(lambda: not running(child))


EXPORTS = 'for word; do case "$word" in --output=*) printf new > "${word#--output=}";; esac; done'


def report(folder: Path) -> Path:
    path = folder / "case.nsys-rep"
    path.write_text("report")
    return path


def test_a_report_is_exported_beside_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path(tmp_path, monkeypatch, EXPORTS)
    path = export_report(report(tmp_path))
    assert (path, path.read_text()) == (tmp_path / "case.sqlite", "new")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["bin", "case.nsys-rep", "case.sqlite"]


@pytest.mark.parametrize(("age_s", "content"), [(100, "new"), (-100, "old")])
def test_an_export_is_made_anew_only_when_it_is_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, age_s: int, content: str
) -> None:
    on_path(tmp_path, monkeypatch, EXPORTS)
    path = report(tmp_path)
    there = path.with_suffix(".sqlite")
    there.write_text("old")
    made = path.stat().st_mtime
    os.utime(there, (made, made - age_s))
    assert export_report(path).read_text() == content


def test_an_export_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path(tmp_path, monkeypatch, f"{EXPORTS}; echo no importer; exit 1")
    with pytest.raises(ProfileError, match=r"`nsys export` ended with status 1 \(no importer\)"):
        export_report(report(tmp_path))
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["bin", "case.nsys-rep"]


def test_a_report_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"no\.nsys-rep is no file: give a \.nsys-rep"):
        export_report(tmp_path / "no.nsys-rep")


def test_the_nsys_and_the_environment_are_those_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path(tmp_path, monkeypatch, 'echo "[$SECRET]"')
    own = Nsys(str(tmp_path / "bin/nsys"), {"PATH": "/usr/bin:/bin"})
    monkeypatch.setenv("SECRET", "token")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert run_nsys(["analyze"], nsight_tools.EXPORT_S, own) == "[]\n"


def test_what_is_no_report_is_its_own_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path(tmp_path, monkeypatch, EXPORTS)
    assert export_report(tmp_path / "no.sqlite") == tmp_path / "no.sqlite"
    assert export_report(report(tmp_path)) == tmp_path / "case.sqlite"
