"""The JSON file of a profile's summary, which is kept when the report is not."""

from __future__ import annotations

from pathlib import Path

from gpugate.profiling.export_schema import ProfileError
from gpugate.profiling.summary import ProfileSummary
from gpugate.store.codec import (
    FormatError,
    from_json,
    naming_the_file,
    parse,
    pretty,
    to_json,
    with_header,
    without_header,
    write_atomically,
)

FORMAT = "gpugate-profile"
# History: 1: ProfileSummary as it is.
FORMAT_VERSION = 1


def document(summary: ProfileSummary) -> str:
    """The text of the file: one JSON document."""
    return pretty(with_header(FORMAT, FORMAT_VERSION, to_json(summary))) + "\n"


def write(path: Path, summary: ProfileSummary) -> None:
    """Replaces the file at `path` in one step. Raises ProfileError where it cannot be written."""
    try:
        write_atomically(path, document(summary))
    except OSError as error:
        problem = error.strerror or str(error)
        raise ProfileError(f"{path} cannot be written ({problem}): give another path") from error


def read(path: Path) -> ProfileSummary:
    """Raises ProfileError for a file that is not there, damaged, or of another format."""
    with naming_the_file(
        path,
        ProfileError,
        unreadable="give the summary of a profile",
        damaged="make it again with `gpugate profile --json`",
        instead_of_upgrading="make the summary again",
    ):
        text = path.read_text(encoding="utf-8")
        summary = from_json(ProfileSummary, without_header(FORMAT, FORMAT_VERSION, parse(text)))
        if summary.steps < 1 or summary.span_ms <= 0:
            raise FormatError(f"it is of {summary.steps} steps in {summary.span_ms:g} ms, and a profile has some")
        return summary
