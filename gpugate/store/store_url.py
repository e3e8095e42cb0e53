"""The address of the store: an SQLAlchemy URL that the user gave, else a SQLite file in the project."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from gpugate.errors import GpugateError
from gpugate.store.version import STORE_FOLDER
from gpugate.store.writable_folder import choose_folder

VARIABLE = "GPUGATE_STORE"
NO_STORE = "off"
FILE_NAME = "store.sqlite"
EXAMPLE = "postgresql://user@host/gpugate"


class StoreUrlError(GpugateError):
    """The address of a store cannot be used."""


def choose_url(given: str | None, root: Path, variables: Mapping[str, str] = os.environ) -> str | None:
    """The URL of the store; None where it is off. Raises StoreUrlError, naming the option, for what is no URL.

    `given` is the value of the option, `root` the folder of the project.
    """
    name, url = ("--perf-store", given) if given else (VARIABLE, variables.get(VARIABLE))
    if not url:
        return url_of(root)
    if url == NO_STORE:
        return None
    if "://" not in url:
        step = f"give an SQLAlchemy URL such as {EXAMPLE}, or {NO_STORE}"
        raise StoreUrlError(f"{name} is {hide_password(url)!r}: {step}")
    return url


def find_url(given: str | None) -> str | None:
    """The URL that a command was given, else that of the variable or of the nearest project; None where it is off."""
    return given or choose_url(None, find_root(Path.cwd()))


def hide_password(url: str) -> str:
    """The URL with `***` for its password, also of a URL that SQLAlchemy cannot read: a log keeps what is printed."""
    return re.sub(r":(?!/).*@", ":***@", url)


def url_of(root: Path) -> str:
    """The URL of the SQLite file in the project with this root folder, or outside a read-only one."""
    return f"sqlite:///{choose_folder(root / STORE_FOLDER) / FILE_NAME}"


def find_file(url: str) -> Path | None:
    """The file of a SQLite URL; None for other databases."""
    name = url.partition("?")[0].removeprefix("sqlite:///")
    return Path(name) if url.startswith("sqlite:///") and name else None


def find_root(start: Path) -> Path:
    """The nearest folder, from `start` upwards, that has a store; `start` where there is none."""
    return next((folder for folder in (start, *start.resolve().parents) if (folder / STORE_FOLDER).is_dir()), start)
