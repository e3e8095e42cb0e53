"""The address of the store: an SQLAlchemy URL that the user gave, else a SQLite file in the project."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, unquote_plus

from gpugate.errors import OptionError
from gpugate.store.version import STORE_FOLDER
from gpugate.store.writable_folder import choose_folder

VARIABLE = "GPUGATE_STORE"
NO_STORE = "off"
FILE_NAME, PROOFS = "store.sqlite", "proofs"
SHORTEST_SECRET = 3  # characters of a value in the query
EXAMPLE = "postgresql://user@host/gpugate"
_SQLITE, _NAME = re.compile(r"sqlite(\+\w+)?://"), re.compile(r"[\w./+-]+")
_URL = re.compile(  # of a server
    r"(?P<scheme>[\w+]+://)(?:(?P<user>[^:/?#@]*)(?::(?P<secret>[^?]*))?(?=@))?"
    r"(?P<place>@?(?:\[[\da-fA-F:.]+\]|[\w.-]*)(?::\d+)?(?:/[\w.-]*)?)(?:\?[^@]*)?"
)


def choose_url(
    given: str | None, root: Path, variables: Mapping[str, str] = os.environ, setting: str = ""
) -> str | None:
    """The URL of the store; None where it is off. Raises OptionError, naming the option, for what is no URL.

    `given` is the value of the option, `root` the folder of the project, and `setting` that of its configuration.
    """
    named = {"--perf-store": given, VARIABLE: variables.get(VARIABLE), "perf_store": setting}
    name, url = next(((name, url) for name, url in named.items() if url), ("", None))
    if url is None:
        return url_of(root)
    if url == NO_STORE:
        return None
    if "://" not in url:
        step = f"give an SQLAlchemy URL such as {EXAMPLE}, or {NO_STORE}"
        raise OptionError(f"{name} is {describe_url(url)!r}: {step}")
    return url


def describe_url(url: str) -> str:
    """The URL for people, without its password and all that follows its address: a log keeps what is printed.

    Of text that is no such URL nobody knows which part is secret: only its scheme is shown, or a plain name.
    """
    address, mark, _ = url.partition("?")
    if _SQLITE.match(url):
        return f"{address}?***" if mark else url
    found = _URL.fullmatch(url)
    if found is None:
        scheme, separator, _ = url.partition("://")
        return url if _NAME.fullmatch(url) else f"{scheme}://***" if separator and _NAME.fullmatch(scheme) else "***"
    user = found["user"] or ""
    return f"{found['scheme']}{user}{':***' if found['secret'] else ''}{found['place']}{'?***' if mark else ''}"


def hide_secrets(words: str, url: str) -> str:
    """The words, such as an error of a driver, with `***` for the URL's password and the values behind its address."""
    found = _URL.fullmatch(url)
    if found is None and not _SQLITE.match(url):
        return "***"
    values = (piece.rpartition("=")[2] for piece in re.split("[&;#]", url.partition("?")[2]))
    secrets = [value for value in values if len(value) >= SHORTEST_SECRET]
    secrets += [found["secret"]] if found is not None and found["secret"] else []
    words = words.replace(url, describe_url(url))
    forms = {form for secret in secrets for form in (secret, unquote(secret), unquote_plus(secret))}
    for form in sorted(forms, key=len, reverse=True):
        words = re.sub(rf"(?<!\w){re.escape(form)}(?!\w)", "***", words)
    return words


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
