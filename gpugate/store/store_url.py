"""The address of the store: an SQLAlchemy URL that the user gave, else a SQLite file in the project."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import quote, unquote

from gpugate.errors import OptionError
from gpugate.store.version import STORE_FOLDER
from gpugate.store.writable_folder import choose_folder

VARIABLE = "GPUGATE_STORE"
NO_STORE = "off"
FILE_NAME, PROOFS = "store.sqlite", "proofs"
EXAMPLE = "postgresql://user@host/gpugate"
_NAME = re.compile(r"[\w./+-]+")  # in which no secret is
_ADDRESS = re.compile(r"(sqlite|postgres|postgresql)(\+\w+)?://")  # of the databases that a store may be in


def choose_url(given: str | None, root: Path, setting: str, option: str = "--perf-store") -> str | None:
    """The URL of the store; None where it is off. Raises OptionError, naming the option, for what is no URL.

    `given` is the value of the `option`, `root` the folder of the project, and `setting` that of its configuration.
    """
    named = {option: given, VARIABLE: os.environ.get(VARIABLE), "perf_store": setting}
    name, url = next(((name, url) for name, url in named.items() if url), ("", None))
    if url is None:
        return url_of(root)
    if url == NO_STORE:
        return None
    if not _ADDRESS.match(url):
        shown, example = (url, _sqlite(Path(url).absolute())) if _NAME.fullmatch(url) else ("***", EXAMPLE)
        raise OptionError(f"{name} is {shown!r}: give an SQLAlchemy URL such as {example}, or {NO_STORE}")
    return url


def url_of(root: Path) -> str:
    """The URL of the SQLite file in the project with this root folder, or outside a read-only one."""
    return _sqlite(choose_folder(root / STORE_FOLDER) / FILE_NAME)


def _sqlite(path: Path) -> str:
    return f"sqlite:///{quote(str(path))}"


def find_file(url: str) -> Path | None:
    """The file of a SQLite URL, in which `%3F` stands for a `?`; None for other databases."""
    name = url.partition("?")[0].removeprefix("sqlite:///")
    return Path(unquote(name)) if url.startswith("sqlite:///") and name else None


def proofs_folder(url: str, root: Path) -> Path:
    """The folder of remembered proofs: beside the file of a store; for another database, in the project `root`."""
    file = find_file(url)
    return (choose_folder(root / STORE_FOLDER) if file is None else file.parent) / PROOFS
