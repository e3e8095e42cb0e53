"""The JSON Schemas of stored files; `python -m tools.schemas docs/schema` writes them."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from gpugate.store import baseline, profiles_file, run_file
from gpugate.store.codec import core_schema
from gpugate.store.json_file import JsonFile, write_atomically

FILES: Mapping[str, JsonFile[Any]] = {
    "run": run_file.FILE,
    "record": baseline.FILE,
    "profiles": profiles_file.FILE,
}


def schemas() -> dict[str, str]:
    """Generates the text of each schema, by file name."""
    return {f"{name}.schema.json": json.dumps(schema_of(file), indent=1) + "\n" for name, file in FILES.items()}


def schema_of(file: JsonFile[Any]) -> dict[str, Any]:
    """Generates the JSON Schema of the documents of a file, without titles and descriptions, which are the code's."""
    made = GenerateJsonSchema().generate(core_schema(file.cls))
    body = made["$defs"].pop(file.cls.__name__)
    body = _without_words({**body, "$defs": made["$defs"]})
    header = {
        "format": {"const": file.format},
        "format_version": {"type": "integer", "minimum": file.oldest_version, "maximum": file.version},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **body,
        "properties": {**header, **body["properties"]},
        "required": [*header, *body["required"]],
    }


def _without_words(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_words(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    words = {name for name in ("title", "description") if isinstance(schema.get(name), str)}
    return {name: _without_words(entry) for name, entry in schema.items() if name not in words}


def main(words: Sequence[str] | None = None) -> None:
    """Writes the schemas into the folder that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m tools.schemas", description=main.__doc__)
    parser.add_argument("folder", type=Path, help="the folder, such as docs/schema")
    folder: Path = parser.parse_args(words).folder
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in schemas().items():
        write_atomically(folder / name, text)


if __name__ == "__main__":
    main()
