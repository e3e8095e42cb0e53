"""Adding the runs of folders to a store: a lost store is made again in this way."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gpugate.store.database import Store
from gpugate.store.night_file import NightError, read_night
from gpugate.store.night_files import RUN

BATCH = 50  # a commit costs as much as the rows of one or two runs
NO_NIGHT = "lost+found"  # which every ext4 volume has, for root alone to look into


@dataclass(frozen=True)
class Added:
    """The number of runs that were new to the store, and a sentence about each other run.

    The runs of `refused` cannot be used, those of `known` were in the store.
    """

    new: int
    known: tuple[str, ...]
    refused: tuple[str, ...]


def add_folder(store: Store, folder: Path) -> Added:
    """Adds a night, or each night and each run file in a folder of them, in transactions of BATCH runs.

    Raises NightError where the folder cannot be read or has none, and StoreError where the store fails.
    """
    paths, refused, named = _list_runs(folder), list[str](), list[tuple[str, str | None]]()
    for first in range(0, len(paths), BATCH):
        nights = []
        for path in paths[first : first + BATCH]:
            try:
                nights.append(read_night(path, path.parent.name if path.name == RUN else path.stem))
            except NightError as error:
                refused.append(str(error))
        named += zip((night.name for night in nights), store.add(*nights), strict=True)
    known = [f"{name} is the same run as {same}: delete one of them" for name, same in named if same is not None]
    return Added(len(named) - len(known), tuple(known), tuple(refused))


def _list_runs(folder: Path) -> list[Path]:
    try:
        if (folder / RUN).is_file():
            return [folder / RUN]
        entries = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
        found = [path / RUN for path in entries if path.name != NO_NIGHT and path.is_dir()]
    except OSError as error:
        problem = f"is no folder that can be read ({error.strerror})"
        raise NightError(f"{folder} {problem}: give the one whose directories --perf-report wrote") from error
    found += [path for path in entries if path.suffix == ".json" and path.is_file()]
    if not found:
        raise NightError(f"{folder} contains no nights: give the folder whose directories --perf-report wrote")
    return found
