"""The files of a night, for modules that must not import the writers of these files."""

from pathlib import Path

from gpugate.errors import OptionError

RUN = "run.json"  # everything that was measured; until the end with the lines of its cases beside it
SUMMARY = "summary.md"  # one screen
PAGE = "night.html"
JUNIT = "junit.xml"  # pytest's own


def run_path(path: Path) -> Path:
    """The run file that `path` names: itself, or the one of a night's folder. Raises OptionError for no path."""
    try:
        return path / RUN if path.is_dir() else path
    except OSError as error:
        raise OptionError(f"{path} cannot be read ({error.strerror}): give a path that can") from None


def find_runs(path: Path) -> list[Path]:
    """The run files in a folder of runs or of nights; of a night its own, and of a file, itself.

    Raises OptionError where there is none.
    """
    run = run_path(path)
    found = [run] if run.is_file() else sorted([*path.glob("*.json"), *path.glob(f"*/{RUN}")])
    if not found:
        raise OptionError(f"{path} contains no run: give a run of --perf-json, a night, or a folder of them")
    return found
