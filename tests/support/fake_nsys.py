"""Stand-ins for nsys and for the profiler's ranges, which write what the real ones do: also the environment.

`nsys profile` runs the program and makes one report per range that the program marks with files in the folder of the
output; after `run_nothing` it makes two reports of a run that it leaves out. How it behaves is in a file beside it,
since a profiled run keeps no variable that could say so.
"""

import sys
from pathlib import Path

import pytest

from gpugate.profiling.export import Capture, CaptureIndex
from gpugate.store.codec import to_json
from gpugate.store.json_file import pretty
from tests.support.profile_exports import ExportWriter

NSYS = """#!{python}
import json, os, shutil, sqlite3, subprocess, sys
from pathlib import Path

here = Path(__file__).resolve().parent
mode = (here / "mode").read_text().split()
words = sys.argv[1:]


def option(name):
    return next(word.partition("=")[2] for word in words if word.startswith(f"--{{name}}="))


def seen():
    return json.dumps({{"environment": dict(os.environ), "words": words}})


def others():  # as the real one does, of every process that it may look into
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            found.append(path.read_bytes().rstrip(b"\\0"))
        except OSError:
            pass
    return [text.decode(errors="replace") for text in found if text]


def report(number):
    texts = [seen(), *(others() if "curious" in mode else [])]
    Path(f"{{option('output')}}.{{number}}.nsys-rep").write_text(json.dumps(texts))


if words[:2] == ["profile", "--help"]:
    print("  --discard-environment arg (=false)")
elif words[0] == "profile":
    folder = Path(option("output")).parent
    (here / "words").write_text(json.dumps(words))
    start = next(index for index, word in enumerate(words) if index and not word.startswith("-"))
    if (here / "index.json").exists():
        shutil.copyfile(here / "index.json", folder / "index.json")
        (folder / "range-stopped-1").touch()
        (folder / "range-stopped-2").touch()
        status = 0
    else:
        status = subprocess.Popen(words[start:]).wait()
        (here / "index-of-the-run.json").write_text((folder / "index.json").read_text())
    ranges = [*folder.glob("range-stopped-*"), *folder.glob("range-started")]
    for each in range(len(ranges)):  # when all have ended
        report(each + 1)
    sys.exit(3 if "fails" in mode else status)
elif words[0] == "export":
    shutil.copyfile(here / "export.sqlite", option("output"))
    database = sqlite3.connect(option("output"))
    launched, *environments = json.loads(Path(words[-1]).read_text())
    database.execute("CREATE TABLE TARGET_INFO_SYSTEM_ENV (value)")
    database.executemany("INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES (?)", [[launched], [seen()]])
    database.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(environments, 1_000_000))
    database.commit()
"""
# What a profiled run of the tiny project writes, which has one optimization and captures each side.
INDEX = CaptureIndex(
    [
        Capture(1, "tiny/quick/cpu", "reference", "baseline", steps=4, items=32, complete=True),
        Capture(2, "tiny/quick/cpu", "optimized", "quick", steps=4, items=32, complete=True),
    ],
    status=0,
)
# What a project's conftest.py needs so that its CPU cases are captured, in ranges that the stand-in sees.
RANGES = """
    import itertools
    import os
    from pathlib import Path

    if "GPUGATE_PROFILED_IN" in os.environ:
        from torch.cuda import profiler

        from gpugate.profiling import profiled_sides

        _folder = Path(os.environ["GPUGATE_PROFILED_IN"])
        profiled_sides.KIND = "cpu"
        profiler.start = (_folder / "range-started").touch
        _stopped = (_folder / f"range-stopped-{number}" for number in itertools.count(1))
        profiler.stop = lambda: (_folder / "range-started").rename(next(_stopped))
"""
# The part of the package nvtx that is used; ranges are lines of a file.
NVTX = """
from pathlib import Path

LINES = Path(__file__).with_name("ranges.txt")


def _line(*words):
    with LINES.open("a") as file:
        print(*words, sep="|", file=file)


class _Domain:
    def get_event_attributes(self, message=None, color=None, category=None, payload=None):
        return message, payload

    def start_range(self, attributes):
        _line("started", *attributes)
        return attributes

    def end_range(self, attributes):
        _line("ended", *attributes)


def get_domain(name):
    assert name == "gpugate"
    return _Domain()


class annotate:
    def __init__(self, message, color=None, domain=None, category=None, payload=None):
        self._words = (domain, message, payload)

    def __enter__(self):
        _line("push", *self._words)

    def __exit__(self, *error):
        _line("pop", *self._words)
"""


class FakeNsys:
    """The folder of an installed nsys, which a PATH may name; what it exports has four steps."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "target-linux-x64"
        self.folder.mkdir(parents=True)
        (self.folder / "nsys").write_text(NSYS.format(python=sys.executable), encoding="utf-8")
        (self.folder / "nsys").chmod(0o755)
        self.mode("good")
        export = ExportWriter(self.folder / "export.sqlite")
        for start in range(0, 4_000_000, 1_000_000):
            export.step(start, start + 1_000_000)
            export.launch(start + 10_000, start + 20_000)
        export.written()

    def mode(self, name: str) -> None:
        """`good`, `curious` (about other processes), `fails` (after the program ended well)."""
        (self.folder / "mode").write_text(name, encoding="utf-8")

    def run_nothing(self) -> None:
        """Profiles end at once with INDEX: importing torch takes seconds, and many tests are about what comes after."""
        (self.folder / "index.json").write_text(pretty(to_json(INDEX)), encoding="utf-8")


def on_path(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Puts an nsys on PATH that runs `script` in a shell; `$1` is the command."""
    program = folder / "bin" / "nsys"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
