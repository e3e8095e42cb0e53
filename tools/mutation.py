"""The share of small defects in some modules that their tests find: a mutation score.

    pip install mutmut
    python -m tools.mutation gpugate/judging --mutants 80 --seed 21 --tests tests/engine/judging tests/engine/results

A mutant is a module with one defect, made by an operator of mutmut: `<` in place of `<=`, None in place of an argument.
Mutants of strings are left out: most of them change the words of a message. No file on the disk changes, so a test that
starts a process sees no mutant.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import multiprocessing
import os
import random
import resource
import subprocess
import sys
from collections import Counter
from difflib import unified_diff
from functools import partial
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import pytest
from coverage import CoverageData

PYTEST = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:gpugate.plugin"]
COVERAGE = ["--cov=gpugate", "--cov-context=test", "--cov-report=", "--cov-fail-under=0"]
CPU_S = 30  # of the tests of one mutant


def list_mutants(code: str) -> list[partial[Any]]:
    """Lists every mutant of a module, each to be called for its syntax tree."""
    import libcst
    from mutmut.mutation.file_mutation import MutationVisitor
    from mutmut.mutation.mutators import mutation_operators, operator_string
    from mutmut.mutation.pragma_handling import IgnoredCode

    operators = [(kind, operator) for kind, operator in mutation_operators if operator is not operator_string]
    visitor = MutationVisitor(operators, IgnoredCode(set(), set(), set()))
    module = libcst.MetadataWrapper(libcst.parse_module(code)).visit(visitor)
    return [partial(module.deep_replace, one.original_node, one.mutated_node) for one in visitor.mutations]


def select_tests(path: Path, code: str, mutated: str, coverage: CoverageData) -> list[str]:
    """Selects the tests that run a line of the mutated function; all tests for a defect outside of functions."""
    pairs = enumerate(zip(code.splitlines(), mutated.splitlines(), strict=False), 1)
    changed = next(number for number, (line, other) in pairs if line != other)
    functions = (node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.FunctionDef))
    bodies = (range(one.body[0].lineno, (one.end_lineno or 0) + 1) for one in functions)
    body = next((lines for lines in bodies if changed in lines), None)
    by_line = coverage.contexts_by_lineno(str(path.resolve()))
    contexts = {one for line in body for one in by_line.get(line, [])} if body else coverage.measured_contexts()
    return sorted({context.rsplit("|", 1)[0] for context in contexts} - {""})


def run_tests(path: Path, mutated: str, tests: list[str]) -> None:
    """Imports the mutant in place of its module, and exits with the status of pytest."""
    load = SourceFileLoader.get_code

    def get_code(loader: SourceFileLoader, name: str) -> Any:
        return compile(mutated, path, "exec") if Path(loader.path) == path.resolve() else load(loader, name)

    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    SourceFileLoader.get_code = get_code  # type: ignore[assignment,method-assign]
    importlib.import_module(".".join(path.with_suffix("").parts))
    sys.exit(pytest.main([*PYTEST, *tests]))


def judge(path: Path, mutated: str, tests: list[str]) -> str:
    """Tests a mutant in a child process, which inherits the slow libraries: "killed", "survived" or "timeout"."""
    child = multiprocessing.get_context("fork").Process(target=run_tests, args=(path, mutated, tests))
    child.start()
    child.join(20 * CPU_S)
    child.kill()
    child.join()
    status = child.exitcode or 0  # negative for the signal that ended it
    return "survived" if status == 0 else "killed" if status > 0 else "timeout"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=Path, help="modules or folders of modules, from the current folder")
    parser.add_argument("--mutants", type=int, default=80, help="size of the sample (%(default)s)")
    parser.add_argument("--seed", type=int, default=21)
    parser.add_argument("--tests", nargs="+", required=True, help="files or folders; further options: PYTEST_ADDOPTS")
    options = parser.parse_args()
    files = [file for path in options.paths for file in (sorted(path.glob("*.py")) if path.is_dir() else [path])]
    code = {path: path.read_text(encoding="utf-8") for path in files}
    mutants = [(path, mutant) for path in files for mutant in list_mutants(code[path])]
    random.Random(options.seed).shuffle(mutants)  # noqa: S311
    subprocess.run([sys.executable, "-m", "pytest", *PYTEST, *COVERAGE, *options.tests], check=True)
    coverage = CoverageData()
    coverage.read()
    for library in ("numpy", "pydantic", "pytest_benchmark.plugin", "rich.console", "scipy.stats", "torch"):
        importlib.import_module(library)
    fates: Counter[str] = Counter()
    for path, mutant in mutants[: options.mutants]:
        mutated = mutant().code
        tests = select_tests(path, code[path], mutated, coverage)
        fate = judge(path, mutated, tests) if tests else "survived"
        diff = list(unified_diff(code[path].splitlines(), mutated.splitlines(), n=0, lineterm=""))
        print(f"{fate} {path}", *diff[2:], sep="\n", flush=True)
        fates[fate] += 1
    print(f"{dict(fates)}: score {1 - fates['survived'] / fates.total():.1%}")


if __name__ == "__main__":
    main()
