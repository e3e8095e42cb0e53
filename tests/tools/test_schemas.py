"""The JSON Schemas in docs/schema/ are those of today's dataclasses, and every stored file fits its own."""

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from tools.schemas import FILES, main

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs/schema"
STORED = [
    *sorted((ROOT / "baselines").rglob("*.json"))[::8],  # one command wrote them all
    *(ROOT / "tests/golden").glob("*.json"),
]


def test_the_committed_schemas_are_those_that_the_command_writes(tmp_path: Path) -> None:
    main([str(tmp_path)])
    assert {path.name: path.read_text() for path in FOLDER.iterdir()} == {
        path.name: path.read_text() for path in tmp_path.iterdir()
    }


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
