"""The JSON Schemas of stored files; `python -m gpugate.store.schemas docs/schema` writes them."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
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


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in schemas().items():
        write_atomically(folder / name, text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
