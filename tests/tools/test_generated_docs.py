"""Generated parts of docs/ are those of today's code, and stored files fit their schemas; the page's pipeline runs."""

import hashlib
import json
import re

import pytest
from jsonschema import Draft202012Validator

from gpugate.commands.init import FILES as EXAMPLE
from tests.support.tiny_project import TinyProject
from tools.generated_docs import DOCS, FILES, generate, schema_of
from tools.machines import ROOT

FOLDER = DOCS / "schema"
# The number of each format, and the hash of the names of its stored fields.
NUMBERS = {"record": (8, "13bfc3d9"), "run": (19, "8cf0e176")}
STORED = [
    *sorted((ROOT / "baselines").rglob("*.json"))[::8],  # one command wrote them all
    *(ROOT / "tests/golden").glob("*.json"),
]


def test_the_generated_documents_are_those_that_the_command_writes() -> None:
    found = {path.name: text == path.read_text(encoding="utf-8") for path, text in generate().items()}
    assert all(found.values()), f"run python -m tools.generated_docs: {found}"


def test_the_pipeline_of_the_page_runs(tiny: TinyProject) -> None:
    code = re.search(
        r"```python\n(# conftest.py\n.*?)```", (DOCS / "workload.md").read_text(encoding="utf-8"), re.DOTALL
    )
    assert code is not None
    conftest = (tiny.path / "conftest.py").read_text(encoding="utf-8").replace('register_module("tiny")', "")
    smaller = code[1].replace("1024", "64")  # each of a thousand steps sorts a batch
    assert smaller.count("64") == 3
    tiny.write("conftest.py", f"{conftest}\n{smaller}")
    (tiny.path / "perf_tests/test_promises.py").unlink()
    tiny.write("test_my_workload.py", EXAMPLE["test_my_workload.py"])
    result = tiny.run("--perf-json=run.json", "-k", "decoding", "test_my_workload.py")
    assert "1 case measured" in result.text
    measured = tiny.json()["cases"]["decoding/ahead/cpu"]
    assert measured["error"] is None
    assert {one["check"]: one["outcome"] for one in measured["verdicts"]}["equivalence"] == "PASS"


@pytest.mark.parametrize("name", FILES)
def test_the_number_of_a_format_rises_with_each_stored_field_that_comes_or_goes(name: str) -> None:
    """An older engine then says that a newer gpugate wrote the file; otherwise it says that a field is lacking."""
    schema = schema_of(FILES[name])
    objects = {"": schema, **schema["$defs"]}
    fields = {one: (sorted(found.get("properties", ())), found.get("required")) for one, found in objects.items()}
    found = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:8]
    step = "raise the FORMAT_VERSION of its file, add the reason to the history there, and note both here"
    assert (FILES[name].version, found) == NUMBERS[name], step


@pytest.mark.parametrize("name", FILES)
def test_every_stored_file_fits_the_schema_of_its_format(name: str) -> None:
    schema = json.loads((FOLDER / f"{name}.schema.json").read_text())
    documents = {path: json.loads(path.read_text()) for path in STORED}
    form = FILES[name].format
    ours = {path: one for path, one in documents.items() if isinstance(one, dict) and one.get("format") == form}
    assert ours, f"no file is stored as {FILES[name].format}"
    validator = Draft202012Validator(schema)
    assert {path: error.message for path, document in ours.items() for error in validator.iter_errors(document)} == {}


def test_a_schema_refuses_what_a_format_has_not() -> None:
    validator = Draft202012Validator(json.loads((FOLDER / "run.schema.json").read_text()))
    run = json.loads((ROOT / "tests/golden/clean.json").read_text())
    validator.validate(run)
    for changed in ({**run, "colour": "red"}, {**run, "wall_s": -1}, {**run, "format": "gpugate-baseline"}):
        assert not validator.is_valid(changed)
    del run["seed"]
    assert not validator.is_valid(run)
