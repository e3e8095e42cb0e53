"""The reference of declarations in docs/workload.md, and the pipeline that stands beside it."""

import re
from pathlib import Path

from gpugate.commands.init import FILES
from tests.support.tiny_project import TinyProject
from tools.declarations import insert_reference

PAGE = Path(__file__).parents[2] / "docs/workload.md"


def test_the_page_has_todays_reference() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert insert_reference(page) == page, "run python -m tools.declarations docs/workload.md"


def test_the_pipeline_of_the_page_runs(tiny: TinyProject) -> None:
    code = re.search(r"```python\n(# conftest.py\n.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert code is not None
    conftest = (tiny.path / "conftest.py").read_text(encoding="utf-8").replace('register_module("tiny")', "")
    smaller = code[1].replace("1024", "64")  # each of a thousand steps sorts a batch
    assert smaller.count("64") == 3
    tiny.write("conftest.py", f"{conftest}\n{smaller}")
    (tiny.path / "perf_tests/test_promises.py").unlink()
    tiny.write("test_my_workload.py", FILES["test_my_workload.py"])
    result = tiny.run("--perf-json=run.json", "-k", "decoding", "test_my_workload.py")
    assert "1 case measured" in result.text
    measured = tiny.json()["cases"]["decoding/ahead/cpu"]
    assert measured["error"] is None
    assert {one["check"]: one["outcome"] for one in measured["verdicts"]}["equivalence"] == "PASS"
