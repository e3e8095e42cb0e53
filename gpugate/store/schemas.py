"""The JSON Schemas of stored files; `python -m gpugate.store.schemas docs/schema` writes them."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpugate.store import baseline, profiles_file, run_file
from gpugate.store.json_file import JsonFile, write_atomically

FILES: Mapping[str, JsonFile[Any]] = {
    "run": run_file.FILE,
    "record": baseline.FILE,
    "profiles": profiles_file.FILE,
}


def schemas() -> dict[str, str]:
    """Generates the text of each schema, by file name."""
    return {f"{name}.schema.json": json.dumps(file.schema(), indent=1) + "\n" for name, file in FILES.items()}


def main(words: Sequence[str] | None = None) -> None:
    """Writes the schemas into the folder that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m gpugate.store.schemas", description=main.__doc__)
    parser.add_argument("folder", type=Path, help="the folder, such as docs/schema")
    folder: Path = parser.parse_args(words).folder
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in schemas().items():
        write_atomically(folder / name, text)


if __name__ == "__main__":
    main()
