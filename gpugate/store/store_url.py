"""The address of the store: an SQLAlchemy URL that the user gave, else a SQLite file in the project."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, unquote_plus

from gpugate.errors import GpugateError
from gpugate.store.version import STORE_FOLDER
from gpugate.store.writable_folder import choose_folder

VARIABLE = "GPUGATE_STORE"
NO_STORE = "off"
FILE_NAME, PROOFS = "store.sqlite", "proofs"
_QUERY, _TAIL = re.compile(r"\?"), re.compile("[?#;=]|%(?:3[BDF]|23)", re.IGNORECASE)  # begin what follows an address
_SECRET = re.compile("pass|secret|key|token", re.IGNORECASE)
SHORTEST_SECRET = 3  # characters of a value whose key does not say that it is one
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
        raise StoreUrlError(f"{name} is {describe_url(url)!r}: {step}")
    return url


def find_url(given: str | None) -> str | None:
    """The URL that a command was given, else that of the variable or of the nearest project; None where it is off."""
    return given or choose_url(None, find_root(Path.cwd()))


def describe_url(url: str) -> str:
    """The URL for people: `***` for its password and for all that follows its address, also where SQLAlchemy cannot
    read it. A log keeps what is printed."""
    scheme, separator, rest = url.rpartition("://")
    address, tail = _split_tail(rest, _QUERY if scheme.startswith("sqlite") else _TAIL)
    if "@" in tail:  # it begins inside the password
        return f"{scheme}{separator}***"
    if not scheme.startswith("sqlite"):
        user, at, place = address.rpartition("@")
        name, secret, _ = user.partition(":" if ":" in user else "/")
        address = f"{name}:***@{place}" if at and secret else address
        address = re.sub(r":(?!\d+(?:/|$)|\*\*\*@)[^\]]*$", ":***", address, flags=re.S)  # a port that is none
    return f"{scheme}{separator}{address}{f'{tail[0]}***' if tail else ''}"


def hide_secrets(words: str, url: str) -> str:
    """The words, such as an error of a driver, with `***` for the URL's password and the values behind its address."""
    words, rest = words.replace(url, describe_url(url)), url.rpartition("://")[2]
    address, tail = _split_tail(rest, _TAIL)
    values = (piece.rpartition("=") for piece in re.split("[?&;#]", tail))
    secrets = [value for key, _, value in values if len(value) >= SHORTEST_SECRET or _SECRET.search(key)]
    secrets += [re.split("[:/]", rest.rpartition("@")[0], maxsplit=1)[-1] if "@" in rest else "", tail[1:]]
    secrets += re.findall(r":((?!\d+(?:/|$))[^@/\]]+)", address)
    forms = {form for secret in secrets for form in (secret, unquote(secret), unquote_plus(secret)) if form}
    for form in sorted(forms, key=len, reverse=True):
        words = re.sub(rf"(?<!\w){re.escape(form)}(?!\w)", "***", words)
    return words


def _split_tail(rest: str, begins: re.Pattern[str]) -> tuple[str, str]:
    found = begins.search(rest)
    return (rest, "") if found is None else (rest[: found.start()], rest[found.start() :])


def url_of(root: Path) -> str:
    """The URL of the SQLite file in the project with this root folder, or outside a read-only one."""
    return f"sqlite:///{choose_folder(root / STORE_FOLDER) / FILE_NAME}"


def find_file(url: str) -> Path | None:
    """The file of a SQLite URL; None for other databases."""
    name = url.partition("?")[0].removeprefix("sqlite:///")
    return Path(name) if url.startswith("sqlite:///") and name else None


def proofs_folder(url: str, root: Path) -> Path:
    """The folder of remembered proofs: beside the file of a store; for another database, in the project `root`."""
    file = find_file(url)
    return (choose_folder(root / STORE_FOLDER) if file is None else file.parent) / PROOFS


def find_root(start: Path) -> Path:
    """The nearest folder, from `start` upwards, that has a store; `start` where there is none."""
    return next((folder for folder in (start, *start.resolve().parents) if (folder / STORE_FOLDER).is_dir()), start)
