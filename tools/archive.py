"""Stored trials and nights: one compressed archive a machine and month below `results/`, read like loose files.

`python -m tools.archive results/MACHINE` moves the files of trials and nights of a machine into its archive of this
month, beside those that are in it. `tar -xf ARCHIVE -C FOLDER` unpacks an archive for `gpugate replay FOLDER/night` and
the like.
"""

from __future__ import annotations

import argparse
import io
import tarfile
import tempfile
from collections.abc import Iterator
from datetime import date
from functools import cache
from pathlib import Path

from tools.machines import ROOT

RESULTS = ROOT / "results"
ARCHIVES = "trials-*.tar.xz"
HOSTS = ("night/*.json", "slow-host/*.json", "another-host/*.json", "runs/llm-*.json", "runs/catalogue*.json")
ARCHIVED = ("duets/*/duets-*.json", *HOSTS)


def list_files(folder: Path, pattern: str) -> list[Path]:
    """The files of a folder that match the pattern, by name, and below `results/` also those in the machine's archives.

    A file of an archive is unpacked until this process ends.
    """
    found, whole = list(folder.glob(pattern)), folder.resolve()
    if whole.parent.is_relative_to(RESULTS):
        machine = RESULTS / whole.relative_to(RESULTS).parts[0]
        for archive in machine.glob(ARCHIVES):
            found += (Path(_unpack(archive).name) / whole.relative_to(machine)).glob(pattern)
    return sorted(found, key=lambda path: path.name)


@cache
def _unpack(archive: Path) -> tempfile.TemporaryDirectory[str]:
    """Unpacks an archive. Raises tarfile.TarError for a member outside the folder, and for anything but a file."""
    folder = tempfile.TemporaryDirectory(prefix="gpugate-archive-")
    with tarfile.open(archive, "r:xz") as members:
        members.extractall(folder.name, filter="data")
    return folder


def pack(machine: Path, archive: Path) -> int:
    """Moves the files of trials and nights below a machine's folder into the archive. Returns how many it moved."""
    loose = {path.relative_to(machine).as_posix(): path for pattern in ARCHIVED for path in machine.glob(pattern)}
    contents = {**dict(_read(archive)), **{name: path.read_bytes() for name, path in loose.items()}}
    unfinished = archive.with_suffix(".unfinished")
    with tarfile.open(unfinished, "w:xz", preset=9) as members:
        for name, content in sorted(contents.items()):
            member = tarfile.TarInfo(name)  # without a time and an owner, so that equal files make an equal archive
            member.size = len(content)
            members.addfile(member, io.BytesIO(content))
    unfinished.replace(archive)
    for path in loose.values():
        path.unlink()
    return len(loose)


def _read(archive: Path) -> Iterator[tuple[str, bytes]]:
    if archive.exists():
        with tarfile.open(archive, "r:xz") as members:
            for member in members:
                content = members.extractfile(member)
                if content is not None:
                    yield member.name, content.read()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tools.archive")
    parser.add_argument("machine", type=Path, help="the folder of a machine, such as results/h200")
    given: Path = parser.parse_args().machine
    target = given / f"trials-{date.today():%Y-%m}.tar.xz"
    print(f"{pack(given, target)} files moved to {target}")
