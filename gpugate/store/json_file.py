"""A kind of JSON file: its format, version and dataclass, and the sentences about a file that cannot be used."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from gpugate.errors import GpugateError
from gpugate.store.codec import FormatError, from_json, to_json

T = TypeVar("T")


class NewerFormatError(FormatError):
    """A newer gpugate wrote the file."""


@dataclass(frozen=True)
class JsonFile(Generic[T]):
    """Documents of one format: the fields of the dataclass `cls` after a header.

    `step` is the next step in a sentence about a file that cannot be used, and `unwritable` about one that cannot be
    written.
    """

    format: str
    version: int
    cls: type[T]
    error: type[GpugateError]
    step: str
    unwritable: str
    oldest_version: int = 1  # the oldest that this gpugate reads

    def read(self, path: Path) -> T:
        """Reads a file. Raises `error` where it is absent, damaged, too new, too old, or of another format."""
        with self.reading(path):
            return self.decode(parse(path.read_text(encoding="utf-8")))

    def write(self, path: Path, value: T) -> None:
        """Replaces the file in one step, in a folder that exists. Raises `error` where that fails (the old file then
        stays), and FormatError for a value that cannot be read back."""
        text = self.encode(value)
        with self.writing(path):
            write_atomically(path, text)

    def decode(self, document: object) -> T:
        """Converts a document to its value. Raises FormatError."""
        return from_json(self.cls, self.open(document))

    def open(self, document: object) -> dict[str, Any]:
        """Returns the body of a document.

        Raises FormatError for another format, and for a version outside `oldest_version` to `version`.
        """
        if not isinstance(document, dict) or document.get("format") != self.format:
            raise FormatError(f"its field 'format' is not {self.format!r}")
        found = document.get("format_version")
        if type(found) is not int or found < 1:
            raise FormatError(f"format_version is {found!r}, not a whole number from 1 on")
        versions = f"(format {found}, this one reads {self.oldest_version} to {self.version})"
        if found > self.version:
            raise NewerFormatError(f"a newer gpugate wrote it {versions}")
        if found < self.oldest_version:
            raise FormatError(f"an older gpugate wrote it {versions}")
        return {name: value for name, value in document.items() if name not in ("format", "format_version")}

    def encode(self, value: T) -> str:
        """Writes the text of a file. Raises FormatError for a value that cannot be read back."""
        return pretty(with_header(self.format, self.version, to_json(value))) + "\n"

    def writing(self, path: Path) -> AbstractContextManager[None]:
        """Turns an OSError that is raised inside into one sentence of `error`, with the next step."""
        return writing(path, self.error, self.unwritable)

    @contextmanager
    def reading(self, path: Path) -> Iterator[None]:
        """Turns an error that is raised inside into one sentence of `error`, with the next step."""
        try:
            yield
        except (OSError, UnicodeDecodeError) as error:
            problem = getattr(error, "strerror", None) or "it is not UTF-8 text"
            raise self.error(f"{path} cannot be read ({problem}): {self.step}") from error
        except FormatError as error:
            step = "update gpugate" if isinstance(error, NewerFormatError) else self.step
            raise self.error(f"{path} cannot be used because {error}: {step}") from error


@contextmanager
def writing(place: object, error: type[GpugateError], step: str) -> Iterator[None]:
    """Turns an OSError that is raised inside into one sentence of `error` about the place, with the next step."""
    try:
        yield
    except OSError as problem:
        raise error(f"{place} cannot be written ({problem.strerror or problem}): {step}") from problem


def parse(text: str) -> object:
    """Parses JSON. Raises FormatError for other text, for JSON that is nested too deeply and for too many digits."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"it is cut off or not JSON ({error})") from None


def pretty(data: object, indent: str = "") -> str:
    """Writes JSON with one line per field and per list without objects."""
    inner = indent + "  "
    if isinstance(data, dict) and data:
        lines = [f"{inner}{json.dumps(name)}: {pretty(value, inner)}" for name, value in data.items()]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    if isinstance(data, (list, tuple)) and any(isinstance(value, dict) for value in data):
        return "[\n" + ",\n".join(inner + pretty(value, inner) for value in data) + f"\n{indent}]"
    return json.dumps(data, allow_nan=False)


def with_header(name: str, version: int, body: Mapping[str, Any]) -> dict[str, Any]:
    return {"format": name, "format_version": version, **body}


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replaces a file in one step: a reader gets the old content or the new. Raises OSError."""
    target = path.resolve()
    if target.exists() and not target.is_file():
        raise OSError("it is not a regular file")
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            temporary.chmod(target.stat().st_mode & 0o777)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
