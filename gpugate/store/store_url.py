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
        raise StoreUrlError(f"{name} is {describe_url(url)!r}: {step}")
    return url


def find_url(given: str | None) -> str | None:
    """The URL that a command was given, else that of the variable or of the nearest project; None where it is off."""
    return given or choose_url(None, find_root(Path.cwd()))


def describe_url(url: str) -> str:
    """The URL for people: `***` for its password and its query, also where SQLAlchemy cannot read it. A log keeps what
    is printed."""
    scheme, separator, rest = url.partition("://") if "://" in url else ("", "", url)
    address, mark, query = rest.partition("?")
    if "@" in query:  # the mark may be a part of the password
        return f"{scheme}{separator}***"
    secret = ":.*@" if separator else "[:=].*@|=.*"  # `host=here password=secret` is no URL
    hidden = re.sub(secret, lambda found: f"{found[0][0]}***{'@' if found[0][-1] == '@' else ''}", address, flags=re.S)
    return f"{scheme}{separator}{hidden}{'?***' if mark else ''}"


def hide_secrets(words: str, url: str) -> str:
    """The words, such as an error of a driver, with `***` for the URL's password and the words of its query."""
    words, rest = words.replace(url, describe_url(url)), url.partition("://")[2]
    secrets = [rest.rpartition("@")[0].partition(":")[2], *re.split("[&=]", rest.partition("?")[2])]
    forms = {form for secret in secrets for form in (secret, unquote(secret), unquote_plus(secret)) if form}
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


def find_root(start: Path) -> Path:
    """The nearest folder, from `start` upwards, that has a store; `start` where there is none."""
    return next((folder for folder in (start, *start.resolve().parents) if (folder / STORE_FOLDER).is_dir()), start)
