"""A module imports only from the rows above it; the engine knows no workload, and a workload only what one is."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# From the top of the ladder to its foot. Within a row, a module may import those to its left; a folder imports itself.
ROWS = (
    (
        "errors",
        "units",
        "quantities",
        "counter_names",
        "cuda_calls",
        "intervals",
        "nvml",
        "temporary_folder",
        "writable_folder",
        "termination",
        "left_over",
        "child_process",
    ),
    ("workload",),
    ("catalogue", "environment", "source_code", "source_hash"),
    ("faults",),
    ("measurement",),
    ("moved_side", "summary", "tolerances", "series"),
    ("autopsy",),
    (
        "verdict",
        "voting",
        "next_steps",
        "machine_state",
        "equivalence",
        "plausibility",
        "judging",
        "contracts",
        "bottleneck",
    ),
    ("result", "deciding", "asked_tolerance", "ladder", "knee"),
    ("codec", "run_file", "baseline", "replay", "case_states", "profiles_file"),
    ("report",),
    ("options", "selection", "held_verdicts", "xdist_workers"),
    ("fresh_process", "session", "session_start", "recording", "replay_session"),
    ("profiling",),
    ("fixtures", "plugin"),
    ("trust",),
    ("doctor", "history", "record_command", "replay_command", "diff_command", "verdict_command", "cli", "__main__"),
)
ITSELF = ("gpugate", "gpugate.__version__")
LADDER = [name for row in ROWS for name in row]
MODULES = sorted(path for path in (ROOT / "gpugate").rglob("*.py") if path != ROOT / "gpugate/__init__.py")


def imports(path: Path) -> Iterator[str]:
    """Every module that a file names in an import, wherever it stands; relative names are made absolute."""
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*start, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def step(module: str) -> int | None:
    """Where a module of gpugate stands on the ladder: its own name, or that of the folder or module around it."""
    parts = module.split(".")[1:]
    names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((LADDER.index(name) for name in names if name in LADDER), None)


def broken_rungs(path: Path) -> list[str]:
    own = step(".".join(path.relative_to(ROOT).with_suffix("").parts))
    assert own is not None, f"{path.relative_to(ROOT)} stands in no row of the ladder: give it one"
    folder = LADDER[own] == path.parent.name
    above = own + 1 if folder else own
    known = ((name, step(name)) for name in imports(path) if name.split(".")[0] == "gpugate" and name not in ITSELF)
    return [name for name, stands in known if stands is None or stands >= above]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_imports_only_from_above(path: Path) -> None:
    assert broken_rungs(path) == []


def test_the_map_for_contributors_has_every_module_once() -> None:
    lines = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("| row | modules |")[2].splitlines()
    rows = [line.split("|")[2] for line in lines[2:] if line.startswith("|")]
    named = [name.rstrip("/") for row in rows for name in re.findall(r"`(\w+/?)`", row)]
    assert sorted(named) == sorted(set(LADDER) - {"__main__"})


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_engine_imports_no_workload_and_no_promise(path: Path) -> None:
    assert {name.split(".")[0] for name in imports(path)}.isdisjoint({"workloads", "perf_tests", "tests"})


def test_workloads_know_of_gpugate_only_what_a_workload_is() -> None:
    files = sorted((ROOT / "workloads").rglob("*.py"))
    names = {name for path in files for name in imports(path)}
    ours = {name for name in names if name.split(".")[0] in ("gpugate", "perf_tests", "tests")}
    assert {name for name in ours if not name.startswith(("gpugate.workload", "gpugate.errors."))} == set()


def test_importing_the_plugin_imports_no_torch() -> None:
    script = "import sys, gpugate.plugin; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False).returncode == 0


def test_help_loads_nothing_heavy() -> None:
    script = (
        "import sys, pytest; status = pytest.main(['--help']); "
        "sys.exit(status or ' '.join({'sqlite3', 'torch'} & set(sys.modules)) or None)"
    )
    # Of this environment nothing: where coverage is measured, coverage itself loads sqlite3.
    run = subprocess.run([sys.executable, "-c", script], cwd=ROOT, env={}, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    assert "--nsys-args" in run.stdout


# Modules whose times decide something.
TIMED = sorted((*ROOT.glob("gpugate/measurement/*.py"), *ROOT.glob("gpugate/faults/*.py")))


@pytest.mark.parametrize("path", TIMED, ids=lambda path: path.stem)
def test_the_engine_takes_the_clock_by_name_so_that_no_side_can_replace_it(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    uses = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)]
    assert [(node.lineno, node.attr) for node in uses if node.value.id == "time"] == []
